"""X21: mini-batches of neighbours on the benchmarks of the sgGP paper (table 1).

The kernel is RBF with a lengthscale per input. 60 % of the rows are training rows; data are standardised by
them. Adam runs at 0.01 with cosine decay. `m = 16` has 100 epochs as in the paper, and `m = 128` is the
default of 4,096 steps. Seconds include neighbour search and compilation. RMSE is that of local prediction
from 256 rows; `exact` is that of the exact posterior. `ratio` is the RMSE divided by the smallest possible
one. The paper does not state its noise and its preparation of bike rentals; its seconds are minutes of the
table times 60. `SVGP` is the default `SparseGPRegressor` with 512 inducing points.
"""

import math
from typing import Any

from experiments import sggp
from measuring import tables
from measuring.store import Cell, Record, select

SETS = {
    "levy": "Levy",
    "griewank": "Griewank",
    "bike-hourly": "Bike",
    "protein": "Protein",
    "borehole": "Borehole",
}
TRIALS, LARGE_TRIALS, PAPER_BATCH, PAPER_EPOCHS, DEFAULT_BATCH = 10, 3, 16, 100, 128
SVGP = "SVGP"  # used instead of a batch size


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [_cell("levy", 16, 5, 0, rows=400)]
    found = []
    for name in SETS:
        for trial in range(LARGE_TRIALS if name == "borehole" else TRIALS):
            found += [_cell(name, PAPER_BATCH, PAPER_EPOCHS, trial), _cell(name, DEFAULT_BATCH, None, trial)]
        if name != "borehole":
            found.append({"set": name, "batch": SVGP, "trial": 0})
    return found


def _cell(name: str, batch: int, epochs: int | None, trial: int, rows: int | None = None) -> Cell:
    return {"set": name, "batch": batch, "epochs": epochs, "trial": trial, "rows": rows}


def run(cell: Cell) -> dict:
    if cell["batch"] == SVGP:
        return sggp.sparse(sggp.load(cell["set"], cell["trial"]), cell["trial"])
    split = sggp.load(cell["set"], cell["trial"], cell["rows"])
    found, figures = sggp.fit(cell, split)
    return figures | sggp.predict(found, split, cell["trial"])


def page(records: list[Record]) -> list[str]:
    theirs = sggp.published("sggp_benchmarks")
    headings = [
        "set", "m", "trials", "RMSE", "published", "ratio", "exact", "NLPD", "calibrated", "95 % coverage",
        "seconds", "of them search", "published seconds", "µs a step", "peak MB",
    ]  # fmt: skip
    rows = []
    for name, title in SETS.items():
        for batch in (PAPER_BATCH, DEFAULT_BATCH, SVGP):
            if not (runs := select(records, set=name, batch=batch)):
                continue
            get: Any = lambda field, runs=runs: [r["results"].get(field, math.nan) for r in runs]
            paper = theirs.get(title, {})
            rows.append(
                [
                    name, batch, len(runs), tables.spread(get("rmse")), paper.get("rmse", "n/a"),
                    tables.spread(get("ratio")), tables.spread(get("rmse_exact")), tables.spread(get("nlpd")),
                    tables.spread(get("nlpd_calibrated")), tables.spread(get("coverage95")),
                    tables.spread(get("fit_seconds"), 1), tables.spread(get("search_seconds"), 1),
                    tables.number(60 * float(paper.get("train_minutes") or math.nan), 0),
                    tables.spread(get("step_us"), 1), tables.number(max(get("peak_bytes")) / 1e6, 0),
                ]
            )  # fmt: skip
    return [tables.table(headings, rows)]
