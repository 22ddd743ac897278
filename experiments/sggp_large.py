"""X22: mini-batches of nearest neighbours on two million rows (the sgGP paper's table 2): OTL circuit and wing weight.

1.2 million rows to train on, RBF kernel with a lengthscale per input, batches of 16, 25 epochs of Adam at 0.01 with cosine decay; local
prediction of 40,000 test rows from 256 rows each. Every fit is in a fresh process: `peak` is its largest resident memory up to the end
of the fit, rows, libraries, neighbour search and compilation included, `with prediction` up to the end. RMSE is of standardised targets;
`ratio` to the least that the noise allows. Noise and distribution of the paper's inputs are not stated.
"""

import json
import subprocess
import sys
from typing import Any

from experiments import sggp_scores
from experiments.sggp_sets import published
from measuring import sggp, tables
from measuring.store import Cell, Record, select
from stochgp import budget

SETS, BATCH, EPOCHS, TRIALS, SLOW_TRIALS = {"otl": "OTL Circuit", "wing": "Wing Weight"}, 16, 25, 3, 10
ONE_CORE = False


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "otl", "batch": BATCH, "epochs": 2, "trial": 0, "rows": 2_000}]
    trials = range(SLOW_TRIALS if slow else TRIALS)
    return [
        {"set": name, "batch": BATCH, "epochs": EPOCHS, "trial": trial, "rows": None}
        for name in SETS
        for trial in trials
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["epochs"]


def run(cell: Cell) -> dict:
    """All figures, from a fresh process."""
    command = [sys.executable, "-m", "experiments.sggp_large", json.dumps(cell)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measure(cell: Cell) -> dict:
    split = sggp.load(cell["set"], cell["trial"], cell["rows"])
    found, figures = sggp.fit(cell, split)
    figures |= sggp_scores.predict(found, split, cell["trial"])
    return figures | {"peak_with_prediction": budget.peak_resident()}


def page(records: list[Record]) -> list[str]:
    theirs = published("sggp_toy")
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


def figure(records: list[Record]) -> None:
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1])), default=float))
