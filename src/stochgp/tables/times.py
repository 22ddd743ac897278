"""Dates and times as whole microseconds since 1970, and the numbers that a model sees of them.

A time with a zone is taken as UTC, one without as it stands; the two never mix in a column.
"""

import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float64, Int64

DAY = 86_400_000_000  # microseconds
HOUR = 3_600_000_000
YEAR = 366 * DAY
PARTS = ("yearday", "weekday", "hour")
# Days of a leap year before each month: a date has the same number in every year, so that 4 July is the 186th.
_BEFORE = np.array([0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335])
_MONDAY = 3  # 1970-01-01 was a Thursday


class Times(NamedTuple):
    """Microseconds since 1970-01-01, 0 where the value is missing; `zoned` says that they are UTC."""

    micros: Int64[np.ndarray, " N"]
    zoned: bool


def times_of_arrow(values: Any) -> Times:
    """Of an Arrow array of dates or timestamps; what is finer than a microsecond is cut off."""
    zone = getattr(values.type, "tz", None)
    exact = values.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    return Times(_filled(exact), zone is not None)


def times_of_objects(values: list[Any], missing: Bool[np.ndarray, " N"]) -> Times:
    """Of Python's dates and datetimes and NumPy's datetime64. Raises ValueError where only some have a zone."""
    present = [value for value, absent in zip(values, missing, strict=True) if not absent]
    zoned = {getattr(value, "tzinfo", None) is not None for value in present}
    if len(zoned) > 1:
        raise ValueError("mixes times with and without a time zone")
    micros = np.zeros(len(values), np.int64)
    micros[~missing] = np.array([_naive(value) for value in present], "datetime64[us]").astype(np.int64)
    return Times(micros, True in zoned)


def times_of_texts(texts: Any) -> Times | None:
    """Of an Arrow array of texts, all of which but the missing are dates or timestamps of ISO 8601; None where one is not."""
    trimmed = _trimmed(texts)
    first = pc.index(trimmed.is_valid(), True).as_py()
    if first < 0:
        return None
    for zoned in (False, True):
        if _parsed(trimmed.slice(first, 1), zoned) is not None:
            micros = _parsed(trimmed, zoned)
            return None if micros is None else Times(micros, zoned)
    return None


def varying_parts(micros: Int64[np.ndarray, " N"]) -> tuple[str, ...]:
    """The parts of times that say something of the rows: "days"; the day of the year, where they are of more than a year; the weekday and the hour, where they vary."""
    parts = PARTS if np.ptp(micros) > YEAR else PARTS[1:]  # of one year the days say it all
    return ("days", *(name for name in parts if np.ptp(part_of(name, micros, 0))))


def part_of(name: str, micros: Int64[np.ndarray, " N"], start: int) -> Float64[np.ndarray, " N"]:
    """days since `start`; yearday 1 to 366, where 1 March is always the 61st; weekday 0 to 6 from Monday; hour of the day from 0 up to 24, with its minutes.

    Files of earlier versions have the month, 1 to 12, in place of the day of the year.
    """
    if name == "days":
        return (micros - start) / DAY
    if name in ("yearday", "month"):
        days = micros.astype("datetime64[us]").astype("datetime64[D]")
        months = days.astype("datetime64[M]")
        month = months.astype(np.int64) % 12
        if name == "month":
            return (month + 1).astype(np.float64)
        return (_BEFORE[month] + 1 + (days - months.astype("datetime64[D]")).astype(np.int64)).astype(
            np.float64
        )
    if name == "weekday":
        return ((micros // DAY + _MONDAY) % 7).astype(np.float64)
    return (micros % DAY) / HOUR


def _trimmed(texts: Any) -> Any:
    """Without white space at either end."""
    return pc.call_function("utf8_trim_whitespace", [texts])


def _parsed(texts: Any, zoned: bool) -> Int64[np.ndarray, " N"] | None:
    for unit in ("us", "ns"):  # nanoseconds reach only from 1677 to 2262
        try:
            values = texts.cast(pa.timestamp(unit, "UTC" if zoned else None))
        except pa.ArrowInvalid:
            continue
        return times_of_arrow(values).micros
    return None


def _filled(values: Any) -> Int64[np.ndarray, " N"]:
    combined = values.fill_null(0)
    return np.asarray(combined.to_numpy(), np.int64) if len(values) else np.zeros(0, np.int64)


def _naive(value: Any) -> np.datetime64:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(value, "us")
