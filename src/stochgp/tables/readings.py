"""Texts that are numbers, dates, times of day or yes and no: how a column writes them, found once and kept."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from . import times
from .columns import Column, both, is_number, whole

FEWEST, SHARE = 20, 0.01  # rows from which this share of the cells may be no number or date
FEWEST_DATES = 13  # different numbers of which all are dates: by chance one in eight of 6 digits is; 12 months in a row are
LOOKED_AT = 200  # different texts that show how most columns are read
POINT_MONEY = frozenset(
    ["$", "US$", "A$", "C$", "£", "¥", "₹", "Rs", "Rs.", "USD", "GBP", "JPY", "CNY", "INR"]
)  # 1,200 is 1200
_PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("off", "on"))
_WORDS = {word: float(value) for pair in _PAIRS for value, word in enumerate(pair)}
_SPACES = "[ '\u2019\u00a0\u202f]"
_CURRENCY = r"\p{Sc}|US\$|R\$|A\$|C\$|Rs\.?|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD"
_UNIT = r"(?:\p{Sc}|%|‰|°|µ|\p{L})[\p{L}\p{N}\p{Sc}°%‰/·^²³µ. -]{0,11}"
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "bn": 1e9, "B": 1e9}  # after a number: 1.2k, $1.3B
_SCALED = "k, M"  # the unit of such numbers without a currency
_DURATION = r"^(?:(?P<D>\d+)\s*d(?:ays?)?)?[\s,]*(?:(?P<H>\d+)\s*h(?:rs?|ours?)?)?[\s,]*(?:(?P<M>\d+)\s*m(?:ins?|inutes?)?)?[\s,]*(?:(?P<S>\d+(?:\.\d+)?)\s*s(?:ecs?|econds?)?)?$"
_SPAN = r"^(?P<sign>-?)(?P<H>\d{1,3}):(?P<M>[0-5]\d)(?::(?P<S>[0-5]\d(?:\.\d+)?))?\s*(?P<ap>[AaPp][Mm])?$"


def _number_form(comma: bool) -> str:
    mark, thousand = (",", r"\.") if comma else (r"\.", ",")
    digits = rf"[1-9]\d{{0,2}}(?:{thousand}\d{{3}})+|\d{{1,3}}(?:{_SPACES}\d{{3}})+|\d+"
    number = rf"(?:{digits})(?:{mark}\d*)?|{mark}\d+"
    return rf"^(?P<sign>[-+−]?)\s?(?P<before>{_CURRENCY}|)\s?(?P<again>[-+−]?)(?P<number>{number})(?P<exponent>(?:[eE][-+]?\d+)?)(?P<gap>\s?)(?P<after>(?:{_UNIT})?)$"


_NUMBER = {comma: _number_form(comma) for comma in (False, True)}
_PARTS = ("sign", "before", "again", "number", "exponent", "gap", "after")


@dataclass(frozen=True)
class Reading:
    """How the texts of a column are read.

    number    a number, its decimal mark a comma where `comma`, without marks between thousands and without `unit`, which stands before or
              after it; (5) is −5, 1.2k is 1200, and without a unit 15% is 0.15
    boolean   1 for yes, true, y, t and on, 0 for their opposites
    time      a date (`times`), the day before the month where `day_first`; where `digits` it may come as a number, 20141013
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
    column: Column, strict: bool = False, day_first: bool | None = None
) -> tuple[Reading | None, str]:
    """(How a column of texts is read, None if they are levels; a note).

    `day_first` is the order of day and month in other columns.
    At most a hundredth of the cells, or one of at least 20, may be unreadable; none if `strict`.
    """
    texts = whole(column.values.drop_null())
    n = len(texts)
    if n == 0:
        return None, ""
    different = texts.unique()
    if not column.category and len(different) <= 2:
        words = {word.strip().lower() for word in different.to_pylist()}
        if pair := next((pair for pair in _PAIRS if words <= set(pair)), None):
            return Reading("boolean"), f"{pair[1]!r} is 1, {pair[0]!r} is 0"
    some = different.take(pa.array(np.unique(np.linspace(0, len(different) - 1, LOOKED_AT).astype(int))))
    most = 0 if strict or n < FEWEST else max(1, int(SHARE * n))
    dates = partial(_dates, of_table=day_first)
    kinds = (_numbers, dates, _spans)
    if column.category:  # numbers there are codes
        kinds = () if all_digits(column) else (dates,)
    n_read = lambda reading, texts: int(read_texts(reading, texts)[1].sum())
    for find in kinds:
        if (candidate := find(some, some)) is None or 2 * n_read(candidate[0], some) < len(some):
            continue
        found = find(different, texts)
        if found is not None and n - n_read(found[0], texts) <= most:
            return found
    return None, ""


def day_first_of(columns: Iterable[Column]) -> bool | None:
    """Whether the day comes before the month in the dates of a table; None if no column shows it, or if two differ."""
    orders = set()
    for column in columns:
        different: Any = whole(column.values.drop_null()).unique() if column.kind == "text" else ()
        if len(different) and times.dates_of(different.slice(0, LOOKED_AT), True)["first"].any():
            orders.add(times.certain_order(times.dates_of(different, True)))
    orders -= {None}
    return orders.pop() if len(orders) == 1 else None


def as_read(reading: Reading, column: Column) -> tuple[Column, Bool[np.ndarray, " N"]]:
    """(The column of values that its texts stand for, missing if they cannot be read; which cells cannot)."""
    texts, there = whole(column.values), np.flatnonzero(~column.missing)
    read, is_read = read_texts(reading, texts.take(pa.array(there)))
    is_time = reading.kind == "time"
    values = np.zeros(len(column.missing), np.int64 if is_time else np.float64)
    bad = np.zeros(len(values), bool)
    values[there], bad[there] = read, ~is_read
    missing = column.missing | bad
    if not is_time:
        values[missing] = np.nan
    what = {"number": "numbers", "time": "dates", "boolean": "yes or no", "span": "times"}[reading.kind]
    said = f"{bad.sum()} value(s) that are no {what} are taken as missing, " if bad.any() else ""
    caution = both(column.caution, said and said + column.first(bad))
    kind: Any = "number" if reading.kind == "span" else reading.kind
    return replace(
        column, kind=kind, values=values, missing=missing, zoned=reading.zoned, caution=caution
    ), bad


def with_digits(column: Column) -> Column:
    """A column of numbers as texts, 20141013.0 as "20141013"."""
    texts = times.digits_of(np.where(column.missing, 0.0, column.values))
    absent = pc.call_function("if_else", [pa.array(column.missing), pa.scalar(None, texts.type), texts])
    return replace(column, kind="text", values=absent)


def all_digits(column: Column) -> bool:
    """Whether texts are digits alone: 20141013, and not 20141013.0 or 20,141,013."""
    found = pc.call_function("utf8_is_digit", [column.values.drop_null()])
    return bool(pc.call_function("all", [found]).as_py())


def numbers_as_dates(column: Column, fewest: int = FEWEST_DATES) -> Column | None:
    """Numbers that are all dates such as 20141013, of which at least so many differ, as dates; None for others."""
    if column.kind != "number":
        return None
    numbers = column.values[~column.missing]
    if not times.are_dates(numbers) or len(np.unique(numbers)) < fewest:
        return None
    return as_read(DIGITS, with_digits(column))[0]


def read_texts(reading: Reading, texts: Any) -> tuple[np.ndarray, Bool[np.ndarray, " N"]]:
    """(Values of texts in which none is missing, which could be read)."""
    if reading.kind == "time":
        iso = times.times_of_texts(texts)
        if iso is not None and iso[1] == reading.zoned:
            return iso[0], np.ones(len(texts), bool)
        found = times.dates_of(texts, reading.day_first)
        return found["micros"], found["is_date"] & (found["zoned"] == reading.zoned)
    coded = texts.dictionary_encode()
    different, codes = coded.dictionary, coded.indices.to_numpy(zero_copy_only=False)
    if reading.kind == "number":
        values, units = parsed(different, reading.comma)
        values = values * _factors(units, reading.unit)
    elif reading.kind == "boolean":
        words = [text.strip().lower() for text in different.to_pylist()]
        values = np.array([_WORDS.get(word, np.nan) for word in words], np.float64)
    else:
        values = _hours(different)
    values = values[codes] if len(values) else np.zeros(0)
    return values, ~np.isnan(values)


def doubts(column: Column, reading: Reading | None) -> str:
    """What may be wrong in how a training column of texts is read; "" for nothing."""
    there, texts = ~column.missing, whole(column.values.drop_null())
    different = texts.unique()
    if reading is None and not column.category and there.any():
        nearly = _numbers(different, texts)
        bad = there if nearly is None else as_read(nearly[0], column)[1]
        if 2 * bad.sum() <= there.sum():
            return f"{bad.sum()} of {there.sum()} values are no numbers as the others are, {column.first(bad)}: all are taken as categories"
    if reading is None or reading.kind != "number" or reading.unit in POINT_MONEY:
        return ""
    values, others = (parsed(different, comma)[0] for comma in (reading.comma, not reading.comma))
    first = different[0].as_py()
    if (values == others).any() or np.isnan(values + others).any() or "," not in first:
        return ""
    return f"in all {there.sum()} values {first[-4]!r} may stand between thousands or be the decimal mark: {first!r} is read as {values[0]:g}"


def parsed(texts: Any, comma: bool) -> tuple[np.ndarray, np.ndarray]:
    """(Numbers, NaN if a text is none; their units)."""
    trimmed = _replaced(
        times.trim(texts), r"^\(([^()+−-]+)\)$", r"-\1"
    )  # as accountants write negative numbers
    found = pc.call_function("extract_regex", [trimmed], pc.ExtractRegexOptions(_NUMBER[comma]))
    values, units = np.full(len(texts), np.nan), np.full(len(texts), "", dtype=object)
    there = found.is_valid().to_numpy(zero_copy_only=False)
    if not there.any():
        return values, units
    part = dict(zip(_PARTS, found.drop_null().flatten(), strict=True))
    number = _replaced(part["number"], _SPACES + (r"|\." if comma else "|,"), "")
    number = _replaced(number, ",", ".") if comma else number
    joined = [number, part["exponent"], pa.scalar("", number.type)]
    text = pc.call_function("binary_join_element_wise", joined)
    size = np.asarray(text.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    signs = [np.isin(part[name].to_pylist(), ("-", "−")) for name in ("sign", "again")]
    of_units = map(_unit, *(part[name].to_pylist() for name in ("before", "gap", "after")))
    names, scales = zip(*of_units, strict=True)
    values[there] = np.where(signs[0] ^ signs[1], -size, size) * scales
    units[there] = np.array(names, dtype=object)
    return values, units


def _unit(before: str, gap: str, after: str) -> tuple[str, float]:
    """(The unit, the factor) of a number between these; "B" alone may be a code."""
    after = after.strip()
    scale = _SCALES.get(after, 1.0) if before or not gap and after != "B" else 1.0
    return before or (_SCALED if scale > 1 else after), scale


def _replaced(texts: Any, pattern: str, by: str) -> Any:
    options = pc.ReplaceSubstringOptions(pattern=pattern, replacement=by)
    return pc.call_function("replace_substring_regex", [texts], options)


def _numbers(different: Any, texts: Any) -> tuple[Reading, str] | None:
    """With the decimal mark that reads more of the different texts, a point if both do, and the unit of most."""
    marked = [parsed(different, comma) for comma in (False, True)]
    counts = [int((~np.isnan(values)).sum()) for values, _ in marked]
    if max(counts) == 0:
        return None
    comma = counts[1] > counts[0]
    values, units = marked[comma]
    unit = _unit_of(values, units, np.bincount(texts.dictionary_encode().indices.to_numpy()))
    readable = different.filter(pa.array(~np.isnan(values))).to_pylist()
    shown = next((text for text in readable if not is_number(text)), "")
    said = [f"numbers written as {shown!r}"] if shown else []
    said += ["the comma is the decimal mark"] if comma else []
    said += [f"in {unit}"] if unit else []
    return Reading("number", comma, unit), ", ".join(said)


def _unit_of(values: np.ndarray, units: np.ndarray, count: np.ndarray) -> str:
    """The unit of most of the different numbers, each there so often; "" if few have one, or if those in % stand beside fractions."""
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


def _factors(units: np.ndarray, unit: str) -> np.ndarray:
    """Factors from these units to this one; NaN for other units."""
    known = (units == unit) | (units == "") | ((units == _SCALED) & (unit == ""))
    factors = np.where(known, 1.0, np.nan)
    if not unit:
        factors[units == "%"] = 0.01
    return factors


def _dates(different: Any, texts: Any, of_table: bool | None) -> tuple[Reading, str] | None:
    iso = times.times_of_texts(different)
    if iso is not None:
        return Reading("time", zoned=iso[1]), ""
    day_first, said = times.order_of(texts, of_table)
    found = times.dates_of(texts, day_first)
    n, zoned = int(found["is_date"].sum()), int(found["zoned"].sum())
    return None if n == 0 else (Reading("time", day_first=day_first, zoned=2 * zoned > n), said)


def _spans(different: Any, texts: Any) -> tuple[Reading, str] | None:
    return Reading("span"), "times of day or durations, in hours"


def _hours(texts: Any) -> np.ndarray:
    """Of times of day and durations; NaN if a text is neither."""
    trimmed = times.trim(texts)
    options = [pc.ExtractRegexOptions(form) for form in (_SPAN, _DURATION)]
    forms = [pc.call_function("extract_regex", [trimmed], option).to_pylist() for option in options]
    hours = np.full(len(texts), np.nan)
    for row, (clock, spelt) in enumerate(zip(*forms, strict=True)):
        part = clock or (spelt if spelt and any(spelt.values()) else None)
        if part is None:
            continue
        half = (part.get("ap") or "").lower()
        hour = int(part["H"] or 0) % 12 + 12 * (half == "pm") if half else int(part["H"] or 0)
        size = 24 * int(part.get("D") or 0) + hour + int(part["M"] or 0) / 60 + float(part["S"] or 0) / 3600
        hours[row] = -size if part.get("sign") else size
    return hours
