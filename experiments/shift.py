"""New rows after the old ones: tables with dates, their last fifth in time predicted from the first four fifths; and a random fifth beside it.

Both families as they come, `new_rows="auto"` on the divisions by time and "between" on the random ones; --slow adds what the other choice would bring.
CatBoost, 1,000 trees with a variance for each row, is fitted to the same numbers. Scores are of unit-variance targets, by the densities
predicted. The tables are read from ../shared/data/tables, and those that are not there are left out; "made up" is an hourly series with an autocorrelated error.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from matplotlib.figure import Figure

from experiments import rivals
from experiments.problems import law_scores
from measuring import tables
from measuring.places import shared
from measuring.store import Cell, Record, select

FOLDER = "data/tables"
MADE_UP, MADE_UP_ROWS = "made up", 1500
SPLITS = {"time": "auto", "random": "between"}  # with `new_rows` of our families
OTHER = {"time": "between", "random": "after"}
FAMILIES = ("kernel", "feature")
CATBOOST = "catboost"
FIELDS = ("rmse", "nlpd", "crps", "coverage50", "coverage95", "seconds")
ONE_CORE = False


class Source(NamedTuple):
    """A file, its target, columns that are no inputs, the texts that stand for nothing, and how its dates are written (None: as they are read)."""

    file: str
    target: str
    dropped: tuple[str, ...] = ()
    null: tuple[str, ...] = ("", "NA")
    dates: tuple[str, str] | None = None
    rows: int = 50_000


SOURCES = {
    "pm25": Source("beijing_pm25.csv.gz", "pm2.5", ("No",), rows=41_757),
    "traffic": Source("metro_traffic.csv.gz", "traffic_volume", null=(), rows=48_204),
    "tetouan": Source(
        "tetouan_power.csv.gz",
        "Zone 1 Power Consumption",
        ("Zone 2 Power Consumption", "Zone 3 Power Consumption"),
        dates=("DateTime", "%m/%d/%y %H:%M"),
        rows=52_416,
    ),
    "steel": Source("steel_energy.csv.gz", "Usage_kWh", dates=("date", "%d/%m/%Y %H:%M"), rows=35_040),
}


class Division(NamedTuple):
    """Training and test rows."""

    X: pa.Table
    y: np.ndarray
    X_test: pa.Table
    y_test: np.ndarray


def available() -> tuple[str, ...]:
    """Tables that are there."""
    return tuple(name for name, source in SOURCES.items() if _path(source).exists())


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [_cell(MADE_UP, "time", "kernel", new_rows) for new_rows in ("auto", "between")]
    sets = (*available(), MADE_UP)
    found = [
        _cell(name, split, family, SPLITS[split]) for name in sets for split in SPLITS for family in FAMILIES
    ]
    if CATBOOST in rivals.available():
        found += [_cell(name, split, CATBOOST, None) for name in sets for split in SPLITS]
    if slow:
        found += [
            _cell(name, split, family, OTHER[split])
            for name in sets
            for split in SPLITS
            for family in FAMILIES
        ]
    return found


def _cell(name: str, split: str, method: str, new_rows: str | None) -> Cell:
    return {"set": name, "split": split, "method": method, "new_rows": new_rows, "seed": 0}


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    n = MADE_UP_ROWS if cell["set"] == MADE_UP else SOURCES[cell["set"]].rows
    return n * (0.1 if cell["method"] == CATBOOST else 1)


def run(cell: Cell) -> dict:
    rows = divided(cell["set"], cell["split"])
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        law, told = _method(cell)(rows)
    seconds = time.perf_counter() - begun
    found = law_scores(rows.y_test, law, float(np.std(rows.y)))
    return {**found, "test_rows": len(rows.y_test), "seconds": round(seconds, 1), **told}


def divided(name: str, split: str) -> Division:
    """The last fifth of the rows as they stand, or a random one, held out."""
    table, target = (_made_up(), "y") if name == MADE_UP else (_read(SOURCES[name]), SOURCES[name].target)
    y, X = table[target].to_numpy().astype(np.float64), table.drop_columns([target])
    n = len(y)
    order = np.arange(n)[::-1] if split == "time" else np.random.default_rng(0).permutation(n)
    test, train = order[: n // 5], order[n // 5 :]
    train, test = (np.sort(part) if split == "time" else part for part in (train, test))
    X, X_test = X.take(train), X.take(test)
    return Division(X, y[train], _with_known_levels(X_test, X), y[test])


def _with_known_levels(table: pa.Table, known: pa.Table) -> pa.Table:
    """With the commonest level in the place of text that the training rows lack, which estimators refuse: one row of traffic has such."""
    for place, name in enumerate(table.column_names):
        if pa.types.is_string(table[name].type):
            usual = pc.mode(pc.dictionary_encode(known[name]).combine_chunks().indices)[0]["mode"].as_py()
            usual = pc.dictionary_encode(known[name]).combine_chunks().dictionary[usual]
            there = pc.is_in(table[name], known[name].unique())
            table = table.set_column(place, name, pc.if_else(there, table[name], usual))
    return table


def _path(source: Source) -> Path:
    return shared(FOLDER) / source.file


def _read(source: Source) -> pa.Table:
    """Without rows that lack something: those of PM2.5 lack the target, those of Tetouan everything. Raises ValueError where the file is not there."""
    if not _path(source).exists():
        raise ValueError(f"shift: {_path(source)} is not there")
    options = pa_csv.ConvertOptions(null_values=list(source.null), strings_can_be_null=bool(source.null))
    table = pa_csv.read_csv(_path(source), convert_options=options)
    dropped = [name for name in table.column_names if name in source.dropped]
    table = table.drop_columns(dropped).drop_null()
    if source.dates is not None:
        name, form = source.dates
        place = table.column_names.index(name)
        read = pc.call_function("strptime", [table[name]], pc.StrptimeOptions(form, "s"))
        table = table.set_column(place, name, read)
    return table


def _made_up() -> pa.Table:
    """Hours of a daily pattern and of weather, and an error that hours share, of correlation 0.9 from one to the next."""
    generator, n = np.random.default_rng(0), MADE_UP_ROWS
    hours, weather, error = np.arange(n), generator.normal(size=n), np.zeros(n)
    for t in range(1, n):
        error[t] = 0.9 * error[t - 1] + 0.19**0.5 * generator.normal()
    y = np.sin(2 * np.pi * hours / 24) + 0.5 * weather + error
    when = np.datetime64("2024-01-01T00", "s") + hours * np.timedelta64(3600, "s")
    return pa.table({"when": when, "weather": weather, "y": y})


def _method(cell: Cell) -> Callable[[Division], tuple[Any, dict]]:
    return _catboost if cell["method"] == CATBOOST else lambda rows: _ours(cell, rows)


def _ours(cell: Cell, rows: Division) -> tuple[Any, dict]:
    from stochgp import FeatureGPRegressor, KernelGPRegressor

    family = {"kernel": KernelGPRegressor, "feature": FeatureGPRegressor}[cell["method"]]
    model = family(new_rows=cell["new_rows"], random_state=cell["seed"]).fit(rows.X, rows.y)
    plan = model.plan_
    told = {name: plan[name]["choice"] for name in ("likelihood", "new_rows") if name in plan}
    return model.predict_distribution(rows.X_test), {f"{name}_chosen": value for name, value in told.items()}


def _catboost(rows: Division) -> tuple[Any, dict]:
    from stochgp.data import TableEncoder

    encoder = TableEncoder.fit(rows.X)
    return rivals.catboost(encoder.transform(rows.X), rows.y, encoder.transform(rows.X_test))


def page(records: list[Record]) -> list[str]:
    headings = ["set", "held out", "method", "new_rows", "RMSE", "NLPD", "CRPS", "50 %", "95 %", "seconds"]
    rows = []
    for record in sorted(records, key=lambda r: [str(r["settings"][k]) for k in ("set", "split", "method")]):
        cell, found = record["settings"], record["results"]
        split = {"time": "the last fifth", "random": "a random fifth"}[cell["split"]]
        numbers = [tables.number(found[field], 3) for field in FIELDS]
        rows.append([cell["set"], split, cell["method"], cell["new_rows"] or "–", *numbers])
    return [tables.table(headings, rows), *_against(records)]


def _against(records: list[Record]) -> list[str]:
    """Of each table by time, which of ours has the lower NLPD, and by how much less than CatBoost."""
    lines = []
    for name in SOURCES:
        found = {
            r["settings"]["method"]: r["results"]
            for r in select(records, set=name, split="time")
            if r["settings"]["new_rows"] in (None, SPLITS["time"])
        }
        ours = [method for method in FAMILIES if method in found]
        if not ours or CATBOOST not in found:
            continue
        best = min(ours, key=lambda method: found[method]["nlpd"])
        gain = found[CATBOOST]["nlpd"] - found[best]["nlpd"]
        lines.append(
            f"{name}, the last fifth: {best} GP, {gain:.3f} nats below CatBoost; 95 % intervals hold {found[best]['coverage95']:.3f}."
        )
    return lines


def figure(records: list[Record]) -> Figure | None:
    """NLPD of the last fifth, method by method; none without a table."""
    sets = [name for name in SOURCES if select(records, set=name, split="time")]
    if not sets:
        return None
    drawing = Figure(figsize=(6, 3), layout="constrained")
    panel = drawing.subplots()
    for i, method in enumerate((*FAMILIES, CATBOOST)):
        found = {
            r["settings"]["set"]: r["results"]["nlpd"]
            for r in select(records, split="time", method=method)
            if r["settings"]["new_rows"] in (None, SPLITS["time"])
        }
        here = [name for name in sets if name in found]
        panel.plot(
            [sets.index(name) + 0.15 * (i - 1) for name in here],
            [found[name] for name in here],
            "o",
            label=method,
        )
    panel.set_xticks(range(len(sets)), sets)
    panel.set(ylabel="NLPD of the last fifth in time", yscale="symlog")
    panel.legend()
    return drawing
