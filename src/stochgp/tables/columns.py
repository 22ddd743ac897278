"""One column of any table: what it holds, as float64 numbers, times or text, and what is refused.

Row numbers in messages are data rows counted from 1, without the header.
"""

import datetime
from dataclasses import dataclass, replace
from typing import Any, Literal

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from stochgp.names import quoted

from .objects import as_float, is_missing, is_of_objects, kind_of, plain, unmasked
from .times import times_of_arrow, times_of_objects

Kind = Literal["number", "boolean", "text", "time"]

LARGEST_INTEGER = 2**53  # up to it float64 holds every integer

MISSING_VALUES = ("", "?", "-", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None")

OF_DAY, DURATIONS = "times of day, in hours", "durations, in seconds"
_ROW = "(rows count from 1, header excluded)"
_KINDS = ("number", "boolean", "text", "time", "span")


class TableError(ValueError):
    """What a table holds cannot be used."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column by its kind. One of which nothing is known counts as numbers.

    Parameters
    ----------
    name : str
        Of the column.
    kind : "number", "boolean", "text" or "time"
        What it holds.
    values : array [N]
        float64 for numbers and booleans (0 and 1), NaN where missing; an Arrow array of strings for text; int64, microseconds since 1970, for times.
    missing : bool array [N]
        Which rows have no value.
    zoned : bool
        Whether times had a time zone; then they are UTC.
    note, caution : str
        What of its reading a user may not expect; which values are not taken as they are.
    category : bool
        Whether its texts are declared to be levels.
    """

    name: str
    kind: Kind
    values: Any
    missing: Bool[np.ndarray, " N"]
    zoned: bool = False
    note: str = ""
    category: bool = False
    caution: str = ""


class Caution(str):
    """A line to be raised as a UserWarning: values that are not taken as they are, with column, count and an example."""


def table_columns(table: Any) -> dict[str, Any]:
    """Name → series for a data frame; x0 … x(D-1) → array for a two-dimensional array.

    Raises TypeError for what is neither, ValueError for no rows, no columns or a repeated name.

    Parameters
    ----------
    table : data frame or array [N, D]
        Of pandas, polars or pyarrow; lists of rows count as arrays.
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


def read_column(
    name: str, raw: Any, allow_missing: bool = False, remedy: str = "", without_values: str = ""
) -> Column:
    """What a series or a one-dimensional array holds.

    Times of day become hours, durations seconds; of mixed kinds all become text. Raises TableError, naming the column, on infinite values and, unless allowed,
    missing ones (with the first row and the count), and on types that are none of these.

    Parameters
    ----------
    name : str
        What messages call the column.
    raw : series or array [N]
        As `table_columns` gives it.
    allow_missing : bool
        Whether values may be missing.
    remedy, without_values : str
        What a message ends with: where values are missing; where no row has a value.
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


def read_any(name: str, raw: Any) -> Column:
    """As `read_column`, with infinite values, and texts that stand for none such as "NA" and "?", as missing ones."""
    column = _read(name, raw)
    if column.kind == "text":
        texts = pc.call_function("utf8_trim_whitespace", [column.values])
        known = pc.SetLookupOptions(pa.array(MISSING_VALUES, texts.type))
        absent = pc.fill_null(pc.call_function("is_in", [texts], known), False)
        absent = absent.to_numpy(zero_copy_only=False) if isinstance(absent, pa.Array) else absent.to_numpy()
        if not absent.any():
            return column
        texts = pc.call_function("if_else", [pa.array(absent), pa.scalar(None, texts.type), column.values])
        return replace(column, values=texts, missing=column.missing | absent)
    if column.kind == "time":
        return column
    infinite = np.isinf(column.values)
    if not infinite.any():
        return column
    row, values = int(np.argmax(infinite)), np.where(infinite, np.nan, column.values)
    said = f"{int(infinite.sum())} infinite value(s) are taken as missing, {first_of(str(column.values[row]), row)}"
    return replace(column, values=values, missing=column.missing | infinite, caution=said)


def first_of(shown: str, row: int) -> str:
    """The place of the first of some values; `row` counts from 0."""
    return f"the first, {shown}, at data row {row + 1}"


def both(a: str, b: str) -> str:
    """What is said of two things."""
    return "; ".join(filter(None, (a, b)))


def is_number(text: str) -> bool:
    """Whether float() reads it."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def whole(values: Any) -> Any:
    """An Arrow column in one array."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def row_of_first(bad: np.ndarray) -> int:
    """Data row, from 1, of the first True."""
    return int(np.argmax(bad)) + 1


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
    array = np.asarray(unmasked(table))
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


def _read(name: str, raw: Any) -> Column:
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf":
        return _numeric(name, np.asarray(raw, np.float64), "boolean" if raw.dtype.kind == "b" else "number")
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "m":
        return _seconds(name, raw.astype("timedelta64[us]").astype(np.float64) / 1e6, np.isnat(raw))
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "O":
        return _read_objects(name, raw.tolist())
    series = _as_series(raw)
    dtype = series.dtype
    if dtype == nw.Object or is_of_objects(series.to_native()):
        return _read_objects(name, np.asarray(series.to_native(), object).tolist())
    if dtype.is_numeric():  # a missing number becomes NaN
        numbers = _numeric(name, np.asarray(series.cast(nw.Float64).to_numpy(), np.float64), "number")
        return _noting_long(numbers) if dtype.is_integer() else numbers
    missing = series.is_null().to_numpy().astype(bool)
    if missing.all():
        return _numeric(name, np.full(len(missing), np.nan), "number")
    if dtype == nw.Boolean:
        values = np.asarray(pc.fill_null(series.to_arrow(), False).to_numpy(zero_copy_only=False), np.float64)
        return _numeric(name, np.where(missing, np.nan, values), "boolean")
    if dtype in (nw.Date, nw.Datetime):
        micros, zoned = times_of_arrow(series.to_arrow())
        return Column(name, "time", micros, missing, zoned)
    if dtype in (nw.Time, nw.Duration):
        return _of_series_of_spans(name, series, missing)
    what = f"has type {dtype}, which is neither numbers, dates nor text"
    if dtype in (nw.String, nw.Categorical, nw.Enum, nw.Binary):
        try:
            category = dtype in (nw.Categorical, nw.Enum)
            return Column(name, "text", _as_text(series), missing, category=category)
        except pa.ArrowInvalid:
            what = "holds bytes, not text; is the file in UTF-8?"
    raise TableError(f"column {name!r} {what}")


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


def _of_series_of_spans(name: str, series: nw.Series, missing: np.ndarray) -> Column:
    """Times of day in hours, durations in seconds."""
    of_day, values = series.dtype == nw.Time, series.to_arrow()
    exact = values.cast(pa.time64("us") if of_day else pa.duration("us"), safe=False).cast(pa.int64())
    seconds = _seconds(name, np.asarray(pc.fill_null(exact, 0).to_numpy(), np.float64) / 1e6, missing)
    return replace(seconds, values=seconds.values / 3600, note=OF_DAY) if of_day else seconds


def _seconds(name: str, values: np.ndarray, missing: np.ndarray) -> Column:
    """Of durations."""
    return Column(name, "number", np.where(missing, np.nan, values), missing, note=DURATIONS)


def _noting_long(column: Column) -> Column:
    """With a note of integers that float64 may not hold: mostly the number of an account, not a quantity."""
    long = np.abs(np.where(column.missing, 0.0, column.values)) > LARGEST_INTEGER
    if not long.any():
        return column
    row = int(np.argmax(long))
    said = f"integers beyond 2⁵³ lose digits, {first_of(f'{column.values[row]:.0f}', row)}: drop the column if it is an identifier"
    return replace(column, caution=said)


def _as_text(series: nw.Series) -> Any:
    values = series.to_arrow()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.large_string())


def _read_objects(name: str, values: list[Any]) -> Column:
    values = [plain(value) for value in values]
    missing = np.array([is_missing(value) for value in values])
    present = [row for row, absent in enumerate(missing) if not absent]
    kinds = {row: kind_of(values[row]) for row in present}
    found = set(kinds.values())
    strange = next((row for row, kind in kinds.items() if kind not in _KINDS), None)
    if strange is not None:
        shown = " ".join(repr(values[strange]).split())
        shown = shown if len(shown) <= 40 else f"{shown[:37]}…"
        raise TableError(
            f"column {name!r} holds {kinds[strange]} ({shown} at data row {strange + 1}); it must hold numbers, dates or text"
        )
    if found <= {"number", "boolean"}:
        pairs = zip(values, missing, strict=True)
        numeric = np.array([np.nan if absent else as_float(v) for v, absent in pairs], np.float64)
        return _noting_long(_numeric(name, numeric, "boolean" if found == {"boolean"} else "number"))
    if found == {"time"}:
        try:
            micros, zoned = times_of_objects(values, missing)
        except ValueError as error:
            raise TableError(f"column {name!r} {error}") from error
        return Column(name, "time", micros, missing, zoned)
    if found == {"span"}:
        return _of_spans(name, values, missing)
    texts = [None if absent else str(value) for value, absent in zip(values, missing, strict=True)]
    mixed = (
        ""
        if found == {"text"}
        else f"holds values of more than one kind ({', '.join(sorted(found))}), taken as text"
    )
    return Column(name, "text", pa.array(texts, pa.large_string()), missing, note=mixed)


def _of_spans(name: str, values: list[Any], missing: np.ndarray) -> Column:
    """Durations in seconds, times of day in hours."""
    found, of_day = np.full(len(values), np.nan), False
    for row in np.flatnonzero(~missing):
        value = values[row]
        if isinstance(value, datetime.time):
            found[row] = value.hour + value.minute / 60 + (value.second + value.microsecond / 1e6) / 3600
            of_day = True
        else:
            found[row] = np.timedelta64(value, "us").astype(np.int64) / 1e6
    column = _seconds(name, found, missing)
    return replace(column, note=OF_DAY) if of_day else column
