"""`KernelGPRegressor()` as it comes on the six UCI sets, split 0, against the exact posterior with the published hyperparameters.

No setting but `random_state`. NLPD and RMSE are of unit-variance targets, the NLPD includes the noise. Seconds are of `fit`,
learning, planning and compilation included, on the cores that the run may use; memory is the peak of the process so far.
The limits are Cholesky's of `posteriors` with 3 % and 0.05 (bike: 0.15) added, and what was asked for on kin40k.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.datasets.prepared import load_raw
from experiments.problems import ROWS, SETS, law_scores
from measuring import tables
from measuring.store import Cell, Record, select

LIMITS = {  # RMSE and NLPD that the fit is to stay within
    "pol": (1.03 * 0.08336, -1.2136 + 0.05),
    "elevators": (1.03 * 0.35664, 0.3920 + 0.05),
    "bike": (1.03 * 0.04306, -2.706 + 0.15),
    "kin40k": (0.10, -0.8),
    "protein": (1.03 * 0.4936, 0.642 + 0.05),
    "keggdirected": (1.03 * 0.0871, -0.714 + 0.05),
}
MINUTES, BYTES = 5, 3e9
ONE_CORE = False


def cells(quick: bool, slow: bool) -> list[Cell]:
    return [{"set": name, "split": 0, "seed": 0} for name in (SETS[:1] if quick else SETS)]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return ROWS[cell["set"]]


def fitted(kind: Callable[..., Any], raw: Any, seed: int) -> tuple[Any, float]:
    """(An estimator with no other setting than a seed and a limit, the seconds of its fit)."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(random_state=seed, memory_limit="3GB").fit(raw.X, raw.y)
    return model, time.perf_counter() - begun


def run(cell: Cell) -> dict:
    from stochgp import KernelGPRegressor
    from stochgp.budget import peak_resident

    raw = load_raw(cell["set"], cell["split"])
    model, seconds = fitted(KernelGPRegressor, raw, cell["seed"])
    law = model.predict_distribution(raw.X_test)
    scale = float(np.std(raw.y))
    return {
        **law_scores(raw.y_test, law, scale),
        "likelihood": model.plan_.get("likelihood", {}).get("choice", "gaussian"),
        "fit_seconds": round(seconds, 1),
        "peak_bytes": peak_resident(),
        "learner": model.plan_["learner"]["choice"],
        "solver": model.plan_.get("solver", {}).get("choice", "none"),
        "turns": model.plan_["rotation"]["choice"],
        "noise_std": float(np.sqrt(model.noise_variance_)) / scale,
        "converged": str(bool(model.converged_)),
    }


def page(records: list[Record]) -> list[str]:
    headings = [
        "set",
        "RMSE",
        "NLPD",
        "CRPS",
        "95 % coverage",
        "distribution",
        "seconds",
        "peak GB so far",
        "learner",
        "solver",
        "RMSE limit",
        "NLPD limit",
        "kept",
    ]
    rows = []
    for name in SETS:
        for record in select(records, set=name):
            found, limits = record["results"], LIMITS.get(name, (math.inf, math.inf))
            kept = (
                found["rmse"] <= limits[0]
                and found["nlpd"] <= limits[1]
                and found["fit_seconds"] <= 60 * MINUTES
            )
            scores = [tables.number(found[field], digits) for field, digits in (("rmse", 4), ("nlpd", 3), ("crps", 4), ("coverage95", 3))]  # fmt: skip
            memory = tables.number(found["peak_bytes"] / 1e9, 2)
            bounds = [tables.number(limit, 4) for limit in limits]
            rows.append(
                [
                    name,
                    *scores,
                    found["likelihood"],
                    tables.number(found["fit_seconds"], 0),
                    memory,
                    found["learner"],
                    found["solver"],
                    *bounds,
                    "yes" if kept else "no",
                ]
            )
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    """NLPD per set."""
    drawing = Figure(figsize=(6, 3), layout="constrained")
    panel = drawing.subplots()
    found = {record["settings"]["set"]: record["results"]["nlpd"] for record in records}
    panel.bar(list(found), list(found.values()))
    panel.set(ylabel="NLPD, unit-variance targets")
    return drawing
