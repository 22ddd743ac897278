"""`bike-hourly`: bikes rented per hour, from the original file of the UCI repository."""

import numpy as np
import pyarrow.csv as pa_csv

from stochgp.data import train_test_indices

from .dataset import Dataset, data_folders

NAME, FILE, ROWS, TARGET = "bike-hourly", "hour.csv", 17_379, "cnt"
# The date is dropped: year, month, weekday and hour are columns. `casual` and `registered` sum to the
# count, and `instant` is the row number.
INPUTS = (
    "season", "yr", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp", "atemp", "hum", "windspeed",
)  # fmt: skip


def load_hourly_bikes(test_fraction: float = 0.1, seed: int = 0) -> Dataset:
    """Return the log of bikes rented per hour, with calendar and weather inputs.

    Raises ValueError if the file is missing, cannot be read, or is another file.
    """
    folders = data_folders("bike_hourly")
    places = [folder / file for folder in folders for file in (FILE, f"{FILE}.gz")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        where = " or ".join(map(str, folders))
        raise ValueError(f"{NAME}: put {FILE} (or {FILE}.gz) of UCI data set 275, 'Bike Sharing', in {where}")
    try:
        table = pa_csv.read_csv(
            path, convert_options=pa_csv.ConvertOptions(include_columns=[*INPUTS, TARGET])
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{NAME}: {path} cannot be read; damaged, or another file? ({reason})") from error
    if table.num_rows != ROWS:
        raise ValueError(f"{NAME}: {path} gives {table.num_rows} rows; expected {ROWS}")
    X, y = (
        np.column_stack([table[name].to_numpy().astype(float) for name in INPUTS]),
        np.log(table[TARGET].to_numpy()),
    )
    train, test = train_test_indices(len(y), test_fraction, seed)
    return Dataset(X[train], y[train], X[test], y[test], INPUTS, f"log_{TARGET}", NAME)
