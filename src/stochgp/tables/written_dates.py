"""Dates and times as people write them: 31/12/2017, 1/13/17 0:10, 13-Jan-2017, Jan 13, 2017 1:20 PM, 20141013T000000, 2014:10:07 01:20, 20141013, 201410.

Months and quarters are read as their first day: 2014-01, 01/2014, 2014M01, Jan-14, March 2014, 2014 Mar, 2014Q1, Q1 2014.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64

from .columns import LARGEST_INTEGER, whole
from .times import DAY, HOUR, YEAR

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\.?,? +)?"
_CLOCK = (
    r"(?P<H>\d{1,2})(?::?(?P<M>\d{2})(?::?(?P<S>\d{2})(?P<f>[.,]\d+)?)?)?"
    r"\s*(?P<ap>[AaPp]\.?[Mm]\.?)?\s*(?P<z>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?"
)
_YEAR = r"(?P<y>(?:1[89]|2[01])\d{2})"
_DAY = r"(?P<d>\d{1,2})(?:st|nd|rd|th)?"
_FORMS = tuple(
    f"^{_WEEKDAY}{form}$"
    for form in (
        rf"(?P<y>\d{{4}})[-/.:](?P<m>\d{{1,2}})[-/.:](?P<d>\d{{1,2}})(?:[T ,:]\s*{_CLOCK})?",
        rf"(?P<a>\d{{1,2}})[-/.](?P<b>\d{{1,2}})[-/.](?P<y>\d{{4}}|\d{{2}})(?:[T ,:]\s*{_CLOCK})?",
        rf"(?P<y>(?:1[89]|2[01])\d{{2}})(?P<m>\d{{2}})(?:(?P<d>\d{{2}})(?:[T ]?{_CLOCK})?)?",
        rf"{_DAY}[-/ .]*(?P<mon>[A-Za-z]{{3,9}})[-/ .,]*(?P<y>\d{{4}}|\d{{2}})(?:[T ,:]\s*{_CLOCK})?",
        rf"(?P<mon>[A-Za-z]{{3,9}})\.?[- ]*{_DAY}[-, ]+(?P<y>\d{{4}})(?:[T ,:]\s*{_CLOCK})?",
        rf"{_YEAR}(?:[-/. ]?M|[-/.])(?P<m>\d{{1,2}})",
        rf"(?P<m>\d{{1,2}})[-/.]{_YEAR}",
        rf"{_YEAR}[-/ ]?[Qq](?P<q>[1-4])",
        rf"[Qq](?P<q>[1-4])[-/ ]?{_YEAR}",
        rf"{_YEAR}[-/ ](?P<mon>[A-Za-z]{{3,9}})",
        rf"(?P<mon>[A-Za-z]{{3,9}})\.?[-/ ]?{_YEAR}",
        r"(?P<mon>[A-Za-z]{3,9})[-/']+(?P<y>\d{2})",
    )
)
TAKEN = "is taken as"  # in what is said of a reading that may be wrong
_SMALLEST, _LARGEST = 180001, 21991231235959  # whole numbers that may be dates
_LENGTHS = {6, 8, 10, 12, 14}  # digits of a month, a day, an hour, a minute, a second
_BY_NUMBERS = 1  # the form in which day and month may change places
EVEN = 1.15  # largest step of evenly spaced dates, in smallest ones: months have 28 to 31 days
_CENTURY = 69  # two digits below it are of 20yy, as POSIX has it


class Written(NamedTuple):
    """Microseconds since 1970-01-01 (UTC where `zoned`), 0 where a text is no date; which texts are dates; which of them have a zone.

    `first`, `second`: the first two numbers of dates such as 1/13/2017, 0 of others.
    """

    micros: Int64[np.ndarray, " N"]
    is_date: Bool[np.ndarray, " N"]
    zoned: Bool[np.ndarray, " N"]
    first: Int64[np.ndarray, " N"]
    second: Int64[np.ndarray, " N"]


def dates_of(texts: Any, day_first: bool) -> Written:
    """Of an Arrow array of texts in which none is missing. `day_first` says what 1/2/2017 is."""
    N = len(texts)
    texts = pc.call_function("utf8_trim_whitespace", [texts])
    zeros = lambda dtype: np.zeros(N, dtype)
    found = Written(zeros(np.int64), zeros(bool), zeros(bool), zeros(np.int64), zeros(np.int64))
    rest = np.arange(N)
    for number, form in enumerate(_FORMS):
        if len(rest) == 0:
            break
        part = pc.call_function("extract_regex", [texts.take(pa.array(rest))], pc.ExtractRegexOptions(form))
        matches = part.is_valid().to_numpy(zero_copy_only=False)
        rows = rest[matches]
        if len(rows):
            micros, is_date, zoned = _read(
                _Fields(part.drop_null()), day_first, number == _BY_NUMBERS, found, rows
            )
            found.micros[rows] = np.where(is_date, micros, 0)
            found.is_date[rows], found.zoned[rows] = is_date, zoned & is_date
        rest = rest[~matches]
    return found


def are_dates(numbers: np.ndarray) -> bool:
    """Whether all are whole numbers such as 20141013, 201410 or 201410131205, and of one length."""
    possible = (numbers >= _SMALLEST) & (numbers <= _LARGEST) & (numbers == np.floor(numbers))
    if len(numbers) == 0 or not possible.all():
        return False
    texts = digits_of(np.unique(numbers))
    lengths = set(pc.call_function("utf8_length", [texts]).to_pylist())
    return len(lengths) == 1 and lengths <= _LENGTHS and bool(dates_of(texts, True).is_date.all())


def digits_of(numbers: np.ndarray) -> Any:
    """Numbers as an Arrow array of texts, 20141013.0 as "20141013"; of NaN some text that is no date."""
    integers = (numbers == np.floor(numbers)) & (np.abs(numbers) < LARGEST_INTEGER)
    plain = pa.array(np.where(integers, numbers, 0).astype(np.int64)).cast(pa.string())
    return pc.call_function(
        "if_else", [pa.array(integers), plain, pa.array(numbers, pa.float64()).cast(pa.string())]
    )


def order_of(texts: Any, of_table: bool | None = None) -> tuple[bool, str]:
    """(Whether the day comes first in dates such as 1/2/2017, how that was found; "" where there are none, or both orders give the same dates).

    A number above 12 decides; else `of_table`, the order in other columns. Without either it is the order in which all dates are first days of a month;
    else that in which different dates are evenly spaced; else that in which dates move least from row to row; else the day comes first.
    """
    found = dates_of(texts, True)
    numbers = np.flatnonzero(found.first)
    first, second = found.first[numbers], found.second[numbers]
    if (first == second).all():
        return True, ""
    order, why = certain_order(found), ""
    if order is None and of_table is not None:
        order, why = of_table, ", as in other columns"
    if order is not None:
        return order, f"dates with the {'day' if order else 'month'} first{why}"
    times = {order: dates_of(texts, order).micros[numbers] for order in (True, False)}

    def oddness(order: bool) -> tuple[bool, bool, int]:
        micros = times[order]
        steps = np.diff(np.unique(micros))
        firsts = ((first if order else second) == 1).all() and np.ptp(micros % DAY) == 0 < len(steps)
        uneven = steps.max(initial=0) > EVEN * steps.min(initial=YEAR)
        return not firsts, bool(uneven), int(np.abs(np.diff(micros)).sum())

    order, row = min(times, key=oddness), int(np.argmax(first != second))
    shown = f"{texts[int(numbers[row])].as_py()!r} {TAKEN} {day_of(times[order][row])}"
    return order, f"dates that may have the day or the month first: by the days between them {shown}"


def certain_order(found: Written) -> bool | None:
    """Whether the day comes first, if a number above 12 shows it."""
    days, months = int((found.first > 12).sum()), int((found.second > 12).sum())
    return days >= months if days or months else None


def day_of(micros: int) -> str:
    """The date of a time, such as 2014-10-13."""
    return str(np.datetime64(int(micros), "us").astype("datetime64[D]"))


class _Fields:
    """The named parts of texts that match a form, as texts or integers."""

    def __init__(self, found: Any):
        array = whole(found)
        self.names = [array.type.field(i).name for i in range(array.type.num_fields)]
        self.parts = dict(zip(self.names, array.flatten(), strict=True))
        self.size = len(array)

    def text(self, name: str) -> np.ndarray:
        if name not in self.parts:
            return np.full(self.size, "", object)
        return self.parts[name].to_numpy(zero_copy_only=False).astype(object)

    def integer(self, name: str) -> Int64[np.ndarray, " N"]:
        if name not in self.parts:
            return np.zeros(self.size, np.int64)
        part = self.parts[name]
        given = pc.call_function(
            "if_else", [pc.call_function("equal", [part, ""]), pa.scalar("0", part.type), part]
        )
        return np.asarray(given.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _read(
    fields: _Fields, day_first: bool, by_numbers: bool, found: Written, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Microseconds, which are dates of the calendar, which have a zone)."""
    year = fields.integer("y")
    short = pc.call_function("utf8_length", [fields.parts["y"]]).to_numpy(zero_copy_only=False) == 2
    year = np.where(short, year + np.where(year < _CENTURY, 2000, 1900), year)
    if by_numbers:
        a, b = fields.integer("a"), fields.integer("b")
        found.first[rows], found.second[rows] = a, b
        day, month = (a, b) if day_first else (b, a)
    else:
        day = np.where(fields.text("d") == "", 1, fields.integer("d"))  # 201410 is the first of October
        month = _months(fields.text("mon")) if "mon" in fields.parts else fields.integer("m")
        month = month + np.where(fields.text("q") == "", 0, 3 * fields.integer("q") - 2)
    within = (month >= 1) & (month <= 12) & (day >= 1)
    months = (year - 1970) * 12 + np.where(within, month, 1) - 1
    start = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - start
    clock, is_clock, zoned = _clock(fields)
    return (start + day - 1) * DAY + clock, within & (day <= length) & is_clock, zoned


def _clock(fields: _Fields) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Microseconds since midnight of the day, which are times of a clock, which have a zone)."""
    hour, minute, second = (fields.integer(name) for name in "HMS")
    half = np.array([text[:1].lower() for text in fields.text("ap")], dtype="<U1")
    is_clock = (hour < 24) & (minute < 60) & (second < 61) & ((half == "") | ((hour >= 1) & (hour <= 12)))
    hour = np.where(half == "", hour, hour % 12 + np.where(half == "p", 12, 0))
    micros = hour * HOUR + minute * (HOUR // 60) + second * (HOUR // 3600)
    fractions = fields.text("f")
    if (fractions != "").any():
        micros = micros + np.array([int((text[1:] + "000000")[:6]) if text else 0 for text in fractions])
    zone = fields.text("z")
    zoned = zone != ""
    if zoned.any():
        ahead = {text: _ahead(text) for text in set(zone.tolist())}
        micros = micros - np.array([ahead[text] for text in zone])
    return micros, is_clock, zoned


def _ahead(zone: str) -> int:
    """Microseconds by which a zone is ahead of UTC."""
    if not zone or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    size = int(digits[:2]) * HOUR + int(digits[2:]) * (HOUR // 60)
    return size if zone[0] == "+" else -size


def _months(names: np.ndarray) -> Int64[np.ndarray, " N"]:
    """1 to 12; 0 for what is no month's English name."""
    known = {
        name: _MONTHS.index(name[:3].lower()) + 1 if name[:3].lower() in _MONTHS else 0
        for name in set(names.tolist())
    }
    return np.array([known[name] for name in names], np.int64)
