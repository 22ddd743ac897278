"""Dates and times as microseconds since 1970, and the inputs that encoders make of times.

Examples: 31/12/2017, 1/13/17 0:10, 13-Jan-2017, Jan 13, 2017 1:20 PM, 20141013T000000, 2014:10:07 01:20,
201410. Months and quarters become their first day: 2014-01, 01/2014, 2014M01, Jan-14, March 2014, 2014Q1.
Times with a zone are converted to UTC. A column must not mix times with a zone and times without a zone.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

DAY = 86_400_000_000  # microseconds
HOUR = 3_600_000_000
YEAR = 366 * DAY
PARTS = ("yearday", "weekday", "hour")
TAKEN = "is taken as"  # marks notes on dates that may be wrong
# Days before each month in a leap year, so that a date has the same number in every year.
_BEFORE = np.array([0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335])
_MONDAY = 3  # 1970-01-01 was a Thursday
_EVEN = 1.15  # largest ratio of steps between evenly spaced dates, such as months
_CENTURY = 69  # two-digit years below it are 20yy, as in POSIX

_NAMES = "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"
_MONTHS = {name: number for number, name in enumerate(_NAMES, start=1)}
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\.?,? +)?"
_GAP = r"[T ,:]\s*"
_CLOCK = (
    rf"(?:{_GAP}"
    r"(?P<H>\d{1,2})(?::?(?P<M>\d{2})(?::?(?P<S>\d{2})(?P<f>[.,]\d+)?)?)?"
    r"\s*(?P<ap>[AaPp]\.?[Mm]\.?)?\s*(?P<z>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?"
)
_YEAR = r"(?P<y>(?:1[89]|2[01])\d{2})"
_ANY_YEAR = r"(?P<y>\d{4}|\d{2})"
_DAY = r"(?P<d>\d{1,2})(?:st|nd|rd|th)?"
_MONTH = r"(?P<m>\d{1,2})"
_NAME = r"(?P<mon>[A-Za-z]{3,9})"
_FORMS = [
    f"^{_WEEKDAY}{form}$"
    for form in (
        rf"(?P<y>\d{{4}})[-/.:]{_MONTH}[-/.:](?P<d>\d{{1,2}}){_CLOCK}",
        rf"(?P<a>\d{{1,2}})[-/.](?P<b>\d{{1,2}})[-/.]{_ANY_YEAR}{_CLOCK}",  # day and month in either order
        rf"{_YEAR}(?P<m>\d{{2}})(?:(?P<d>\d{{2}}){_CLOCK.replace(_GAP, '[T ]?')})?",
        rf"{_DAY}[-/ .]*{_NAME}[-/ .,]*{_ANY_YEAR}{_CLOCK}",
        rf"{_NAME}\.?[- ]*{_DAY}[-, ]+(?P<y>\d{{4}}){_CLOCK}",
        rf"{_YEAR}(?:[-/. ]?M|[-/.]){_MONTH}",
        rf"{_MONTH}[-/.]{_YEAR}",
        rf"{_YEAR}[-/ ]?[Qq](?P<q>[1-4])",
        rf"[Qq](?P<q>[1-4])[-/ ]?{_YEAR}",
        rf"{_YEAR}[-/ ]{_NAME}",
        rf"{_NAME}\.?[-/ ]?{_YEAR}",
        rf"{_NAME}[-/']+(?P<y>\d{{2}})",
    )
]
# Microseconds (UTC if `zoned`, 0 if a text is not a date) and the first two numbers of 1/13/2017.
_DATES = np.dtype([("micros", int), ("is_date", bool), ("zoned", bool), ("first", int), ("second", int)])


def times_of_arrow(values: Any) -> tuple[Int64[np.ndarray, " N"], bool]:
    """Return microseconds of Arrow dates or timestamps (0 if missing); True if they are UTC."""
    zone = getattr(values.type, "tz", None)
    exact = values.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).fill_null(0)
    return (np.asarray(exact.to_numpy(), np.int64) if len(exact) else np.zeros(0, np.int64)), zone is not None


def varying_parts(micros: Int64[np.ndarray, " N"]) -> tuple[str, ...]:
    """Return "days" and the parts that vary; "yearday" needs times of more than a year."""
    parts = PARTS if np.ptp(micros) > YEAR else PARTS[1:]
    return ("days", *(name for name in parts if np.ptp(part_of(name, micros, 0))))


def part_of(name: str, micros: Int64[np.ndarray, " N"], start: int) -> Float64[np.ndarray, " N"]:
    """Return days since `start`, yearday 1 to 366, weekday 0 (Monday) to 6, or hour 0 to 24."""
    if name == "days":
        return (micros - start) / DAY
    if name == "weekday":
        return ((micros // DAY + _MONDAY) % 7).astype(np.float64)
    if name == "hour":
        return (micros % DAY) / HOUR
    days = micros.astype("datetime64[us]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    of_month = (days - months.astype("datetime64[D]")).astype(np.int64)
    return (_BEFORE[months.astype(np.int64) % 12] + 1 + of_month).astype(np.float64)


def day_of(micros: int) -> str:
    """Return the date of a time, such as 2014-10-13."""
    return str(np.datetime64(int(micros), "us").astype("datetime64[D]"))


def dates_of(texts: Any, day_first: bool) -> np.ndarray:
    """Return `_DATES` of texts. With `day_first`, 1/2/2017 is 1 February."""
    texts = pc.call_function("utf8_trim_whitespace", [texts])
    found, rest = np.zeros(len(texts), _DATES), np.arange(len(texts))
    for form in _FORMS if len(texts) else ():
        match = pc.call_function("extract_regex", [texts.take(pa.array(rest))], pc.ExtractRegexOptions(form))
        matches = match.is_valid().to_numpy(zero_copy_only=False)
        if matches.any():
            found[rest[matches]] = _read(match.drop_null(), day_first)
        rest = rest[~matches]
    return found


def _read(match: Any, day_first: bool) -> np.ndarray:
    """Return `_DATES` of the named parts of texts that match a form."""
    parts = dict(zip([field.name for field in match.type], match.flatten(), strict=True))
    found = np.zeros(len(match), _DATES)

    def part(name: str, default: int = 0) -> Int64[np.ndarray, " N"]:
        if name not in parts:
            return np.full(len(match), default)
        empty, value = pc.call_function("equal", [parts[name], ""]), pa.scalar(str(default), parts[name].type)
        given = pc.call_function("if_else", [empty, value, parts[name]])
        return given.cast(pa.int64()).to_numpy(zero_copy_only=False)

    year, day, month = part("y"), part("d", 1), part("m") + 3 * part("q")  # 201410 is the first of October
    short = pc.call_function("utf8_length", [parts["y"]]).to_numpy(zero_copy_only=False) == 2
    year = np.where(short, year + np.where(year < _CENTURY, 2000, 1900), year)
    if "a" in parts:
        found["first"], found["second"] = part("a"), part("b")
        day, month = (found["first"], found["second"]) if day_first else (found["second"], found["first"])
    elif "mon" in parts:
        month = np.array([_MONTHS.get(name[:3].lower(), 0) for name in parts["mon"].to_pylist()])
    elif "q" in parts:
        month = month - 2
    hour, minute, second, zone = part("H"), part("M"), part("S"), np.zeros(len(match), np.int64)
    is_date = (hour < 24) & (minute < 60) & (second < 61) & (month >= 1) & (month <= 12) & (day >= 1)
    micros = HOUR // 60 * minute + HOUR // 3600 * second
    if "H" in parts:
        half, zone = (np.array(parts[name].to_pylist(), object) for name in ("ap", "z"))
        noon = 12 * np.array([text[:1] in ("p", "P") for text in half])
        is_date &= (half == "") | ((hour >= 1) & (hour <= 12))
        hour = np.where(half == "", hour, hour % 12 + noon)
        micros += [int((text[1:] + "000000")[:6]) for text in parts["f"].to_pylist()]
        micros -= [_ahead(text) for text in zone]
    months = (year - 1970) * 12 + np.where(is_date, month, 1) - 1
    start, after = (
        (months + i).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for i in (0, 1)
    )
    is_date &= day <= after - start
    found["is_date"], found["zoned"] = is_date, is_date & (zone != ("" if "H" in parts else 0))
    found["micros"] = np.where(is_date, (start + day - 1) * DAY + hour * HOUR + micros, 0)
    return found


def _ahead(zone: str) -> int:
    """Return the microseconds by which a zone is ahead of UTC."""
    digits = zone[1:].replace(":", "").ljust(4, "0")
    size = int(digits[:2]) * HOUR + int(digits[2:]) * (HOUR // 60) if zone[:1] in ("+", "-") else 0
    return -size if zone[:1] == "-" else size


def order_of(different: Any, codes: np.ndarray, of_table: bool | None = None) -> tuple[bool, str, np.ndarray]:
    """Return True if the day is first in 1/2/2017, a note, and `dates_of` the different texts.

    The first criterion that gives an answer is used: a number above 12; `of_table`, the order in other
    columns; only first days of months; even spacing; the smallest changes from row to row; else day first.
    """
    found = {True: dates_of(different, True)}
    rows = codes[found[True]["first"][codes] > 0]
    first, second = found[True]["first"][rows], found[True]["second"][rows]
    if (first == second).all():
        return True, "", found[True]
    order, why = certain_order(found[True][codes]), ""
    if order is None and of_table is not None:
        order, why = of_table, ", as in other columns"
    if order is not True:
        found[False] = dates_of(different, False)
    if order is not None:
        return order, f"dates are read with the {'day' if order else 'month'} first{why}", found[order]

    def oddness(order: bool) -> tuple[bool, bool, int]:
        micros = found[order]["micros"][rows]
        steps = np.diff(np.unique(micros))
        firsts = ((first if order else second) == 1).all() and np.ptp(micros % DAY) == 0 < len(steps)
        uneven = steps.max(initial=0) > _EVEN * steps.min(initial=YEAR)
        return not firsts, bool(uneven), int(np.abs(np.diff(micros)).sum())

    order, row = min(found, key=oddness), rows[int(np.argmax(first != second))]
    shown = f"{different[int(row)].as_py()!r} {TAKEN} {day_of(int(found[order]['micros'][row]))}"
    said = f"it is unclear whether the day or the month is first; based on the gaps between dates, {shown}"
    return order, said, found[order]


def certain_order(found: np.ndarray) -> bool | None:
    """Return True if a number above 12 shows the day first, False for the month, else None."""
    days, months = int((found["first"] > 12).sum()), int((found["second"] > 12).sum())
    return days >= months if days or months else None
