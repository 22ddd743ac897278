"""`FeatureGPRegressor()`, also with batch sizes 32 and 512, on split 0 of six UCI sets.

NLPD and RMSE are for targets with unit variance; NLPD and coverage include the noise. `not finite` counts
such numbers in the history and in predictions, and `recoveries` counts returns to the best state. Seconds are
those of `fit`, including compilation.
"""

import functools
import math
from typing import Any

import numpy as np

from experiments.problems import SETS, default_scores
from measuring import tables
from measuring.store import Cell, Record, select

BATCHES = (None, 32, 512)
LIMITS = {"bike": -1.2, "elevators": 0.45, "pol": -0.9, "kin40k": -0.9, "protein": 1.0, "keggdirected": -0.6}
COVERAGE, MINUTES = (0.90, 0.98), 5


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "synthetic", "split": 0, "batch": 32, "seed": 0}]
    each = [(batch, split) for batch in BATCHES for split in ((0, 1, 2, 3, 4) if slow else (0,))]
    return [
        {"set": name, "split": split, "batch": batch, "seed": 0} for batch, split in each for name in SETS
    ]


def run(cell: Cell) -> dict:
    from stochgp import FeatureGPRegressor, learners

    kind = functools.partial(FeatureGPRegressor, learner=learners.SCGD(batch_size=cell["batch"]))
    model, found, scale = default_scores(kind, cell)
    history = [v for entry in model.history_ for v in entry.values() if isinstance(v, int | float)]
    rates = [entry["rate"] for entry in model.history_ if "rate" in entry]
    return found | {
        "nlml": float(model.nlml_) - math.log(scale),
        "not_finite": int(np.sum(~np.isfinite([*history, found["rmse"], found["nlpd"]]))),
        "recoveries": sum(1 for entry in model.history_ if entry.get("recovered")),
        "rate": float(rates[-1]) if rates else math.nan,
        "steps": int(model.n_iter_),
        "converged": str(bool(model.converged_)),
    }


def page(records: list[Record]) -> list[str]:
    fields = {"nlpd": 3, "coverage95": 3, "rmse": 4, "nlml": 3, "fit_seconds": 0}
    headings = "batch | set | splits | NLPD | 95 % coverage | RMSE | NLML | seconds | rate | recoveries | not finite | kept"
    rows = []
    for batch in BATCHES:
        for name in (*SETS, "synthetic"):
            if runs := select(records, batch=batch, set=name):
                get = lambda field, runs=runs: [r["results"][field] for r in runs]
                sums = [sum(get(field)) for field in ("recoveries", "not_finite")]
                scores = [tables.spread(get(field), digits) for field, digits in fields.items()]
                rates = ", ".join(sorted({tables.number(rate, 4) for rate in get("rate")}))
                kept = "yes" if all(_kept(name, r["results"]) for r in runs) else "no"
                rows.append([batch or "default", name, len(runs), *scores, rates, *sums, kept])
    promise = "; ".join(f"{name} {limit}" for name, limit in LIMITS.items())
    note = f"Kept: NLPD at most ({promise}), coverage within {COVERAGE[0]} to {COVERAGE[1]}, at most {MINUTES} minutes, all of it finite."
    return [tables.table(headings, rows), note]


def _kept(name: str, found: dict[str, Any]) -> bool:
    nlpd = math.inf if found["nlpd"] is None else found["nlpd"]
    good = nlpd <= LIMITS.get(name, 0.0) and COVERAGE[0] <= found["coverage95"] <= COVERAGE[1]
    return good and found["not_finite"] == 0 and found["fit_seconds"] <= 60 * MINUTES
