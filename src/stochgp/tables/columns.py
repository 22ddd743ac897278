"""Columns of any table as float64 numbers, times or text. Rows in messages count from 1."""

import contextlib
import datetime
import decimal
import numbers
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from stochgp.names import did_you_mean, quoted

from . import times

Kind = Literal["number", "boolean", "text", "time"]

MISSING_VALUES = ("", "?", "-", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None")

LARGEST = 1e150  # larger values count as infinite, so that squares stay finite
OF_DAY, DURATIONS = "times of day, in hours", "durations, in seconds"
_KINDS: dict[str, Any] = {  # types of Python objects
    "boolean": bool | np.bool_,
    "number": numbers.Real | decimal.Decimal,
    "time": datetime.date | np.datetime64,
    "span": datetime.time | datetime.timedelta | np.timedelta64,
    "text": str,
}


class TableError(ValueError):
    """Error for a table that cannot be used."""


class Caution(str):
    """The text of a warning about changed values, with the column, the count and an example."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table; a column without values has the kind "number".

    `values` [N] are float64 numbers (NaN if missing), Arrow strings, or int64 microseconds since 1970.
    """

    name: str
    kind: Kind
    values: Any
    missing: Bool[np.ndarray, " N"]
    zoned: bool = False  # True if times had a time zone; such times are converted to UTC
    note: str = ""  # a note for the user
    category: bool = False  # True if the type of the column is categorical
    caution: str = ""  # a warning about changed values

    @property
    def infinite(self) -> Bool[np.ndarray, " N"]:
        """A mask of numbers that are infinite or above 1e150 in size."""
        if self.kind not in ("number", "boolean"):
            return np.zeros(len(self.missing), bool)
        return np.abs(self.values) > LARGEST

    def first(self, bad: Bool[np.ndarray, " N"]) -> str:
        """Return a text that names the first of these rows and its value."""
        value = self.values[int(np.argmax(bad))]
        shown = repr(value.as_py()) if self.kind == "text" else f"{value:g}"
        return f"the first, {shown}, at data row {row_of_first(bad)}"


@contextlib.contextmanager
def rewording(change: Callable[[str], str]) -> Iterator[None]:
    """Change the text of a TableError that the block raises."""
    try:
        yield
    except TableError as error:
        raise TableError(change(str(error))) from error


def table_columns(table: Any) -> dict[str, Any]:
    """Return the series of a data frame by name, or columns x0, x1, … of an array."""
    if is_array(table):
        array = np.asarray(unmasked(table))
        if array.ndim != 2:
            raise ValueError(f"expected a data frame or an array [N, D], but got the shape {array.shape}")
        columns = {f"x{j}": array[:, j] for j in range(array.shape[1])}
    else:
        try:
            frame = nw.from_native(table, eager_only=True)
        except TypeError as error:
            what = type(table).__name__
            raise TypeError(f"expected a data frame or a two-dimensional array, got {what}") from error
        except ValueError as error:
            raise ValueError(" ".join(str(error).split())) from error
        names = [str(name) for name in frame.columns]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise TableError(f"more than one column is called {quoted(repeated)}")
        columns = {str(name): frame.get_column(name) for name in frame.columns}
    if not columns:
        raise TableError(
            "the table has no columns: 0 feature(s) (shape=(, 0)) while a minimum of 1 is required."
        )
    if len(next(iter(columns.values()))) == 0:
        raise TableError("the table has no rows")
    return columns


def is_array(table: Any) -> bool:
    """Return True if columns have no names: for arrays and lists of rows."""
    return not hasattr(type(table), "columns")  # of the type, because some frames compute the attribute


def read_column(name: str, raw: Any, allow_missing: bool = False, remedy: str = "") -> Column:
    """Return the column of a series or an array [N].

    Times of day become hours, durations become seconds, and mixed values become text. Raises TableError for
    infinite values, other types and, unless `allow_missing`, missing values.
    """
    column = _read(name, raw)
    bad = column.infinite if allow_missing else column.infinite | column.missing
    count = int(bad.sum())
    if count == 0:
        return column
    if count == len(bad) > 1:
        raise TableError(f"column {name!r} has no values: all {count} entries are missing or infinite")
    row = int(np.argmax(bad))
    shown, end = ("missing", remedy) if column.missing[row] else (str(column.values[row]), "")
    place = f"{'value, at' if count == 1 else 'values, the first at'} data row {row + 1}: {shown}"
    what = f"column {name!r} has {count} missing or infinite {place}"
    raise TableError(f"{what} (rows count from 1, header excluded){end}")


def column_named(table: Any, name: str, allow_missing: bool = False) -> Column:
    """Return `read_column` of a column of a data frame. Raises TableError if it is absent."""
    columns = table_columns(table)
    if name not in columns:
        raise TableError(f"column {name!r} is not in the table; {did_you_mean(name, columns)}")
    return read_column(name, columns[name], allow_missing)


def read_any(name: str, raw: Any) -> Column:
    """Return the column. Infinite values and texts such as "NA" or "?" become missing."""
    column = _read(name, raw)
    if column.kind == "text":
        known = pc.SetLookupOptions(pa.array(MISSING_VALUES, column.values.type))
        absent = pc.call_function("is_in", [pc.call_function("utf8_trim_whitespace", [column.values])], known)
        if not pc.call_function("any", [absent]).as_py():
            return column
        texts = pc.call_function("if_else", [absent, pa.scalar(None, column.values.type), column.values])
        return replace(column, values=texts, missing=np.asarray(texts.is_null()).astype(bool))
    if not (infinite := column.infinite).any():
        return column
    said = f"{int(infinite.sum())} infinite value(s) are treated as missing, {column.first(infinite)}"
    values = np.where(infinite, np.nan, column.values)
    return replace(column, values=values, missing=column.missing | infinite, caution=said)


def row_of_first(bad: np.ndarray) -> int:
    """Return the number, from 1, of the first row that is True."""
    return int(np.argmax(bad)) + 1


def joined(*notes: str) -> str:
    """Return the notes joined into one text."""
    return "; ".join(filter(None, notes))


def is_number(text: str) -> bool:
    """Return True if float() can read the text."""
    with contextlib.suppress(ValueError):
        return bool([float(text)])
    return False


def unmasked(values: Any) -> Any:
    """Return masked arrays with NaN, NaT or None for masked values; other objects unchanged."""
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return values
    kind = values.dtype.kind
    fill: Any = np.array("NaT", values.dtype) if kind in "mM" else np.nan if kind in "biufc" else None
    return np.where(np.ma.getmaskarray(values), fill, values.data)


def is_missing(value: Any) -> bool:
    """Return True for None, NaN, NaT and pandas' NA."""
    if value is None or type(value).__name__ == "NAType":  # pandas
        return True
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    kinds = float | np.floating | datetime.datetime | np.datetime64 | np.timedelta64
    return isinstance(value, kinds) and value != value


def _read(name: str, raw: Any) -> Column:
    if isinstance(raw, np.ndarray):
        kind = raw.dtype.kind
        if kind in "biuf":
            return _numeric(name, raw, "boolean" if kind == "b" else "number")
        if kind == "O":
            return _read_objects(name, raw.tolist())
        if kind not in "UMm":
            raise TableError(f"an array of dtype {raw.dtype} contains neither numbers nor text")
        return _read_arrow(name, pa.array(raw if kind == "U" else raw.astype(f"{kind}8[us]")))
    native = raw.to_native()
    if type(getattr(native, "dtype", None)).__name__ == "SparseDtype":
        raw = nw.from_native(native.sparse.to_dense(), series_only=True)
    if raw.dtype.is_numeric():  # a missing number becomes NaN
        return _numeric(name, raw.cast(nw.Float64).to_numpy())
    with contextlib.suppress(pa.ArrowException, TypeError):
        if raw.dtype != nw.Object:
            return _read_arrow(name, raw.to_arrow())
    return _read_objects(name, np.asarray(native, object).tolist())


def _read_arrow(name: str, values: Any) -> Column:
    """Return a column from Arrow values. Raises TypeError or TableError for other types."""
    missing, of = np.asarray(values.is_null()).astype(bool), values.type
    if missing.all():
        return _numeric(name, np.full(len(missing), np.nan))
    if pa.types.is_boolean(of):
        return _numeric(name, np.where(missing, np.nan, np.asarray(pc.fill_null(values, False))), "boolean")
    if pa.types.is_date(of) or pa.types.is_timestamp(of):
        micros, zoned = times.times_of_arrow(values)
        return Column(name, "time", micros, missing, zoned)
    if pa.types.is_time(of) or pa.types.is_duration(of):
        of_day = pa.types.is_time(of)
        exact = values.cast(pa.time64("us") if of_day else pa.duration("us"), safe=False).cast(pa.int64())
        micros = np.where(missing, np.nan, np.asarray(pc.fill_null(exact, 0), np.float64))
        return _numeric(name, micros / (3.6e9 if of_day else 1e6), note=OF_DAY if of_day else DURATIONS)
    category = pa.types.is_dictionary(of)
    values = values.cast(of.value_type) if category else values
    if isinstance(values.type, pa.BaseExtensionType):
        raise TypeError(f"{values.type}")
    try:
        texts = values.cast(pa.large_string())
    except pa.ArrowNotImplementedError as error:
        what = f"has the type {of}; only numbers, dates and text can be used"
        raise TableError(f"column {name!r} {what}") from error
    except pa.ArrowInvalid as error:
        raise TableError(f"column {name!r} contains bytes, not text; is the file in UTF-8?") from error
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    return Column(name, "text", texts, missing, category=category)


def _numeric(name: str, values: Any, kind: Kind = "number", note: str = "") -> Column:
    values = np.asarray(values, np.float64)
    return Column(name, kind, values, np.isnan(values), note=note)


def _read_objects(name: str, values: list[Any]) -> Column:
    """Return a column from Python objects; values of several kinds become text."""
    with contextlib.suppress(pa.ArrowException, TypeError, ValueError):  # fast, if all are texts
        return _read_arrow(name, pa.array(values, pa.large_string(), from_pandas=True))
    values = [_plain(value) for value in values]
    missing = np.array([is_missing(value) for value in values])
    there, found = [values[i] for i in np.flatnonzero(~missing)], set[str]()
    for row, value in zip(np.flatnonzero(~missing), there, strict=True):
        kind = next((kind for kind, types in _KINDS.items() if isinstance(value, types)), None)
        if kind is None:
            shown = textwrap.shorten(repr(value), 40, placeholder="…")
            what = f"a value of type {type(value).__name__} ({shown} at data row {row + 1})"
            raise TableError(f"column {name!r} contains {what}; it must contain numbers, dates or text")
        found.add(kind)
    if found <= {"number", "boolean"} or found == {"span"}:
        numeric = np.full(len(values), np.nan)
        numeric[~missing] = [_as_float(value) for value in there]
        if found != {"span"}:
            return _numeric(name, numeric, "boolean" if found == {"boolean"} else "number")
        of_day = any(isinstance(value, datetime.time) for value in there)
        return _numeric(name, numeric / (3600 if of_day else 1), note=OF_DAY if of_day else DURATIONS)
    if found == {"time"}:
        zoned = {getattr(value, "tzinfo", None) is not None for value in there}
        if len(zoned) > 1:
            raise TableError(f"column {name!r} mixes times with and without a time zone")
        if True in zoned:
            there = [value.astimezone(datetime.UTC).replace(tzinfo=None) for value in there]
        micros = np.zeros(len(missing), "datetime64[us]")
        micros[~missing] = [np.datetime64(value, "us") for value in there]
        return Column(name, "time", micros.astype(np.int64), missing, True in zoned)
    texts = [None if absent else str(value) for value, absent in zip(values, missing, strict=True)]
    mixed = f"contains values of several kinds ({', '.join(sorted(found))}) and is read as text"
    note = mixed if len(found) > 1 else ""
    return Column(name, "text", pa.array(texts, pa.large_string()), missing, note=note)


def _plain(value: Any) -> Any:
    """Return bytes as text, a pandas period as its start, and an interval or tuple as text."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    kind = type(value).__name__
    if kind == "Period":
        return value.to_timestamp()
    return str(value) if kind == "Interval" or isinstance(value, tuple) else value


def _as_float(value: Any) -> float:
    """Return a number as float64; for durations and times of day, seconds."""
    if isinstance(value, datetime.time):
        return 3600 * value.hour + 60 * value.minute + value.second + value.microsecond / 1e6
    if isinstance(value, datetime.timedelta | np.timedelta64):
        return np.timedelta64(value, "us").astype(np.int64) / 1e6
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
