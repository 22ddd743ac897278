"""`updates`: `update` of a kernel GP of 50,000 rows with 1,000 rows, compared with a fit.

Rows of the borehole function are simulated. The kernel is Matérn-3/2 with fixed hyperparameters. Both solves
end at the same relative residual: `update` starts from the old weights, and `fit` from zero. `apart` is the
largest difference of their means, in standard deviations of observations.
"""

import time
import warnings
from typing import Any

import numpy as np

from measuring import store
from measuring.tables import table

KEYS = ("way",)
TEST_ROWS = 1_000


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    given = {
        "lengthscale": 4.0,
        "variance": 1.0,
        "noise_variance": 0.01,
    }  # for standardised rows
    sizes = {"n_rows": 4_000, "n_new": 100} if quick else {"n_rows": 50_000, "n_new": 1_000}
    return [{"function": "borehole", **given, "solver": solver, **sizes} for solver in ("cg", "sdd")]


def run(cell: store.Cell) -> list[dict[str, Any]]:
    """Return a row for the update, and a row for a fit to all rows."""
    warnings.simplefilter("ignore")
    from benchmarks.datasets import load_function

    N = cell["n_rows"]
    n_all = N + cell["n_new"] + TEST_ROWS
    data = load_function(cell["function"], n_all, test_fraction=TEST_ROWS / n_all)
    X, Z = ((part - data.X.mean(axis=0)) / data.X.std(axis=0) for part in (data.X, data.X_test))
    y = (data.y - data.y.mean()) / data.y.std()
    first, whole = _model(cell).fit(X[:N], y[:N]), _model(cell)
    n_known, seconds = len(first.history_), []
    for work in (lambda: first.update(X[N:], y[N:]), lambda: whole.fit(X, y)):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    mean, std = whole.predict(Z, return_std=True, include_noise=True)
    apart = float(np.max(np.abs(first.predict(Z) - mean) / std))
    ways = (("update", first, first.history_[n_known:]), ("fit", whole, whole.history_))
    return [
        {
            "way": way, "apart": apart, "iterations": float(history[-1]["epoch"]), "seconds": took,
            "residual": model.fit_report_["residual"], "converged": bool(model.converged_),
        }
        for (way, model, history), took in zip(ways, seconds, strict=True)
    ]  # fmt: skip


def page(records: list[store.Record]) -> list[str]:
    rows = [
        [r["solver"], r["n_rows"], r["n_new"], r["way"], round(r["iterations"], 1), round(r["seconds"], 1)]
        + [f"{r['residual']:.2g}", f"{r['apart']:.2g}"]
        for r in store.rows(records)
    ]
    return [table("solver | rows | new | way | iterations | seconds | residual | apart", rows)]


def _model(cell: store.Cell) -> Any:
    from stochgp import KernelGPRegressor, kernels
    from stochgp.likelihoods import Gaussian
    from stochgp.likelihoods.noise import known_noise

    kernel = kernels.Matern32(np.full(8, cell["lengthscale"]), cell["variance"])
    return KernelGPRegressor(kernel, learner=None, solver=cell["solver"], likelihood=Gaussian(known_noise(cell["noise_variance"])), standardize=False, mean=0.0, random_state=0)  # fmt: skip
