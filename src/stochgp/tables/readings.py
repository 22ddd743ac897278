"""Texts that are numbers, dates, times of day or yes and no, as people write them: how a column does, found once and kept."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from .columns import Column, TableError, both, first_of, is_array, is_number, read_any, table_columns, whole
from .times import times_of_texts
from .written_dates import are_dates, certain_order, dates_of, digits_of, order_of

FEWEST, SHARE = 20, 0.01  # rows from which a cell, and cells of that share, may be no number or date
FEWEST_DATES = 13  # different numbers of which all are dates: by chance one 6-digit number in eight is, one of more digits in thirty; 12 months in a row are
LOOKED_AT = 200  # different texts by which most columns are seen to be none of these
_PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("off", "on"))
_SPACES = "[ '\u2019\u00a0\u202f]"
_CURRENCY = r"\p{Sc}|US\$|R\$|A\$|C\$|Rs\.?|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD"
_UNIT = r"(?:\p{Sc}|%|‰|°|µ|\p{L})[\p{L}\p{N}\p{Sc}°%‰/·^²³µ. -]{0,11}"
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "bn": 1e9, "B": 1e9}  # after a number: 1.2k, $1.3B
_SCALED = "k, M"  # the unit of such numbers without a currency
_OPPOSITE = {"N": "S", "S": "N", "E": "W", "W": "E"}  # 52.1S is −52.1N
DECIMAL = b"stochgp.decimal"  # of a schema's metadata: the decimal mark of the file
ROWS_OF_MARK = 1_000  # of a column, evenly spaced, by which the decimal mark of a table is known
_DURATION = r"^(?:(?P<D>\d+)\s*d(?:ays?)?)?[\s,]*(?:(?P<H>\d+)\s*h(?:rs?|ours?)?)?[\s,]*(?:(?P<M>\d+)\s*m(?:ins?|inutes?)?)?[\s,]*(?:(?P<S>\d+(?:\.\d+)?)\s*s(?:ecs?|econds?)?)?$"
_SPAN = r"^(?P<sign>-?)(?P<H>\d{1,3}):(?P<M>[0-5]\d)(?::(?P<S>[0-5]\d(?:\.\d+)?))?\s*(?P<ap>[AaPp][Mm])?$"


@dataclass(frozen=True)
class Reading:
    """How the texts of a column are read.

    number    a number, its decimal mark a comma where `comma`, without marks between thousands and without `unit`, which stands before or
              after it; (5) is −5, 1.2k is 1200, and without a unit 15% is 0.15
    boolean   1 for yes, true, y, t and on, 0 for their opposites
    time      a date (`written_dates`), the day before the month where `day_first`; where `digits` it may come as a number, 20141013
    span      hours, of 01:20:00 or 1h 20m
    """

    kind: Literal["number", "boolean", "time", "span"]
    comma: bool = False
    unit: str = ""
    day_first: bool = True
    zoned: bool = False
    digits: bool = False


DIGITS = Reading("time", digits=True)


def reading_of(
    column: Column, strict: bool = False, mark: str = "", day_first: bool | None = None
) -> tuple[Reading | None, str]:
    """(How a column of texts is read, None where they are levels; what is to be said of it).

    `mark` is the decimal mark of the table, for a column that admits comma and point; `day_first` the order of day and month in other columns
    (`day_first_of`). At most a hundredth of the cells, and one of at least 20, may be unreadable; none where `strict`.
    """
    texts = whole(column.values.drop_null())
    n = len(texts)
    if n == 0:
        return None, ""
    different = texts.unique()
    if not column.category and len(different) <= 2 and (pair := _pair(different.to_pylist())):
        return Reading("boolean"), f"{pair[1]!r} is 1, {pair[0]!r} is 0"
    some = different.take(pa.array(np.unique(np.linspace(0, len(different) - 1, LOOKED_AT).astype(int))))
    most = 0 if strict or n < FEWEST else max(1, int(SHARE * n))
    dates = lambda different, texts: _dates(different, texts, day_first)
    kinds = (partial(numbers_of, mark=mark), dates, _spans)
    if column.category:  # numbers there are codes
        kinds = () if all_digits(column) else (dates,)
    for find in kinds:
        if (candidate := find(some, some)) is None or 2 * _n_read(candidate[0], some) < len(some):
            continue
        found = find(different, texts)
        if found is not None and n - _n_read(found[0], texts) <= most:
            return found
    return None, ""


def decimal_mark(columns: Iterable[Any], delimiter: str = "") -> str:
    """The one of most columns of different texts that admit one mark alone, "" if unknown; between semicolons numbers such as 21,334 are decimals."""
    found = [marks_of(texts) for texts in columns]
    votes = int(np.sign(sum(vote for vote, _ in found)))
    if votes == 0 and delimiter == ";" and any("," in text for _, either in found for text in either):
        return ","
    return ("", ",", ".")[votes]


def decimal_mark_of(table: Any) -> str:
    """That of a data frame: as its file has it (`csv_files`), else `decimal_mark` of some of its rows."""
    metadata = getattr(getattr(table, "schema", None), "metadata", None)
    if isinstance(metadata, dict) and DECIMAL in metadata:
        return metadata[DECIMAL].decode()
    columns = []
    for name, raw in table_columns(table).items():
        if is_array(table) and raw.dtype.kind in "biuf":
            continue
        step = max(1, len(raw) // ROWS_OF_MARK)
        with contextlib.suppress(TableError):  # it is raised, with the right row, when all rows are read
            columns.append(read_any(name, raw[::step] if is_array(table) else raw.gather_every(step)))
    return decimal_mark(different_of(column) for column in columns if column.kind == "text")


def different_of(column: Column) -> Any:
    """The different texts of a column."""
    return whole(column.values.drop_null()).unique()


def day_first_of(columns: Iterable[Column]) -> bool | None:
    """Whether the day comes before the month in the dates of a table; None if no column of texts shows it, or if two columns differ."""
    orders = set()
    for column in columns:
        different: Any = different_of(column) if column.kind == "text" else ()
        if len(different) and dates_of(different.slice(0, LOOKED_AT), True).first.any():
            orders.add(certain_order(dates_of(different, True)))
    orders -= {None}
    return orders.pop() if len(orders) == 1 else None


def as_read(reading: Reading, column: Column) -> tuple[Column, Bool[np.ndarray, " N"]]:
    """(A column of texts as what they stand for, missing where they cannot be read; which cells that are)."""
    texts = whole(column.values)
    there = np.flatnonzero(~column.missing)
    read, is_read = read_texts(reading, texts.take(pa.array(there)))
    values = np.zeros(len(column.missing), np.int64 if reading.kind == "time" else np.float64)
    bad = np.zeros(len(values), bool)
    values[there], bad[there] = read, ~is_read
    missing = column.missing | bad
    kind: Any = "number" if reading.kind == "span" else reading.kind
    if kind != "time":
        values[missing] = np.nan
    caution = both(column.caution, both(_unread(reading, column, bad), _mixed(reading, column)))
    read = replace(column, kind=kind, values=values, missing=missing, zoned=reading.zoned, caution=caution)
    return read, bad


def with_digits(column: Column) -> Column:
    """A column of numbers as texts, 20141013.0 as "20141013"."""
    texts = digits_of(np.where(column.missing, 0.0, column.values))
    absent = pc.call_function("if_else", [pa.array(column.missing), pa.scalar(None, texts.type), texts])
    return replace(column, kind="text", values=absent)


def all_digits(column: Column) -> bool:
    """Whether texts are digits alone: 20141013, and not 20141013.0 or 20,141,013."""
    found = pc.call_function("utf8_is_digit", [column.values.drop_null()])
    return bool(pc.call_function("all", [found]).as_py())


def numbers_as_dates(column: Column, fewest: int = FEWEST_DATES) -> Column | None:
    """Numbers that are all dates such as 20141013, and of which at least so many differ, as dates; None for any others."""
    if column.kind != "number":
        return None
    numbers = column.values[~column.missing]
    if not are_dates(numbers) or len(np.unique(numbers)) < fewest:
        return None
    return as_read(DIGITS, with_digits(column))[0]


def _unread(reading: Reading, column: Column, bad: Bool[np.ndarray, " N"]) -> str:
    """What is said of cells that cannot be read; "" of none."""
    what = {"number": "numbers", "time": "dates", "boolean": "yes or no", "span": "times"}[reading.kind]
    said = f"{bad.sum()} value(s) that are no {what} are taken as missing, {place_of(column, bad)}"
    return said if bad.any() else ""


def _mixed(reading: Reading, column: Column) -> str:
    """What is said of numbers without the unit of the reading, or in per cent where it has no unit; "" of none."""
    if reading.kind != "number":
        return ""
    coded = whole(column.values).dictionary_encode()
    values, units = parsed(coded.dictionary, reading.comma)
    odd = np.append((units == "") & (np.nan_to_num(values) != 0) if reading.unit else units == "%", False)
    odd = odd[coded.indices.fill_null(-1).to_numpy()]
    how = f"without {reading.unit!r} are read as in this unit" if reading.unit else "in % are hundredths"
    return f"{odd.sum()} value(s) {how}, {place_of(column, odd)}" if odd.any() else ""


def place_of(column: Column, which: Bool[np.ndarray, " N"]) -> str:
    """That of the first of some texts."""
    row = int(np.argmax(which))
    return first_of(repr(column.values[row].as_py()), row)


def read_texts(reading: Reading, texts: Any) -> tuple[np.ndarray, Bool[np.ndarray, " N"]]:
    """(Values of texts in which none is missing, which could be read)."""
    if reading.kind == "time":
        iso = times_of_texts(texts)
        if iso is not None and iso.zoned == reading.zoned:
            return iso.micros, np.ones(len(texts), bool)
        found = dates_of(texts, reading.day_first)
        return found.micros, found.is_date & (found.zoned == reading.zoned)
    coded = texts.dictionary_encode()
    different, codes = coded.dictionary, coded.indices.to_numpy(zero_copy_only=False)
    if reading.kind == "number":
        values, units = parsed(different, reading.comma)
        values = values * _factors(units, reading.unit)
    elif reading.kind == "boolean":
        words = [text.strip().lower() for text in different.to_pylist()]
        known = {word: float(value) for pair in _PAIRS for value, word in enumerate(pair)}
        values = np.array([known.get(word, np.nan) for word in words], np.float64)
    else:
        values = _hours(different)
    values = values[codes] if len(values) else np.zeros(0)
    return values, ~np.isnan(values)


def _n_read(reading: Reading, texts: Any) -> int:
    """How many of these texts could be read so."""
    return int(read_texts(reading, texts)[1].sum())


def _pair(words: list[str]) -> tuple[str, str] | None:
    """The two words of which these are one or both."""
    words = [word.strip().lower() for word in words]
    return next((pair for pair in _PAIRS if set(words) <= set(pair)), None)


def numbers_of(different: Any, texts: Any, mark: str = "") -> tuple[Reading, str] | None:
    """By the decimal mark that reads more of the different texts, that of the table or a point where both do; and by the unit that most have."""
    marked = [parsed(different, comma) for comma in (False, True)]
    counts = [int((~np.isnan(values)).sum()) for values, _ in marked]
    if max(counts) == 0:
        return None
    comma = counts[1] > counts[0]
    if mark == "," and counts[0] == counts[1]:
        comma = bool(differing(marked[0][0], marked[1][0]).any())
    values, units = marked[comma]
    unit = _unit_of(values, units, np.bincount(texts.dictionary_encode().indices.to_numpy()))
    readable = different.filter(pa.array(~np.isnan(values))).to_pylist()
    shown = next((text for text in readable if not is_number(text)), "")
    said = [f"numbers written as {shown!r}"] if shown else []
    said += ["the comma is the decimal mark"] if comma else []
    said += [f"in {unit}"] if unit else []
    return Reading("number", comma, unit), ", ".join(said)


def _unit_of(values: np.ndarray, units: np.ndarray, count: np.ndarray) -> str:
    """That of most of the different numbers, each there so often; "" if few have one, or if those in % stand beside fractions."""
    there, n = ~np.isnan(values), count.sum()
    names = sorted(set(units[there]) - {"", _SCALED})
    n_of = {name: int(count[there & (units == name)].sum()) for name in names}
    unit = max(n_of, key=n_of.__getitem__, default="")
    if n_of.get(unit, 0) <= (0 if n < FEWEST else max(1, SHARE * n)):
        return ""
    bare, percent = (np.abs(values[there & (units == one) & (values != 0)]) for one in ("", "%"))
    if unit == "%" and len(bare) and 10 * np.median(bare) < np.median(percent):
        return ""
    return _OPPOSITE[unit] if unit in ("S", "W") and _OPPOSITE[unit] in n_of else unit


def _factors(units: np.ndarray, unit: str) -> np.ndarray:
    """By which numbers with these units become numbers with this one; NaN for other units."""
    known = (units == unit) | (units == "") | ((units == _SCALED) & (unit == ""))
    factors = np.where(known, 1.0, np.nan)
    if unit in _OPPOSITE:
        factors[units == _OPPOSITE[unit]] = -1.0
    if not unit:
        factors[units == "%"] = 0.01
    return factors


def marks_of(different: Any) -> tuple[int, list[str]]:
    """(1 if more of these texts are numbers with a decimal comma than with a point, −1 if fewer, 0 if most are none; those that are other numbers)."""
    values = [parsed(different, comma)[0] for comma in (False, True)]
    counts = [int((~np.isnan(part)).sum()) for part in values]
    vote = int(np.sign(counts[1] - counts[0])) if 2 * max(counts) >= len(different) else 0
    return vote, different.filter(pa.array(differing(*values))).to_pylist()


def differing(a: np.ndarray, b: np.ndarray) -> Bool[np.ndarray, " N"]:
    """Which numbers are there in both and differ."""
    return (a != b) & ~np.isnan(a) & ~np.isnan(b)


def _dates(different: Any, texts: Any, of_table: bool | None) -> tuple[Reading, str] | None:
    iso = times_of_texts(different)
    if iso is not None:
        return Reading("time", zoned=iso.zoned), ""
    day_first, said = order_of(texts, of_table)
    found = dates_of(texts, day_first)
    n, zoned = int(found.is_date.sum()), int(found.zoned.sum())
    if n == 0:
        return None
    return Reading("time", day_first=day_first, zoned=2 * zoned > n), said


def _spans(different: Any, texts: Any) -> tuple[Reading, str] | None:
    return (Reading("span"), "times of day or durations, in hours")


def _number_form(comma: bool) -> str:
    mark, thousand = (",", r"\.") if comma else (r"\.", ",")
    digits = rf"[1-9]\d{{0,2}}(?:{thousand}\d{{3}})+|\d{{1,3}}(?:{_SPACES}\d{{3}})+|\d+"
    number = rf"(?:{digits})(?:{mark}\d*)?|{mark}\d+"
    return rf"^(?P<sign>[-+−]?)\s?(?P<before>{_CURRENCY}|)\s?(?P<again>[-+−]?)(?P<number>{number})(?P<exponent>(?:[eE][-+]?\d+)?)(?P<gap>\s?)(?P<after>(?:{_UNIT})?)$"


_NUMBER = {comma: _number_form(comma) for comma in (False, True)}


def parsed(texts: Any, comma: bool) -> tuple[np.ndarray, np.ndarray]:
    """(Numbers, NaN where a text is none; their units)."""
    trimmed = pc.call_function("utf8_trim_whitespace", [texts])
    trimmed = _replaced(trimmed, r"^\(([^()+−-]+)\)$", r"-\1")  # as accountants write negative numbers
    found = pc.call_function("extract_regex", [trimmed], pc.ExtractRegexOptions(_NUMBER[comma]))
    values, units = np.full(len(texts), np.nan), np.full(len(texts), "", dtype=object)
    there = found.is_valid().to_numpy(zero_copy_only=False)
    if not there.any():
        return values, units
    part = dict(zip(_PARTS, found.drop_null().flatten(), strict=True))
    drop = f"{_SPACES}|\\." if comma else f"{_SPACES}|,"
    number = _replaced(part["number"], drop, "")
    number = _replaced(number, ",", ".") if comma else number
    text = pc.call_function(
        "binary_join_element_wise", [number, part["exponent"], pa.scalar("", number.type)]
    )
    size = np.asarray(text.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    signs = [np.isin(_objects(part[name]), ("-", "−")) for name in ("sign", "again")]
    names, scales = zip(*map(_unit, *(_objects(part[n]) for n in ("before", "gap", "after"))), strict=True)
    values[there] = np.where(signs[0] ^ signs[1], -size, size) * scales
    units[there] = np.array(names, dtype=object)
    return values, units


def _unit(before: str, gap: str, after: str) -> tuple[str, float]:
    """(The unit, the factor) of a number between these; "B" alone may be a code."""
    after = after.strip()
    scale = _SCALES.get(after, 1.0) if before or not gap and after != "B" else 1.0
    direction = after.lstrip("° ")
    return before or (_SCALED if scale > 1 else direction if direction in _OPPOSITE else after), scale


_PARTS = ("sign", "before", "again", "number", "exponent", "gap", "after")


def _hours(texts: Any) -> np.ndarray:
    """Of times of day and durations; NaN where a text is none."""
    trimmed = pc.call_function("utf8_trim_whitespace", [texts])
    options = [pc.ExtractRegexOptions(form) for form in (_SPAN, _DURATION)]
    forms = [pc.call_function("extract_regex", [trimmed], option).to_pylist() for option in options]
    hours = np.full(len(texts), np.nan)
    for row, (part, spelt) in enumerate(zip(*forms, strict=True)):
        if part is None:
            if spelt is not None and any(spelt.values()):
                d, h, m, s = (float(spelt[name] or 0) for name in "DHMS")
                hours[row] = 24 * d + h + m / 60 + s / 3600
            continue
        hour, half = int(part["H"]), part["ap"].lower()
        hour = hour % 12 + 12 * (half == "pm") if half else hour
        size = hour + int(part["M"]) / 60 + float(part["S"] or 0) / 3600
        hours[row] = -size if part["sign"] else size
    return hours


def _replaced(texts: Any, pattern: str, by: str) -> Any:
    return pc.call_function(
        "replace_substring_regex", [texts], pc.ReplaceSubstringOptions(pattern=pattern, replacement=by)
    )


def _objects(texts: Any) -> np.ndarray:
    return texts.to_numpy(zero_copy_only=False).astype(object)
