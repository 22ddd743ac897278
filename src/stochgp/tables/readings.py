"""Texts that stand for numbers, dates, times of day, or yes and no."""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int

from . import times
from .columns import Column, is_number, joined

FEWEST, SHARE = 20, 0.01  # of at least 20 rows, at most this share of the cells may be unreadable
FEWEST_DATES = 13  # minimum number of different dates; 12 successive months are too few
FIRST_DATE, LAST_DATE = 180001, 21991231235959  # range of whole numbers that may be dates
LOOKED_AT = 200  # different texts to find the reading
# With these currencies, 1,200 is 1200.
POINT_MONEY = ("$", "US$", "A$", "C$", "£", "¥", "₹", "Rs", "Rs.", "USD", "GBP", "JPY", "CNY", "INR")
_PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("off", "on"))
_WORDS = {word: float(value) for pair in _PAIRS for value, word in enumerate(pair)}
_SPACES = "[ '\u2019\u00a0\u202f]"
_SIGNS = "$¢£¤¥֏؋৲৳฿៛\u20a0-\u20c0﷼﹩＄￠￡￥￦"  # of currencies
_CURRENCY = rf"[{_SIGNS}]|US\$|R\$|A\$|C\$|Rs\.?|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD"
_UNIT = rf"(?:[{_SIGNS}%‰°µ]|[^\W\d_])(?:[^\W_]|[{_SIGNS}°%‰/·^µ. -]){{0,11}}"
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "bn": 1e9, "B": 1e9}  # after a number, as in 1.2k or $1.3B
_SCALED = "k, M"  # the unit of such numbers without a currency
_CLOCK = re.compile(r"(-?)(\d{1,3}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?\s*([AaPp][Mm])?", re.ASCII)
_DURATION = re.compile(
    r"(?=\d)(?:(\d+)\s*d(?:ays?)?)?[\s,]*(?:(\d+)\s*h(?:rs?|ours?)?)?[\s,]*(?:(\d+)\s*m(?:ins?|inutes?)?)?[\s,]*"
    r"(?:(\d+(?:\.\d+)?)\s*s(?:ecs?|econds?)?)?",
    re.ASCII,
)


def _number_form(comma: bool) -> re.Pattern[str]:
    mark, thousand = (",", r"\.") if comma else (r"\.", ",")
    digits = rf"[1-9][0-9]{{0,2}}(?:{thousand}[0-9]{{3}})+|[0-9]{{1,3}}(?:{_SPACES}[0-9]{{3}})+|[0-9]+"
    number = rf"(?:{digits})(?:{mark}[0-9]*)?|{mark}[0-9]+"
    return re.compile(
        rf"([-+−]?)\s?({_CURRENCY}|)\s?([-+−]?)({number})((?:[eE][-+]?[0-9]+)?)(\s?)((?:{_UNIT})?)"
    )


_NUMBER = {comma: _number_form(comma) for comma in (False, True)}
_SEPARATORS = {comma: re.compile(_SPACES + (r"|\." if comma else "|,")) for comma in (False, True)}


@dataclass(frozen=True)
class Reading:
    """Rules to read the texts of a column as numbers, booleans, times or durations.

    "number": the texts are numbers, perhaps with a `unit`. If `comma` is True, the decimal mark is a comma.
    For example, (5) is −5 and 1.2k is 1200. In a column without a unit, 15% is 0.15.
    "boolean": the texts yes, true, y, t and on are 1, and their opposites are 0.
    "time": the texts are dates. If `day_first` is True, the day is before the month. If `digits` is True,
    20141013 is a date.
    "span": texts such as 01:20:00 and 1h 20m become a number of hours.
    """

    kind: Literal["number", "boolean", "time", "span"]
    comma: bool = False
    unit: str = ""
    day_first: bool = True
    zoned: bool = False
    digits: bool = False


DIGITS = Reading("time", digits=True)
Found = tuple[Reading, str, str]  # a reading, a note and a warning


def reading_of(
    column: Column, strict: bool = False, day_first: bool | None = None, digits_are_dates: bool = False
) -> tuple[Reading | None, Column]:
    """Return the reading of a column (None: texts are categories), and the new column.

    With at least 20 texts, one text or 1 % of the texts may be unreadable; with `strict`, no text.
    """
    reading, read = _reading_of_texts(column, strict, day_first) if column.kind == "text" else (None, column)
    dates = None
    if digits_are_dates and (reading is None or all_digits(column)):
        dates = numbers_as_dates(read)
    return (reading, read) if dates is None else (DIGITS, dates)


def _reading_of_texts(column: Column, strict: bool, day_first: bool | None) -> tuple[Reading | None, Column]:
    different, codes = _coded(column)
    n = len(codes)
    if n == 0:
        return None, column
    if not column.category and len(different) <= 2:
        words = {word.strip().lower() for word in different.to_pylist()}
        if pair := next((pair for pair in _PAIRS if words <= set(pair)), None):
            yes = Reading("boolean")
            return yes, _noted(as_read(yes, column)[0], f"{pair[1]!r} is 1, {pair[0]!r} is 0")
    some = _some(different)
    most = 0 if strict or n < FEWEST else max(1, int(SHARE * n))
    spans = lambda different, codes: (Reading("span"), "times of day or durations, in hours", "")
    kinds = (_numbers, partial(_dates, of_table=day_first), spans)
    if column.category:  # numbers of categorical columns are codes
        kinds = () if all_digits(column) else kinds[1:2]
    for find in kinds:
        first = find(some, np.arange(len(some)))
        if first is None or 2 * read_texts(first[0], some)[1].sum() < len(some):
            continue
        if found := find(different, codes):
            reading, note, doubt = found
            read, bad = as_read(reading, replace(column, caution=joined(column.caution, doubt)))
            if bad.sum() <= most:
                return reading, _noted(read, note)
    if column.category or (nearly := _numbers(different, codes)) is None:
        return None, column
    bad = as_read(nearly[0], column)[1]
    if 2 * bad.sum() > n:
        return None, column
    said = f"{bad.sum()} of {n} values are not numbers, {column.first(bad)}; the whole column is read as categories"
    return None, replace(column, caution=joined(column.caution, said))


def _noted(column: Column, note: str) -> Column:
    return replace(column, note=joined(column.note, note))


def day_first_of(columns: Iterable[Column]) -> bool | None:
    """Return True if dates of a table begin with the day; None if columns differ or are vague."""
    orders = set()
    for column in columns:
        if column.kind == "text" and not column.missing.all():
            orders.add(times.certain_order(times.dates_of(_some(_coded(column)[0]), True)))
    orders -= {None}
    return orders.pop() if len(orders) == 1 else None


def _some(different: Any) -> Any:
    return different.take(pa.array(np.unique(np.linspace(0, len(different) - 1, LOOKED_AT).astype(int))))


def as_read(reading: Reading, column: Column) -> tuple[Column, Bool[np.ndarray, " N"]]:
    """Return the column with the values of its texts, and a mask of unreadable cells."""
    different, codes = _coded(column)
    read, is_read = read_texts(reading, different)
    bad, values = np.zeros(len(column.missing), bool), np.zeros(len(column.missing), read.dtype)
    values[~column.missing], bad[~column.missing] = read[codes], ~is_read[codes]
    missing, kind = column.missing | bad, reading.kind
    if kind != "time":
        values[missing] = np.nan
    what = {"number": "numbers", "time": "dates", "boolean": "yes or no", "span": "times"}[kind]
    said = f"{bad.sum()} value(s) that are not {what} are treated as missing, " if bad.any() else ""
    caution = joined(column.caution, said and said + column.first(bad))
    as_kind: Any = "number" if kind == "span" else kind
    read = replace(column, kind=as_kind, values=values, missing=missing, zoned=reading.zoned, caution=caution)
    return read, bad


def _coded(column: Column) -> tuple[Any, Int[np.ndarray, " n"]]:
    """Return the different texts of a column, and the index of each text that is present."""
    coded = column.values.drop_null().dictionary_encode()
    return coded.dictionary, coded.indices.to_numpy()


def with_digits(column: Column) -> Column:
    """Return a column of numbers as texts, such as "20141013" for 20141013.0."""
    texts = [f"{x:.0f}" if x.is_integer() else "" for x in column.values.tolist()]
    digits = pa.array(np.array(texts, object), pa.large_string(), mask=column.missing)
    return replace(column, kind="text", values=digits)


def all_digits(column: Column) -> bool:
    """Return True if texts have only digits, such as 20141013, but not 20141013.0."""
    found = pc.call_function("utf8_is_digit", [column.values.drop_null()])
    return bool(pc.call_function("all", [found]).as_py())


def numbers_as_dates(column: Column) -> Column | None:
    """Return numbers such as 20141013 or 201410 as dates, or None if some are not dates."""
    if column.kind != "number":
        return None
    numbers = column.values[~column.missing]
    low, high = numbers.min(initial=np.inf), numbers.max(initial=0)
    if not (FIRST_DATE <= low <= high <= LAST_DATE and (numbers == np.floor(numbers)).all()):
        return None
    if len(str(int(low))) != len(str(int(high))) or len(np.unique(numbers)) < FEWEST_DATES:
        return None
    some = replace(column, values=column.values[:LOOKED_AT], missing=column.missing[:LOOKED_AT])
    for part in (some, column):
        found, bad = as_read(DIGITS, with_digits(part))
        if bad.any():
            return None
    shown = f"{numbers[0]:.0f} {times.TAKEN} {times.day_of(found.values[~found.missing][0])}"
    return _noted(found, f"whole numbers are read as dates: {shown}")


def read_texts(reading: Reading, texts: Any) -> tuple[np.ndarray, Bool[np.ndarray, " n"]]:
    """Return the values of different texts, and a mask of readable texts."""
    if reading.kind == "time":
        found = times.dates_of(texts, reading.day_first)
        return found["micros"], found["is_date"] & (found["zoned"] == reading.zoned)
    if reading.kind == "number":
        values, units = parsed(texts, reading.comma)
        known = (units == reading.unit) | (units == "") | ((units == _SCALED) & (reading.unit == ""))
        percent = (units == "%") & (reading.unit == "")
        values = np.where(percent, 0.01 * values, np.where(known, values, np.nan))
    elif reading.kind == "boolean":
        words = [text.strip().lower() for text in texts.to_pylist()]
        values = np.array([_WORDS.get(word, np.nan) for word in words], np.float64)
    else:
        values = np.array([_hours(text.strip()) for text in texts.to_pylist()], np.float64)
    return values, ~np.isnan(values)


def parsed(texts: Any, comma: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (NaN for other texts) and their units."""
    found = [_number(text.strip(), comma) for text in texts.to_pylist()]
    values, units = zip(*found, strict=True) if found else ((), ())
    return np.array(values, np.float64), np.array(units, dtype=object)


def _number(text: str, comma: bool) -> tuple[float, str]:
    """Return a number (NaN for other texts) and its unit. A final "B" alone may be a code."""
    if text[:1] == "(" and text[-1:] == ")" and text[1:2] not in ("-", "−", "+"):  # negative, in accounting
        text = f"-{text[1:-1]}"
    match = _NUMBER[comma].fullmatch(text)
    if match is None:
        return np.nan, ""
    sign, before, again, number, exponent, gap, after = match.groups()
    number = _SEPARATORS[comma].sub("", number).replace(",", ".")
    size, after = float(number + exponent), after.strip()
    scale = _SCALES.get(after, 1.0) if before or not gap and after != "B" else 1.0
    minus = ((sign or "+") in "-−") != ((again or "+") in "-−")
    return (-size if minus else size) * scale, before or (_SCALED if scale > 1 else after)


def _numbers(different: Any, codes: Int[np.ndarray, " N"]) -> Found | None:
    """Return the reading as numbers, with the decimal mark that suits more of the texts."""
    (values, units), comma = parsed(different, False), False
    if np.isnan(values).any():
        others = parsed(different, True)
        comma = bool(np.isnan(others[0]).sum() < np.isnan(values).sum())
        values, units = others if comma else (values, units)
    there = ~np.isnan(values)
    if not there.any():
        return None
    unit = _unit_of(values, units, np.bincount(codes))
    odd = (text for text in different.filter(pa.array(there)).to_pylist() if not is_number(text))
    said = [f"numbers written as {text!r}" for text in itertools.islice(odd, 1)]
    said += ["the comma is the decimal mark"] if comma else []
    said += [f"in {unit}"] if unit else []
    first, doubt = different[0].as_py(), ""
    if unit not in POINT_MONEY and "," in first:
        others = parsed(different, not comma)[0]
        if not ((values == others).any() or np.isnan(values + others).any()):
            doubt = f"in all {len(codes)} values, {first[-4]!r} may separate thousands or be the decimal mark; {first!r} is read as {values[0]:g}"
    return Reading("number", comma, unit), ", ".join(said), doubt


def _unit_of(values: np.ndarray, units: np.ndarray, count: np.ndarray) -> str:
    """Return the most frequent unit, or "" if few numbers have one."""
    there, n = ~np.isnan(values), count.sum()
    names = sorted(set(units[there]) - {"", _SCALED})
    n_of = {name: int(count[there & (units == name)].sum()) for name in names}
    unit = max(n_of, key=n_of.__getitem__, default="")
    if n_of.get(unit, 0) <= (0 if n < FEWEST else max(1, SHARE * n)):
        return ""
    bare, percent = (np.abs(values[there & (units == name) & (values != 0)]) for name in ("", "%"))
    if unit == "%" and len(bare) and 10 * np.median(bare) < np.median(percent):
        return ""
    return unit


def _dates(different: Any, codes: Int[np.ndarray, " N"], of_table: bool | None) -> Found | None:
    day_first, note, found = times.order_of(different, codes, of_table)
    found = found[codes]
    zoned = bool(2 * found["zoned"].sum() > found["is_date"].sum())
    return (Reading("time", day_first=day_first, zoned=zoned), note, "") if found["is_date"].any() else None


def _hours(text: str) -> float:
    """Return the hours of a time of day or a duration; NaN for other texts."""
    if match := _CLOCK.fullmatch(text):
        sign, H, M, S, half = match.groups()
        hour = int(H) if half is None else int(H) % 12 + 12 * (half[0] in "pP")
        size = hour + int(M) / 60 + float(S or 0) / 3600
        return -size if sign else size
    if match := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return 24 * days + hours + minutes / 60 + seconds / 3600
    return float("nan")
