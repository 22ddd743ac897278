"""`FeatureGPRegressor()` as it comes, and at batch sizes 32 and 512, on the six UCI sets, split 0.

No setting but `batch_size` (None = the default) and `random_state`. NLPD and RMSE are of unit-variance targets, NLPD and coverage include
the noise. `not finite` counts numbers of the history and of the predictions that are not finite; `recoveries` the evaluations that sent a fit
back to its best state. Seconds are of `fit`, compilation and the search for a rate included, on
the cores that the run may use: each line says how many.
"""

import math
import time

import numpy as np
from matplotlib.figure import Figure

from benchmarks.datasets.prepared import load_raw
from experiments.problems import ROWS, SETS, law_scores
from measuring import tables
from measuring.store import Cell, Record, select

BATCHES = (None, 32, 512)
LIMITS = {"bike": -1.2, "elevators": 0.45, "pol": -0.9, "kin40k": -0.9, "protein": 1.0, "keggdirected": -0.6}
COVERAGE, MINUTES = (0.90, 0.98), 5
ONE_CORE = False


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "synthetic", "split": 0, "batch": 32, "seed": 0}]
    splits = (0, 1, 2, 3, 4) if slow else (0,)
    return [
        {"set": name, "split": split, "batch": batch, "seed": 0}
        for batch in BATCHES
        for split in splits
        for name in SETS
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return ROWS[cell["set"]] * (4 if cell["batch"] == 32 else 1)


def run(cell: Cell) -> dict:
    from stochgp import FeatureGPRegressor

    raw = load_raw(cell["set"], cell["split"])
    begun = time.perf_counter()
    model = FeatureGPRegressor(batch_size=cell["batch"], random_state=cell["seed"]).fit(raw.X, raw.y)
    seconds = time.perf_counter() - begun
    law = model.predict_distribution(raw.X_test)
    scale = float(np.std(raw.y))
    history = [
        value for entry in model.history_ for value in entry.values() if isinstance(value, int | float)
    ]
    rates = [entry["rate"] for entry in model.history_ if "rate" in entry]
    return {
        **law_scores(raw.y_test, law, scale),
        "likelihood": model.plan_.get("likelihood", {}).get("choice", "gaussian"),
        "nlml": float(model.nlml_) - math.log(scale),
        "fit_seconds": round(seconds, 2),
        "not_finite": int(
            np.sum(~np.isfinite(history)) + np.sum(~np.isfinite(law.mean)) + np.sum(~np.isfinite(law.std))
        ),
        "recoveries": sum(1 for entry in model.history_ if entry.get("recovered")),
        "rate": float(rates[-1]) if rates else math.nan,
        "steps": int(model.n_iter_),
        "converged": str(bool(model.converged_)),
    }


def page(records: list[Record]) -> list[str]:
    fields = ["nlpd", "coverage95", "rmse", "nlml", "fit_seconds"]
    digits = [3, 3, 4, 3, 0]
    headings = [
        "batch",
        "set",
        "splits",
        "NLPD",
        "95 % coverage",
        "RMSE",
        "NLML",
        "seconds",
        "rate",
        "recoveries",
        "not finite",
        "kept",
    ]
    rows = []
    for batch in BATCHES:
        for name in (*SETS, "synthetic"):
            if runs := select(records, batch=batch, set=name):
                get = lambda field, runs=runs: [r["results"][field] for r in runs]
                sums = [sum(get(field)) for field in ("recoveries", "not_finite")]
                scores = [tables.spread(get(f), d) for f, d in zip(fields, digits, strict=True)]
                rates = ", ".join(sorted({tables.number(rate, 4) for rate in get("rate")}))
                rows.append([batch or "default", name, len(runs), *scores, rates, *sums, _kept(name, runs)])
    promise = "; ".join(f"{name} {limit}" for name, limit in LIMITS.items())
    note = f"Kept: NLPD at most ({promise}), coverage within {COVERAGE[0]} to {COVERAGE[1]}, at most {MINUTES} minutes, all of it finite."
    return [tables.table(headings, rows), note]


def figure(records: list[Record]) -> Figure:
    """NLPD per set and batch size, the promise as a bar."""
    drawing = Figure(figsize=(7, 4), layout="constrained")
    panel = drawing.subplots()
    for i, batch in enumerate(BATCHES):
        runs = [r for r in select(records, batch=batch) if r["settings"]["set"] in SETS]
        x = [SETS.index(r["settings"]["set"]) + 0.15 * (i - 1) for r in runs]
        values = [math.nan if r["results"]["nlpd"] is None else r["results"]["nlpd"] for r in runs]
        panel.plot(x, values, "o", label=f"batch {batch or 'default'}")
    panel.plot(
        range(len(SETS)), [LIMITS[name] for name in SETS], "_", color="black", markersize=30, label="at most"
    )
    panel.set_xticks(range(len(SETS)), SETS)
    panel.set_ylabel("held-out NLPD, unit-variance targets")
    panel.legend()
    return drawing


def _kept(name: str, runs: list[Record]) -> str:
    if name not in LIMITS:
        return "–"
    results = [r["results"] for r in runs]
    kept = all(
        r["not_finite"] == 0
        and r["nlpd"] is not None
        and r["nlpd"] <= LIMITS[name]
        and COVERAGE[0] <= r["coverage95"] <= COVERAGE[1]
        and r["fit_seconds"] <= 60 * MINUTES
        for r in results
    )
    return "yes" if kept else "no"
