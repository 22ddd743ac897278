"""X22: mini-batches of nearest neighbours on two million rows (the sgGP paper's table 2): OTL circuit and wing weight.

1.2 million rows to train on, RBF kernel with a lengthscale per input, batches of 16, 25 epochs of Adam at 0.01 with cosine decay; local
prediction of 40,000 test rows from 256 rows each. `peak` is its largest resident memory up to the end
of the fit, rows, libraries, neighbour search and compilation included, `with prediction` up to the end. RMSE is of standardised targets;
`ratio` to the least that the noise allows. Noise and distribution of the paper's inputs are not stated.
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
