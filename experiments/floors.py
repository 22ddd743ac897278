"""Scores and CPU seconds of default fits on 14 splits of tables and on six UCI sets.

Results are in experiments/floors.jsonl. The commit is a setting of each cell, and `--table` compares the
newest results with those of BASELINE. Scores are in standard deviations of the training targets. The log
score at a resolution is −log[(F(y + h) − F(y − h))/(2h)] with h = 1 % of that standard deviation. Each
process uses one core, because waiting threads would count as CPU seconds.
"""

import os
import statistics
import time
import warnings
from typing import Any

import numpy as np

from benchmarks.arena_tables import TABLES, Table, divided, of_shared
from benchmarks.datasets.prepared import load_raw
from measuring import machine, tables
from measuring.harness import CACHE
from measuring.store import ROOT, Cell, Record, read

ONE_CORE = True
RESULTS = ROOT / "experiments"
BASELINE = "caeab436e925b28c51ad59eb0ae78e18c68d3f92"
SEEDS, ALL, WHOLE = (
    (0, 1),
    10**6,
    ("pol", "elevators", "bike", "kin40k"),
)  # sets that are also used with all rows
SETS = ("pol", "elevators", "bike", "kin40k", "protein", "keggdirected")
SPLITS = (
    ("used_cars", "random"), ("air_fares", "random"), ("diabetes", "random"), ("diamonds", "random"), ("california", "random"), ("metro", "time"),
    ("steel", "time"), ("beijing", "random"), ("slid", "random"), ("randhie", "random"), ("co2", "random"), ("computers", "time"),
    ("tetouan", "random"), ("seattle", "time"),
)  # fmt: skip
MORE_TABLES = {
    "used_cars": Table(of_shared("used_cars_india.csv.gz"), "selling_price"),
    "air_fares": Table(of_shared("air_fares_india.csv.gz"), "Price"),
}
TEST_ROWS, TEST_ROWS_OF_SETS = 1000, 2000
RESOLUTION, MIN_PROBABILITY = 0.01, 1e-12  # h in standard deviations of the training targets
COLUMNS = {  # digits of each column
    "crps": 4, "nlpd": 3, "rmse": 4, "log_score": 3, "coverage50": 3, "coverage95": 3, "fit_cpu_seconds": 1, "predict_cpu_seconds": 1, "n_rows": 0,
}  # fmt: skip
RATIOS, DIFFERENCES = ("crps", "fit_cpu_seconds", "predict_cpu_seconds"), ("nlpd", "log_score", "coverage95")


def cells(quick: bool, slow: bool) -> list[Cell]:
    shared = {"commit": machine.commit()}
    if quick:
        return [
            {"table": "diabetes", "split": "random", "model": "GPRegressor", "rows": 300, "seed": 0, **shared}
        ]
    pool, kernel = {"model": "GPRegressor", "rows": 2000}, {"model": "KernelGPRegressor", "rows": 8000}
    splits = [(t, s, pool) for t, s in SPLITS] + [(t, "0", kernel) for t in SETS]
    whole = [(t, "0", {"model": "KernelGPRegressor", "rows": ALL}) for t in WHOLE] if slow else []
    chosen = [(seed, *cell) for seed in SEEDS for cell in splits] + [(0, *cell) for cell in whole]
    return [{"table": t, "split": s, **m, "seed": seed, **shared} for seed, t, s, m in chosen]


def load(cell: Cell) -> tuple[Any, ...]:
    """Return X, y, groups or None, and X and y of the test rows."""
    name, most = cell["table"], cell["rows"]
    if name not in SETS:
        train, test = divided((TABLES | MORE_TABLES)[name].load(), cell["split"], most)
        return train.X, train.y, train.groups, test.X[:TEST_ROWS], test.y[:TEST_ROWS]
    raw = load_raw(name, int(cell["split"]))
    rows = np.random.default_rng(1).permutation(len(raw.y))[:most]
    test_rows = np.random.default_rng(1).permutation(len(raw.y_test))[:TEST_ROWS_OF_SETS]
    return raw.X[rows], raw.y[rows], None, raw.X_test[test_rows], raw.y_test[test_rows]


def scores(distribution: Any, y: np.ndarray, scale: float) -> dict[str, float]:
    """Return all scores; `scale` is the standard deviation of the training targets."""
    h = RESOLUTION * scale
    with np.errstate(all="ignore"):
        near = np.maximum(distribution.cdf(y + h) - distribution.cdf(y - h), MIN_PROBABILITY)
        intervals = {level: distribution.interval(level) for level in (0.5, 0.95)}
        inside = {level: np.mean((i[:, 0] <= y) & (y <= i[:, 1])) for level, i in intervals.items()}
        return {
            "crps": np.mean(distribution.crps(y)) / scale,
            "nlpd": -np.mean(distribution.logpdf(y)) - np.log(scale),
            "rmse": np.sqrt(np.mean((distribution.mean - y) ** 2)) / scale,
            "log_score": -np.mean(np.log(near / (2 * h))) - np.log(scale),
            **{f"coverage{round(100 * level)}": share for level, share in inside.items()},
        }


def run(cell: Cell, **settings: Any) -> dict:
    import stochgp

    X, y, groups, X_test, y_test = load(cell)
    model = getattr(stochgp, cell["model"])(random_state=cell["seed"], **settings)
    with warnings.catch_warnings(action="ignore"):
        begun = time.process_time()
        model.fit(X, y, groups=groups)
        fitted = time.process_time()
        found = scores(model.predict_distribution(X_test), y_test, float(np.std(y)))
    seconds = {"fit_cpu_seconds": fitted - begun, "predict_cpu_seconds": time.process_time() - fitted}
    return found | seconds | {"n_rows": len(y), "compiled_on_disk": os.environ.get(CACHE) != ""}


def page(records: list[Record]) -> list[str]:
    """Return the newest scores of each cell, and comparisons with BASELINE."""
    lines = sorted([*read(RESULTS / "floors.jsonl"), *records], key=lambda record: record["finished"])
    before = {_key(r): r for r in lines if r["commit"] == BASELINE}
    before |= {
        (*k[:-1], seed): r for k, r in before.items() for seed in SEEDS if (*k[:-1], seed) not in before
    }
    after = {_key(r): r for r in lines if r["commit"] != BASELINE}
    newest = {k: (before | after)[k] for k in map(_key, records)}
    rows = [
        [*k[:2], k[-1], r["commit"][:7], *tables.numbers(r["results"], **COLUMNS)] for k, r in newest.items()
    ]
    compared = [k for k in newest if k in before and k in after]
    changes = [change(after[k]["results"], before[k]["results"]) for k in compared]
    scored = tables.table(["table", "split", "seed", "commit", *COLUMNS], rows)
    if not changes:
        return [scored]
    medians = [statistics.median(x for x in column if x == x) for column in zip(*changes, strict=True)]
    named = zip([*compared, ("median", "", "")], [*changes, medians], strict=True)
    more = [[*k[:2], k[-1], *map(tables.number, row)] for k, row in named]
    changed = [*(f"{c}, ratio" for c in RATIOS), *(f"{c}, difference" for c in DIFFERENCES)]
    return [scored, tables.table(["table", "split", "seed", *changed], more)]


def _key(record: Record) -> tuple:
    return tuple(record["settings"][k] for k in ("table", "split", "model", "rows", "seed"))


def change(after: dict[str, Any], before: dict[str, Any]) -> list[float]:
    """Return RATIOS and DIFFERENCES of two results; NaN if a score is not finite."""
    new, old = ({c: np.nan if r[c] is None else r[c] for c in COLUMNS} for r in (after, before))
    return [*(new[c] / old[c] for c in RATIOS), *(new[c] - old[c] for c in DIFFERENCES)]
