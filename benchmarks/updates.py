"""`updates`: 1,000 new rows for a global kernel GP of 50,000, by `update`, against a fit of all 51,000 at the same hyperparameters.

Simulated borehole rows with noise; a Matérn-3/2 kernel of given hyperparameters, the mean and 15 functions solved for. Both solves end at the same
relative residual, measured on all rows: `iterations` and `seconds` are those of the solve of all rows, from the weights before (`update`) and from zero (`fit`).
`apart` is the largest difference of their means at new points, in standard deviations of observations. Each solver in a process of its own.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from measuring.places import ROOT

KEYS = ("solver", "n_rows", "n_new", "way")
SOLVERS = ("cg", "sdd")
ROWS, NEW, QUICK_ROWS, QUICK_NEW, TEST_ROWS = 50_000, 1_000, 4_000, 100, 1_000
LENGTHSCALE, VARIANCE, NOISE, SAMPLES = 4.0, 1.0, 0.01, 15  # of standardised rows


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """Two rows per solver."""
    rows = []
    for solver in SOLVERS:
        command = [sys.executable, "-m", "benchmarks.updates", solver, *(["quick"] if quick else [])]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        rows += json.loads(found.stdout)
        report(found.stdout)
    given = {"lengthscale": LENGTHSCALE, "variance": VARIANCE, "noise_variance": NOISE, "n_samples": SAMPLES}
    return {"settings": {"function": "borehole", **given}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    headings = ["solver", "rows", "new", "way", "iterations", "seconds", "residual", "apart"]
    return headings, [
        [r["solver"], r["n_rows"], r["n_new"], r["way"], round(r["iterations"], 1), round(r["seconds"], 1)]
        + [f"{r['residual']:.2g}", f"{r['apart']:.2g}"]
        for r in result["rows"]
    ]


def measure(solver: str, quick: bool) -> list[dict]:
    """A fit, its update, and a fit of all rows."""
    warnings.simplefilter("ignore")
    from benchmarks.datasets.functions import load_function

    N, n = (QUICK_ROWS, QUICK_NEW) if quick else (ROWS, NEW)
    data = load_function("borehole", N + n + TEST_ROWS, test_fraction=TEST_ROWS / (N + n + TEST_ROWS))
    X, Z = ((part - data.X.mean(axis=0)) / data.X.std(axis=0) for part in (data.X, data.X_test))
    y = (data.y - data.y.mean()) / data.y.std()
    first = _model(solver).fit(X[:N], y[:N])
    known = len(first.history_)
    begun = time.perf_counter()
    first.update(X[N:], y[N:])
    updating = time.perf_counter() - begun
    begun = time.perf_counter()
    whole = _model(solver).fit(X, y)
    fitting = time.perf_counter() - begun
    mean, std = whole.predict(Z, return_std=True, include_noise=True)
    apart = float(np.max(np.abs(first.predict(Z) - mean) / std))
    same: dict[str, Any] = {"solver": solver, "n_rows": N, "n_new": n, "apart": apart}
    ways = (("update", first, first.history_[known:], updating), ("fit", whole, whole.history_, fitting))
    return [
        same
        | {
            "way": way,
            "iterations": float(history[-1]["epoch"]),
            "seconds": seconds,
            "residual": model.fit_report_["residual"],
            "converged": bool(model.converged_),
        }
        for way, model, history, seconds in ways
    ]


def _model(solver: str) -> Any:
    from stochgp import KernelGPRegressor, kernels

    kernel = kernels.Matern32(np.full(8, LENGTHSCALE), VARIANCE)
    settings = {
        "learner": None,
        "noise_variance": NOISE,
        "standardize": False,
        "mean": 0.0,
        "likelihood": "gaussian",
    }
    return KernelGPRegressor(
        kernel, solver=solver, prediction="global", n_samples=SAMPLES, random_state=0, **settings
    )


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], "quick" in sys.argv), sys.stdout)
