"""Dates and times as whole microseconds since 1970, however they are written, and the numbers that a model gets from them.

31/12/2017, 1/13/17 0:10, 13-Jan-2017, Jan 13, 2017 1:20 PM, 20141013T000000, 2014:10:07 01:20, 20141013, 201410. Months and quarters are
their first day: 2014-01, 01/2014, 2014M01, Jan-14, March 2014, 2014 Mar, 2014Q1, Q1 2014. A time with a zone is taken as UTC, one
without as it stands; the two never mix in a column.
"""

import contextlib
import datetime
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float64, Int64

DAY = 86_400_000_000  # microseconds
HOUR = 3_600_000_000
YEAR = 366 * DAY
PARTS = ("yearday", "weekday", "hour")
TAKEN = "is taken as"  # in notes on a reading that may be wrong
# Days of a leap year before each month: a date has the same number in every year, so that 4 July is the 186th.
_BEFORE = np.array([0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335])
_MONDAY = 3  # 1970-01-01 was a Thursday
_EVEN = 1.15  # largest step of evenly spaced dates, in smallest ones: months have 28 to 31 days
_CENTURY = 69  # two digits below it are of 20yy, as in POSIX
_EPOCH, _MICROSECOND = datetime.datetime(1970, 1, 1), datetime.timedelta(microseconds=1)

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
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
    re.compile(_WEEKDAY + form, re.ASCII)
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
# Of texts: microseconds (UTC if `zoned`), 0 if a text is no date; the first two numbers of dates such as 1/13/2017.
_DATES = np.dtype([("micros", int), ("is_date", bool), ("zoned", bool), ("first", int), ("second", int)])


def times_of_arrow(values: Any) -> tuple[Int64[np.ndarray, " N"], bool]:
    """(Microseconds of Arrow dates or timestamps, 0 if missing, cut off to whole ones; whether they are UTC)."""
    zone = getattr(values.type, "tz", None)
    exact = values.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).fill_null(0)
    return (np.asarray(exact.to_numpy(), np.int64) if len(exact) else np.zeros(0, np.int64)), zone is not None


def times_of_objects(
    present: list[Any], missing: Bool[np.ndarray, " N"]
) -> tuple[Int64[np.ndarray, " N"], bool]:
    """As `times_of_arrow`, of dates and datetimes of Python and NumPy, which are `present`. ValueError if only some have a zone."""
    zoned = {getattr(value, "tzinfo", None) is not None for value in present}
    if len(zoned) > 1:
        raise ValueError("mixes times with and without a time zone")
    if True in zoned:
        present = [value.astimezone(datetime.UTC).replace(tzinfo=None) for value in present]
    micros = np.zeros(len(missing), "datetime64[us]")
    micros[~missing] = [np.datetime64(value, "us") for value in present]
    return micros.astype(np.int64), True in zoned


def times_of_texts(texts: Any) -> tuple[Int64[np.ndarray, " N"], bool] | None:
    """As `times_of_arrow`, of Arrow texts that are missing or of ISO 8601; None if a text is neither."""
    trimmed = trim(texts)
    for zone in (None, "UTC"):
        for unit in ("us", "ns"):  # nanoseconds reach only from 1677 to 2262
            with contextlib.suppress(pa.ArrowInvalid):
                return times_of_arrow(trimmed.cast(pa.timestamp(unit, zone)))
    return None


def varying_parts(micros: Int64[np.ndarray, " N"]) -> tuple[str, ...]:
    """The days, and other parts that vary; the day of the year only of more than a year."""
    parts = PARTS if np.ptp(micros) > YEAR else PARTS[1:]
    return ("days", *(name for name in parts if np.ptp(part_of(name, micros, 0))))


def part_of(name: str, micros: Int64[np.ndarray, " N"], start: int) -> Float64[np.ndarray, " N"]:
    """Days since `start`; yearday 1 to 366, 1 March always the 61st; weekday 0 to 6 from Monday; hour of the day below 24."""
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
    """The date of a time, such as 2014-10-13."""
    return str(np.datetime64(int(micros), "us").astype("datetime64[D]"))


def trim(texts: Any) -> Any:
    """Arrow texts without white space at either end."""
    return pc.call_function("utf8_trim_whitespace", [texts])


def dates_of(texts: Any, day_first: bool) -> np.ndarray:
    """`_DATES` of an Arrow array of texts in which none is missing. `day_first` decides what 1/2/2017 is."""
    return np.array([_date_of(text.strip(), day_first) for text in texts.to_pylist()], _DATES)


def _date_of(text: str, day_first: bool) -> tuple[int, bool, bool, int, int]:
    """A text's entry of `_DATES`."""
    match = next(filter(None, (form.fullmatch(text) for form in _FORMS)), None)
    if match is None:
        return 0, False, False, 0, 0
    part = match.groupdict("")
    first, second = (int(part.get(name, 0)) for name in "ab")
    month, day = (second, first) if day_first else (first, second)
    if not first:
        day = int(part.get("d") or 1)  # 201410 is the first of October
        month = int(part.get("m") or 3 * int(part.get("q", 0)) - 2)
        if "mon" in part:
            month = 1 + _MONTHS.index(part["mon"][:3].lower()) if part["mon"][:3].lower() in _MONTHS else 0
    year = int(part["y"])
    if len(part["y"]) == 2:
        year += 2000 if year < _CENTURY else 1900
    try:
        moment = datetime.datetime(year, month, day) + _clock(part)
        micros = (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return 0, False, False, first, second
    return micros, True, bool(part.get("z")), first, second


def _clock(part: dict[str, str]) -> datetime.timedelta:
    """The time since midnight, in UTC if there is a zone. Raises ValueError for times of no clock."""
    hour, half = int(part.get("H") or 0), part.get("ap", "")[:1].lower()
    if half and not 1 <= hour <= 12:
        raise ValueError
    hour = hour % 12 + 12 * (half == "p") if half else hour
    fraction = int((part.get("f", "")[1:] + "000000")[:6])
    clock = datetime.time(hour, int(part.get("M") or 0), int(part.get("S") or 0), fraction)
    zone = part.get("z", "").replace(":", "")
    ahead = 60 * int(zone[:3]) + int(zone[0] + (zone[3:] or "0")) if zone[:1] in ("+", "-") else 0
    return datetime.datetime.combine(_EPOCH, clock) - _EPOCH - datetime.timedelta(minutes=ahead)


def order_of(
    different: Any, codes: Int64[np.ndarray, " N"], of_table: bool | None = None
) -> tuple[bool, str, np.ndarray]:
    """(Whether the day comes first in dates such as 1/2/2017; a note, "" if there are none or both orders give the same; `dates_of` the different texts).

    A number above 12 decides; else `of_table`, the order in other columns; else the order in which all dates are first days of a month;
    else that in which different dates are evenly spaced; else that in which dates move least from row to row; else the day comes first.
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
        return order, f"dates with the {'day' if order else 'month'} first{why}", found[order]

    def oddness(order: bool) -> tuple[bool, bool, int]:
        micros = found[order]["micros"][rows]
        steps = np.diff(np.unique(micros))
        firsts = ((first if order else second) == 1).all() and np.ptp(micros % DAY) == 0 < len(steps)
        uneven = steps.max(initial=0) > _EVEN * steps.min(initial=YEAR)
        return not firsts, bool(uneven), int(np.abs(np.diff(micros)).sum())

    order, row = min(found, key=oddness), rows[int(np.argmax(first != second))]
    shown = f"{different[int(row)].as_py()!r} {TAKEN} {day_of(int(found[order]['micros'][row]))}"
    said = f"dates that may have the day or the month first: by the days between them {shown}"
    return order, said, found[order]


def certain_order(found: np.ndarray) -> bool | None:
    """Whether the day comes first in `dates_of` texts, if a number above 12 shows it."""
    days, months = int((found["first"] > 12).sum()), int((found["second"] > 12).sum())
    return days >= months if days or months else None
