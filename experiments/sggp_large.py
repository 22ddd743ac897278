"""X22: mini-batches of neighbours on two million rows (sgGP paper, table 2).

The sets are OTL circuit and wing weight with 1.2 million training rows. The kernel is RBF with a lengthscale
per input. Adam runs 25 epochs at 0.01 with cosine decay and batches of 16. Local prediction of 40,000 test
rows uses 256 rows each. `peak` is the largest resident memory until the end of the fit. `ratio` is the RMSE
divided by the smallest possible RMSE. The paper does not state noise and distribution of inputs.
"""

from typing import Any

from experiments import sggp
from measuring import tables
from measuring.store import Cell, Record, select
from stochgp import budget

SETS, BATCH, EPOCHS, TRIALS, SLOW_TRIALS = {"otl": "OTL Circuit", "wing": "Wing Weight"}, 16, 25, 3, 10


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "otl", "batch": BATCH, "epochs": 2, "trial": 0, "rows": 2_000}]
    trials = range(SLOW_TRIALS if slow else TRIALS)
    return [
        {"set": name, "batch": BATCH, "epochs": EPOCHS, "trial": trial, "rows": None}
        for name in SETS
        for trial in trials
    ]


def run(cell: Cell) -> dict:
    split = sggp.load(cell["set"], cell["trial"], cell["rows"])
    found, figures = sggp.fit(cell, split)
    figures |= sggp.predict(found, split, cell["trial"])
    return figures | {"peak_with_prediction": budget.peak_resident()}


def page(records: list[Record]) -> list[str]:
    theirs = sggp.published("sggp_toy")
    headings = [
        "set", "trials", "RMSE", "published", "ratio", "95 % coverage", "seconds", "of them search",
        "published seconds", "µs a step", "seconds of prediction", "peak MB", "published MB", "with prediction",
    ]  # fmt: skip
    rows = []
    for name, title in SETS.items():
        if not (runs := select(records, set=name)):
            continue
        get: Any = lambda field, runs=runs: [r["results"][field] for r in runs]
        paper = theirs.get(title, {"rmse": "n/a", "train_minutes": "nan", "memory_gb": "nan"})
        rows.append(
            [
                name, len(runs), tables.spread(get("rmse"), 4), paper["rmse"], tables.spread(get("ratio"), 4),
                tables.spread(get("coverage95")), tables.spread(get("fit_seconds"), 0),
                tables.spread(get("search_seconds"), 0), tables.number(60 * float(paper["train_minutes"]), 0),
                tables.spread(get("step_us"), 1), tables.spread(get("predict_seconds"), 0),
                tables.number(max(get("peak_bytes")) / 1e6, 0), tables.number(1e3 * float(paper["memory_gb"]), 0),
                tables.number(max(get("peak_with_prediction")) / 1e6, 0),
            ]
        )  # fmt: skip
    return [tables.table(headings, rows)]
