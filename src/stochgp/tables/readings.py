"""Texts that are numbers, dates, times of day or yes and no, as people write them: how a column does, found once and kept."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from .columns import Column, first_of, is_number, whole
from .times import times_of_texts
from .written_dates import are_dates, certain_order, dates_of, digits_of, order_of

FEWEST, SHARE = 20, 0.01  # rows from which a cell, and cells of that share, may be no number or date
FEWEST_DATES = 13  # different numbers of which all are dates: by chance one 6-digit number in eight is, one of more digits in thirty; 12 months in a row are
LOOKED_AT = 200  # different texts by which most columns are seen to be none of these
_PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("off", "on"))
_SPACES = "[ '\u2019\u00a0\u202f]"
_CURRENCY = r"\p{Sc}|US\$|R\$|A\$|C\$|Rs\.?|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD"
_UNIT = r"(?:\p{Sc}|%|‰|°|µ|\p{L})[\p{L}\p{N}\p{Sc}°%‰/·^²³µ. -]{0,11}"
_SPAN = r"^(?P<sign>-?)(?P<H>\d{1,3}):(?P<M>[0-5]\d)(?::(?P<S>[0-5]\d(?:\.\d+)?))?\s*(?P<ap>[AaPp][Mm])?$"


@dataclass(frozen=True)
class Reading:
    """How the texts of a column are read.

    number    a number, its decimal mark a comma where `comma`, without marks between thousands and without `unit`, which stands before or
              after it in all rows
    boolean   1 for yes, true, y, t and on, 0 for their opposites
    time      a date (`written_dates`), the day before the month where `day_first`; where `digits` it may come as a number, 20141013
    span      hours, of 01:20:00
    """

    kind: Literal["number", "boolean", "time", "span"]
    comma: bool = False
    unit: str = ""
    day_first: bool = True
    zoned: bool = False
    digits: bool = False


DIGITS = Reading("time", digits=True)


def reading_of(
    column: Column, strict: bool = False, day_first: bool | None = None
) -> tuple[Reading | None, str]:
    """(How a column of texts is read, None where they are levels; what is to be said of it).

    `day_first` is the order of day and month in other columns (`day_first_of`). At most a hundredth of the cells, and one of at least 20, may be unreadable; none where `strict`.
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
    kinds = (_numbers, dates, _spans)
    if column.category:  # numbers there are codes
        kinds = () if all_digits(column) else (dates,)
    for find in kinds:
        if (candidate := find(some, some)) is None or 2 * _n_read(candidate[0], some) < len(some):
            continue
        found = find(different, texts)
        if found is not None and n - _n_read(found[0], texts) <= most:
            return found
    return None, ""


def day_first_of(columns: Iterable[Column]) -> bool | None:
    """Whether the day comes before the month in the dates of a table; None if no column of texts shows it, or if two columns differ."""
    orders = set()
    for column in columns:
        different: Any = whole(column.values.drop_null()).unique() if column.kind == "text" else ()
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
    return replace(column, kind=kind, values=values, missing=missing, zoned=reading.zoned), bad


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


def unread(column: Column, bad: Bool[np.ndarray, " N"], what: str) -> str:
    """What is said of cells that cannot be read; "" of none."""
    if not bad.any():
        return ""
    row = int(np.argmax(bad))
    shown = column.values[row].as_py()
    return f"{int(bad.sum())} value(s) that are no {what} are taken as missing, {first_of(repr(shown), row)}"


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
        values, units = _parsed(different, reading.comma)
        values = np.where((units == reading.unit) | (units == ""), values, np.nan)
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


def _numbers(different: Any, texts: Any) -> tuple[Reading, str] | None:
    """By the decimal mark that reads more of the different texts, a point where both do; and by the unit that most have."""
    both = [_parsed(different, comma) for comma in (False, True)]
    counts = [int((~np.isnan(values)).sum()) for values, _ in both]
    if max(counts) == 0:
        return None
    comma = counts[1] > counts[0]
    values, units = both[comma]
    names, count = np.unique(units[~np.isnan(values)].astype(str), return_counts=True)
    unit = str(names[np.argmax(count)])
    shown = next((text for text in different.to_pylist() if not is_number(text)), "")
    said = [f"numbers written as {shown!r}"] if shown else []
    said += ["the comma is the decimal mark"] if comma else []
    said += [f"in {unit}"] if unit else []
    return Reading("number", comma, unit), ", ".join(said)


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
    return rf"^(?P<sign>[-+−]?)\s?(?P<before>{_CURRENCY}|)\s?(?P<again>[-+−]?)(?P<number>{number})(?P<exponent>(?:[eE][-+]?\d+)?)\s?(?P<after>(?:{_UNIT})?)$"


_NUMBER = {comma: _number_form(comma) for comma in (False, True)}


def _parsed(texts: Any, comma: bool) -> tuple[np.ndarray, np.ndarray]:
    """(Numbers, NaN where a text is none; their units)."""
    trimmed = pc.call_function("utf8_trim_whitespace", [texts])
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
    values[there] = np.where(signs[0] ^ signs[1], -size, size)
    before, after = _objects(part["before"]), _objects(part["after"])
    units[there] = np.array([(a or b).strip() for a, b in zip(before, after, strict=True)], dtype=object)
    return values, units


_PARTS = ("sign", "before", "again", "number", "exponent", "after")


def _hours(texts: Any) -> np.ndarray:
    """Of times of day and durations; NaN where a text is none."""
    trimmed = pc.call_function("utf8_trim_whitespace", [texts])
    found = pc.call_function("extract_regex", [trimmed], pc.ExtractRegexOptions(_SPAN))
    hours = np.full(len(texts), np.nan)
    for row, part in enumerate(found.to_pylist()):
        if part is None:
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
