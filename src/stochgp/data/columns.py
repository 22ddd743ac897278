"""One column of any table: what it holds, as float64 numbers, times or text, and what is refused.

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
import pyarrow.compute as pc
from jaxtyping import Bool

from stochgp.names import quoted

from .times import times_of_arrow, times_of_objects

Kind = Literal["number", "boolean", "text", "time"]

LARGEST_INTEGER = 2**53  # up to it float64 holds every integer

_ROW = "(rows count from 1, header excluded)"
_SPANS = (nw.Time, nw.Duration)
_SPAN_OBJECTS = (datetime.time, datetime.timedelta, np.timedelta64)
_TIME_OBJECTS = (datetime.date, np.datetime64)
_NAMES_OF_KINDS = {"number": "a number", "boolean": "true or false", "text": "text", "time": "a date"}


class TableError(ValueError):
    """What a table holds cannot be used."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column by its kind. One of which nothing is known counts as numbers.

    values: float64 [N] for numbers and booleans (0 and 1), NaN where missing; an Arrow array of strings for text; int64 [N], microseconds since
    1970, for times, which are UTC where `zoned`.
    """

    name: str
    kind: Kind
    values: Any
    missing: Bool[np.ndarray, " N"]
    zoned: bool = False


def table_columns(table: Any) -> dict[str, Any]:
    """Name → series for a data frame; x0 … x(D-1) → array for a two-dimensional array.

    Raises TypeError for what is neither, ValueError for no rows, no columns or a repeated name.
    """
    columns = _array_columns(table) if is_array(table) else _frame_columns(table)
    if not columns:
        raise TableError("the table has no columns")
    if len(next(iter(columns.values()))) == 0:
        raise TableError("the table has no rows")
    return columns


def is_array(table: Any) -> bool:
    """Whether columns are known by position: arrays, lists of rows."""
    return not hasattr(type(table), "columns")  # asked of the type: some frames compute the attribute


def refuse_spans(columns: Mapping[str, Any]) -> None:
    """TableError that names every column of times of day or durations."""
    names = [name for name, raw in columns.items() if _holds_spans(raw)]
    if names:
        plural = "s" if len(names) > 1 else ""
        raise TableError(
            f"column{plural} {quoted(names)} hold{'' if plural else 's'} times of day or durations; give numbers instead, "
            "such as hours, or drop them"
        )


def read_column(
    name: str, raw: Any, allow_missing: bool = False, remedy: str = "", without_values: str = ""
) -> Column:
    """What a series or a one-dimensional array holds.

    Raises TableError, naming the column, on infinite values and, unless allowed, missing ones (with the first row and the count; and
    `remedy`; `without_values` where no row has a value), on times of day and durations, on mixtures of kinds, on integers beyond 2⁵³, and on types that are none of these.
    """
    column = _read(name, raw)
    numeric = column.kind in ("number", "boolean")
    infinite = np.isinf(column.values) if numeric else np.zeros(len(column.missing), bool)
    bad = infinite if allow_missing else infinite | column.missing
    if bad.any():
        row = int(np.argmax(bad))
        absent = bool(column.missing[row])
        _refuse_values(
            name,
            bad,
            "missing" if absent else str(column.values[row]),
            (remedy if absent else "", without_values),
        )
    return column


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
        raise TableError(f"more than one column is called {quoted({n for n in names if names.count(n) > 1})}")
    return {str(name): frame.get_column(name) for name in frame.columns}


def _array_columns(table: Any) -> dict[str, Any]:
    array = np.asarray(table)
    if array.ndim != 2:
        raise ValueError(f"expected a data frame or an array of shape [N, D], got shape {array.shape}")
    return {f"x{j}": array[:, j] for j in range(array.shape[1])}


def _as_series(raw: Any) -> nw.Series:
    if isinstance(raw, nw.Series):
        native = raw.to_native()
        if type(getattr(native, "dtype", None)).__name__ == "SparseDtype":
            return nw.from_native(native.sparse.to_dense(), series_only=True)
        if pa.types.is_date64(getattr(native, "type", None) or pa.null()):
            return nw.from_native(native.cast(pa.timestamp("ms")), series_only=True)
        return raw
    if raw.dtype.kind not in "UMm":
        raise TableError(f"an array of dtype {raw.dtype} is neither numbers nor text")
    values = raw.astype("datetime64[us]") if raw.dtype.kind == "M" else raw
    return nw.from_native(pa.chunked_array([pa.array(values)]), series_only=True)


def _holds_spans(raw: Any) -> bool:
    if isinstance(raw, np.ndarray) and raw.dtype.kind != "O":
        return raw.dtype.kind == "m"
    if isinstance(raw, nw.Series) and raw.dtype != nw.Object:
        return raw.dtype in _SPANS
    return any(isinstance(value, _SPAN_OBJECTS) for value in _objects(raw))


def _objects(raw: Any) -> list[Any]:
    return raw.tolist() if isinstance(raw, np.ndarray) else raw.to_list()


def _read(name: str, raw: Any) -> Column:
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf":
        return _numeric(name, np.asarray(raw, np.float64), "boolean" if raw.dtype.kind == "b" else "number")
    refuse_spans({name: raw})
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "O":
        return _read_objects(name, raw.tolist())
    series = _as_series(raw)
    dtype = series.dtype
    if dtype == nw.Object:
        return _read_objects(name, series.to_list())
    if dtype.is_integer():
        _refuse_long_integers(name, series.to_arrow())
    if dtype.is_numeric():  # a missing number becomes NaN
        return _numeric(name, np.asarray(series.cast(nw.Float64).to_numpy(), np.float64), "number")
    missing = series.is_null().to_numpy().astype(bool)
    if missing.all():
        return _numeric(name, np.full(len(missing), np.nan), "number")
    if dtype == nw.Boolean:
        values = np.asarray(pc.fill_null(series.to_arrow(), False).to_numpy(zero_copy_only=False), np.float64)
        return _numeric(name, np.where(missing, np.nan, values), "boolean")
    if dtype in (nw.Date, nw.Datetime):
        micros, zoned = times_of_arrow(series.to_arrow())
        return Column(name, "time", micros, missing, zoned)
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return Column(name, "text", _as_text(series), missing)
    if dtype == nw.Binary:
        raise TableError(f"column {name!r} holds bytes, not text; is the file in UTF-8?")
    raise TableError(f"column {name!r} has type {dtype}, which is neither numbers, dates nor text")


def _numeric(name: str, values: np.ndarray, kind: Kind) -> Column:
    return Column(name, kind, values, np.isnan(values))


def _refuse_values(name: str, bad: np.ndarray, first: str, remedies: tuple[str, str]) -> None:
    count = int(bad.sum())
    if count == len(bad) > 1:
        raise TableError(f"column {name!r} holds no values: all {count} are missing or infinite{remedies[1]}")
    values = "value, at" if count == 1 else "values, the first at"
    raise TableError(
        f"column {name!r} has {count} missing or infinite {values} data row {row_of_first(bad)}: {first} {_ROW}{remedies[0]}"
    )


def _refuse_long_integers(name: str, values: Any) -> None:
    """TableError for an integer that float64 may not hold: mostly the number of an account, not a quantity."""
    low, high = (bound.as_py() for bound in pc.call_function("min_max", [values]).values())
    if low is None or max(-low, high) <= LARGEST_INTEGER:
        return
    _refuse_long(name, values.to_pylist())


def _refuse_long(name: str, values: list[Any]) -> None:
    for row, value in enumerate(values, start=1):
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise TableError(
                f"column {name!r} holds the integer {value} at data row {row}: beyond 2⁵³ digits would be lost; "
                "drop the column if it is an identifier, or give floating-point numbers"
            )


def _as_text(series: nw.Series) -> Any:
    values = series.to_arrow()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.large_string())


def _read_objects(name: str, values: list[Any]) -> Column:
    missing = np.array([is_missing(value) for value in values])
    present = [row for row, absent in enumerate(missing) if not absent]
    kinds = {row: _object_kind(values[row]) for row in present}
    found = set(kinds.values())
    if found <= {"number", "boolean"}:
        numeric = np.array(
            [np.nan if absent else _as_float(v) for v, absent in zip(values, missing, strict=True)]
        )
        if np.isfinite(numeric[~missing]).all():
            _refuse_long(name, values)
        return _numeric(name, numeric.astype(np.float64), "boolean" if found == {"boolean"} else "number")
    if found == {"text"}:
        texts = [None if absent else value for value, absent in zip(values, missing, strict=True)]
        return Column(name, "text", pa.array(texts, pa.large_string()), missing)
    if found == {"time"}:
        try:
            micros, zoned = times_of_objects(values, missing)
        except ValueError as error:
            raise TableError(f"column {name!r} {error}") from error
        return Column(name, "time", micros, missing, zoned)
    raise TableError(f"column {name!r} {_unusable(values, kinds)}")


def _unusable(values: list[Any], kinds: Mapping[int, str]) -> str:
    """Which kinds of values a column holds that are no kind of column."""
    first = next(iter(kinds))
    strange = next((row for row, kind in kinds.items() if kind not in _NAMES_OF_KINDS), None)
    if strange is not None:
        return f"holds {_shown(values, strange, kinds)}; it must hold numbers, dates or text"
    other = next(row for row, kind in kinds.items() if kind != kinds[first])
    return f"mixes kinds of values: {_shown(values, first, kinds)} and {_shown(values, other, kinds)} {_ROW}"


def _shown(values: list[Any], row: int, kinds: Mapping[int, str]) -> str:
    text = " ".join(repr(values[row]).split())
    text = text if len(text) <= 40 else f"{text[:37]}…"
    return f"{_NAMES_OF_KINDS.get(kinds[row], kinds[row])} ({text} at data row {row + 1})"


def is_missing(value: Any) -> bool:
    """Whether it stands for no value: None, NaN, NaT, pandas' NA."""
    if value is None or type(value).__name__ == "NAType":  # pandas
        return True
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return isinstance(value, float | np.floating | datetime.datetime | np.datetime64) and value != value


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return float("inf") if value > 0 else float("-inf")


def _object_kind(value: Any) -> str:
    """A kind of column, or what the value is called."""
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "number"
    if isinstance(value, _TIME_OBJECTS):
        return "time"
    return "text" if isinstance(value, str) else f"a value of type {type(value).__name__}"
