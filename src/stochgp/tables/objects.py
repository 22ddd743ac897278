"""Values of columns that neither NumPy nor Arrow has a type for: missing, masked, of pandas, or of any other class."""

import datetime
import decimal
import numbers
from typing import Any

import numpy as np

_TIME_OBJECTS = (datetime.date, np.datetime64)
_SPAN_OBJECTS = (datetime.time, datetime.timedelta, np.timedelta64)


def unmasked(values: Any) -> Any:
    """A NumPy masked array with NaN, NaT or None in place of masked values; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return values
    kind = values.dtype.kind
    fill: Any = np.array("NaT", values.dtype) if kind in "mM" else np.nan if kind in "biufc" else None
    return np.where(np.ma.getmaskarray(values), fill, values.data)


def is_of_objects(native: Any) -> bool:
    """Whether a pandas series holds periods, intervals or bytes, or categories that are such or tuples: Arrow has no type for them."""
    dtype = getattr(native, "dtype", None)
    levels: Any = getattr(dtype, "categories", None)
    dtype = getattr(levels, "dtype", dtype)
    if type(dtype).__name__ in ("PeriodDtype", "IntervalDtype") or getattr(dtype, "kind", "") == "S":
        return True
    if levels is None or getattr(dtype, "kind", "") != "O":
        return False
    return not all(isinstance(level, str) for level in levels)


def plain(value: Any) -> Any:
    """Bytes as text, a pandas period as the time of its start, an interval or a tuple as the text that stands for it."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    kind = type(value).__name__
    if kind == "Period":
        return value.to_timestamp()
    return str(value) if kind == "Interval" or isinstance(value, tuple) else value


def is_missing(value: Any) -> bool:
    """Whether it stands for no value: None, NaN, NaT, pandas' NA."""
    if value is None or type(value).__name__ == "NAType":  # pandas
        return True
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return (
        isinstance(value, float | np.floating | datetime.datetime | np.datetime64 | np.timedelta64)
        and value != value
    )


def as_float(value: Any) -> float:
    """A number as float64, an integer beyond it as infinity."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def kind_of(value: Any) -> str:
    """A kind of column, or what the value is called."""
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "number"
    if isinstance(value, _TIME_OBJECTS):
        return "time"
    if isinstance(value, _SPAN_OBJECTS):
        return "span"
    return "text" if isinstance(value, str) else f"a value of type {type(value).__name__}"
