"""One column of any table: what it holds, as float64 numbers or as text, and what is refused.

Row numbers in messages are data rows counted from 1, without the header.
"""

import datetime
import decimal
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import narwhals as nw
import numpy as np
import pyarrow as pa

from stochgp.names import quoted

Kind = Literal["number", "boolean", "text"]

_ROW = "(rows count from 1, header excluded)"
_TIMES = (nw.Date, nw.Datetime, nw.Time, nw.Duration)
_TIME_OBJECTS = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


@dataclass(frozen=True, eq=False)
class Column:
    """values: float64 [N] and finite for numbers and booleans (0 and 1), a series of strings for text."""

    name: str
    kind: Kind
    values: Any


def table_columns(table: Any) -> dict[str, Any]:
    """Name → series for a data frame; x0 … x(D-1) → array for a two-dimensional array.

    Raises TypeError for what is neither, ValueError for no rows, no columns or a repeated name.
    """
    columns = _array_columns(table) if is_array(table) else _frame_columns(table)
    if not columns:
        raise ValueError("the table has no columns")
    if len(next(iter(columns.values()))) == 0:
        raise ValueError("the table has no rows")
    return columns


def is_array(table: Any) -> bool:
    """Whether columns are known by position: arrays, lists of rows."""
    return not hasattr(type(table), "columns")  # asked of the type: some frames compute the attribute


def refuse_times(columns: Mapping[str, Any]) -> None:
    """ValueError that names every column of dates, times or durations."""
    names = [name for name, raw in columns.items() if _holds_times(raw)]
    if names:
        plural = "s" if len(names) > 1 else ""
        raise ValueError(
            f"column{plural} {quoted(names)} hold{'' if plural else 's'} dates or times; give numbers instead "
            "(such as days since a start, month, hour of the day) or drop them"
        )


def read_column(name: str, raw: Any) -> Column:
    """What a series or a one-dimensional array holds.

    Raises ValueError, naming the column, on missing or infinite values (with the first row and the count), on
    dates and times, on mixtures of numbers and text, and on types that are none of these.
    """
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf":
        return _numeric(name, np.asarray(raw, np.float64), "boolean" if raw.dtype.kind == "b" else "number")
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "O":
        refuse_times({name: raw})
        return _read_objects(name, raw.tolist())
    series = _as_series(raw)
    refuse_times({name: series})
    dtype = series.dtype
    if dtype.is_numeric():  # a missing number becomes NaN here, so that it is counted with the infinite ones
        return _numeric(name, np.asarray(series.cast(nw.Float64).to_numpy(), np.float64), "number")
    if dtype == nw.Object:
        return _read_objects(name, series.to_list())
    missing = series.is_null().to_numpy().astype(bool)
    if missing.any():
        _refuse_values(name, missing, "missing")
    if dtype == nw.Boolean:
        return _numeric(name, np.asarray(series.to_numpy(), np.float64), "boolean")
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return Column(name, "text", _as_text(series))
    if dtype == nw.Binary:
        raise ValueError(f"column {name!r} holds bytes, not text; is the file in UTF-8?")
    raise ValueError(f"column {name!r} has type {dtype}, which is neither numbers nor text")


def row_of_first(bad: np.ndarray) -> int:
    """Data row, from 1, of the first True."""
    return int(np.argmax(bad)) + 1


def first_not_number(texts: list[Any]) -> int | None:
    """Position of the first text that float() does not read."""
    for position, text in enumerate(texts):
        try:
            float(text)
        except (TypeError, ValueError):
            return position
    return None


def _frame_columns(table: Any) -> dict[str, Any]:
    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError as error:
        raise TypeError(
            f"expected a data frame or a two-dimensional array, got {type(table).__name__}"
        ) from error
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())) from error
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise ValueError(f"more than one column is called {quoted({n for n in names if names.count(n) > 1})}")
    return {str(name): frame.get_column(name) for name in frame.columns}


def _array_columns(table: Any) -> dict[str, Any]:
    array = np.asarray(table)
    if array.ndim != 2:
        raise ValueError(f"expected a data frame or an array of shape [N, D], got shape {array.shape}")
    return {f"x{j}": array[:, j] for j in range(array.shape[1])}


def _as_series(raw: Any) -> nw.Series:
    if isinstance(raw, nw.Series):
        return raw
    if raw.dtype.kind not in "UMm":
        raise ValueError(f"an array of dtype {raw.dtype} is neither numbers nor text")
    return nw.from_native(pa.chunked_array([pa.array(raw)]), series_only=True)


def _holds_times(raw: Any) -> bool:
    if isinstance(raw, np.ndarray) and raw.dtype.kind != "O":
        return raw.dtype.kind in "Mm"
    if isinstance(raw, nw.Series) and raw.dtype != nw.Object:
        return raw.dtype in _TIMES
    return any(isinstance(value, _TIME_OBJECTS) for value in _objects(raw))


def _objects(raw: Any) -> list[Any]:
    return raw.tolist() if isinstance(raw, np.ndarray) else raw.to_list()


def _numeric(name: str, values: np.ndarray, kind: Kind) -> Column:
    bad = ~np.isfinite(values)
    if bad.any():
        first = values[np.argmax(bad)]
        _refuse_values(name, bad, "missing" if np.isnan(first) else str(first))
    return Column(name, kind, values)


def _refuse_values(name: str, bad: np.ndarray, first: str) -> None:
    count = int(bad.sum())
    if count == len(bad) > 1:
        raise ValueError(f"column {name!r} holds no values: all {count} are missing or infinite; drop it")
    values = "value, at" if count == 1 else "values, the first at"
    raise ValueError(
        f"column {name!r} has {count} missing or infinite {values} data row {row_of_first(bad)}: {first} {_ROW}"
    )


def _as_text(series: nw.Series) -> nw.Series:
    native = series.to_native()
    if isinstance(native, pa.ChunkedArray) and pa.types.is_dictionary(native.type):
        native = native.cast(native.type.value_type)
        series = nw.from_native(native, series_only=True)
    return series.cast(nw.String)


def _read_objects(name: str, values: list[Any]) -> Column:
    missing = np.array([value is None or _is_nan(value) for value in values])
    if missing.any():
        _refuse_values(name, missing, "missing")
    kinds = [_object_kind(value) for value in values]
    if len(set(kinds)) == 1 and kinds[0] == "text":
        return Column(name, "text", nw.from_native(pa.chunked_array([pa.array(values)]), series_only=True))
    if set(kinds) <= {"number", "boolean"}:
        kind = "boolean" if set(kinds) == {"boolean"} else "number"
        return _numeric(name, np.array([_as_float(value) for value in values], np.float64), kind)
    other = next(i for i, kind in enumerate(kinds) if kind != kinds[0] or kind == "other")
    raise ValueError(
        f"column {name!r} mixes kinds of values: {values[0]!r} at data row 1 and {values[other]!r} "
        f"at data row {other + 1} {_ROW}"
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating | decimal.Decimal) and bool(np.isnan(_as_float(value)))


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return float("inf") if value > 0 else float("-inf")
    except ValueError:  # a signalling NaN
        return float("nan")


def _object_kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "number"
    return "text" if isinstance(value, str) else "other"
