"""Sets read from their original file of the UCI Machine Learning Repository, which the user puts in place: nothing is downloaded.

`bike-hourly`, and `energy`, `pm25`, `query`, three sets of Chen et al. (2020), who do not say which columns they used; the inputs here
are those that give their number of inputs. Test rows are a random part.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from stochgp.data import train_test_indices
from stochgp.tables.encoding import TableEncoder

from .dataset import Dataset, data_folders


@dataclass(frozen=True)
class OriginalTable:
    """A file of UCI's data set `title`, number `uci`, and what is read from it.

    Looked for as FOLDER/FILE or FOLDER/FILE.gz. `rows` counts the rows in which all that is read is there; others are left out. `labels`
    are input columns of text, of which each level becomes a 0/1 column; `columns` counts the inputs after that.
    """

    title: str
    uci: int
    folder: str
    file: str
    rows: int
    columns: int
    inputs: tuple[str, ...]
    target: str
    labels: tuple[str, ...] = ()
    log_target: bool = False


# The date of bike-hourly is left out: year, month, weekday and hour are columns of their own. `casual` and `registered` add up to the
# count, and `instant` is the number of the row.
TABLES = {
    "bike-hourly": OriginalTable(
        "Bike Sharing",
        275,
        "bike_hourly",
        "hour.csv",
        17_379,
        12,
        (
            "season",
            "yr",
            "mnth",
            "hr",
            "holiday",
            "weekday",
            "workingday",
            "weathersit",
            "temp",
            "atemp",
            "hum",
            "windspeed",
        ),
        "cnt",
        log_target=True,
    ),
    "energy": OriginalTable(
        "Appliances Energy Prediction",
        374,
        "energy",
        "energydata_complete.csv",
        19_735,
        27,
        (
            "lights",
            *(f"{what}{room}" for room in range(1, 10) for what in ("T", "RH_")),
            "T_out",
            "Press_mm_hg",
            "RH_out",
            "Windspeed",
            "Visibility",
            "Tdewpoint",
            "rv1",
            "rv2",
        ),
        "Appliances",
    ),
    "pm25": OriginalTable(
        "Beijing PM2.5",
        381,
        "pm25",
        "PRSA_data_2010.1.1-2014.12.31.csv",
        41_757,
        15,
        ("No", "year", "month", "day", "hour", "DEWP", "TEMP", "PRES", "cbwd", "Iws", "Is", "Ir"),
        "pm2.5",
        labels=("cbwd",),
    ),
    "query": OriginalTable(
        "Query Analytics Workloads Dataset",
        493,
        "query",
        "Range-Queries-Aggregates.csv",
        200_000,
        4,
        ("x", "y", "x_range", "y_range"),
        "count",
    ),
}


def load_table(name: str, test_fraction: float = 0.1, seed: int = 0) -> Dataset:
    """The complete rows of set `name`; a random part of them are the test rows.

    bike-hourly: log of the bikes rented in an hour, from calendar and weather. energy: energy of appliances in ten minutes (Wh), from
    27 measurements, the two random columns of the file included. pm25: fine dust in Beijing by the hour (µg/m³), from time, with the
    number of the hour `No`, and weather. query: number of points in a rectangle, from its centre and half widths; the file has 200,000
    rows, of which Chen et al. use 100,000.

    Raises ValueError where the file is not there (what to get, and where to put it), cannot be read or is another one.
    """
    known = TABLES[name]
    path = table_location(name)
    if path is None:
        raise ValueError(f"{name}: {known.file} is not on this machine; {how_to_get(name)}")
    table = _read(name, path)
    encoder = TableEncoder.fit(table, target=known.target, missing="refuse")
    if (table.num_rows, len(encoder.output_names)) != (known.rows, known.columns):
        found = f"{table.num_rows} complete rows of {len(encoder.output_names)} inputs"
        raise ValueError(f"{name}: {path} gives {found}; expected {known.rows} of {known.columns}")
    X, y = encoder.transform(table), table[known.target].to_numpy()
    y, target = (np.log(y), f"log_{known.target}") if known.log_target else (y, known.target)
    train, test = train_test_indices(len(y), test_fraction, seed)
    return Dataset(X[train], y[train], X[test], y[test], encoder.output_names, target, name)


def table_location(name: str) -> Path | None:
    """The file of a set on this machine, plain or compressed, or None."""
    known = TABLES[name]
    places = [
        folder / file for folder in data_folders(known.folder) for file in (known.file, f"{known.file}.gz")
    ]
    return next((place for place in places if place.is_file()), None)


def how_to_get(name: str) -> str:
    """Which file to get, and where to put it."""
    known = TABLES[name]
    places = " or ".join(str(folder) for folder in data_folders(known.folder))
    return f"put {known.file} (or {known.file}.gz) of UCI data set {known.uci}, {known.title!r} (archive.ics.uci.edu), in {places}"


def _read(name: str, path: Path) -> pa.Table:
    """The columns of the set, float64 or text, without rows in which one is missing."""
    known = TABLES[name]
    columns = [*known.inputs, known.target]
    types = {column: pa.string() if column in known.labels else pa.float64() for column in columns}
    options = pa_csv.ConvertOptions(
        include_columns=columns, column_types=types, null_values=["", "NA"], strings_can_be_null=True
    )
    try:
        return pa_csv.read_csv(path, convert_options=options).drop_null()
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{name}: {path} cannot be read; damaged, or another file? ({reason})") from error
