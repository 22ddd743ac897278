"""Three million flights within the United States from January to June 2001: how late does a flight leave?

Of the npm package vega-datasets, version 3.2.1 (from the Bureau of Transportation Statistics), which the user puts in place: nothing is
downloaded.
"""

from pathlib import Path

import numpy as np
import pooch
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from stochgp.tables.times import part_of, times_of_arrow

from .dataset import Dataset, data_folders, train_test_indices

NAME = "flights-3m"
FLIGHTS_3M_ROWS = 3_000_000
FLIGHTS_3M_INPUTS = (
    "day", "weekday", "hour", "distance", "origin_latitude", "origin_longitude", "destination_latitude", "destination_longitude",
)  # fmt: skip
FILES = {
    "flights-3m.parquet": "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0",
    "airports.csv": "903c7169e6d558eefb95295fe2947ec8503135fbb855ea5c737cf4a90ea603ad",
}


def flights_3m_folder() -> Path | None:
    """The first folder that holds both files, or None."""
    return next(
        (place for place in data_folders("flights_3m") if all((place / file).is_file() for file in FILES)),
        None,
    )


def how_to_get_flights_3m() -> str:
    """Which files to get, and where to put them."""
    places = " or ".join(map(str, data_folders("flights_3m")))
    return f"npm pack vega-datasets@3.2.1, and put data/{' and data/'.join(FILES)} of it in {places}"


def load_flights_3m(test_fraction: float = 0.1, seed: int = 0) -> Dataset:
    """Target: delay in minutes. Inputs: days since 2001, weekday 0 (Monday) to 6, hour with its minutes, miles, and where the airports lie.

    A random part are the test rows. Raises ValueError where the files are not on this machine or are not those of version 3.2.1.
    """
    folder = flights_3m_folder()
    if folder is None:
        raise ValueError(f"{NAME}: the data are not on this machine; {how_to_get_flights_3m()}")
    for file, known in FILES.items():
        if pooch.file_hash(str(folder / file), "sha256") != known:
            raise ValueError(f"{NAME}: {folder / file} is not the file of vega-datasets 3.2.1")
    X, y = _variables(
        pa_parquet.read_table(folder / "flights-3m.parquet"), pa_csv.read_csv(folder / "airports.csv")
    )
    train, test = train_test_indices(len(y), test_fraction, seed)
    return Dataset(X[train], y[train], X[test], y[test], FLIGHTS_3M_INPUTS, "delay", NAME)


def _variables(flights: pa.Table, airports: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    X = np.empty((flights.num_rows, len(FLIGHTS_3M_INPUTS)), np.float64)
    micros = times_of_arrow(flights["date"]).micros
    start = int(np.datetime64("2001-01-01", "us").astype(np.int64))
    X[:, 0] = np.floor(part_of("days", micros, start))
    X[:, 1], X[:, 2] = (part_of(part, micros, start) for part in ("weekday", "hour"))
    X[:, 3] = flights["distance"].to_numpy()
    for j, end in ((4, "origin"), (6, "destination")):
        options = pc.SetLookupOptions(value_set=airports["iata"].cast(flights[end].type))
        rows = pc.call_function("index_in", [flights[end]], options).to_numpy()
        X[:, j], X[:, j + 1] = (airports[name].to_numpy()[rows] for name in ("latitude", "longitude"))
    return X, flights["delay"].to_numpy().astype(np.float64)
