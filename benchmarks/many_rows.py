"""`many_rows`: default kernel GPs, and a default pool, for a million simulated rows.

"borehole, pooled" is `GPRegressor()`; the others are `KernelGPRegressor()`. `learning_seconds` are those of
learning hyperparameters, `fit_seconds` those of `fit`, and `predict_seconds` those of all predictions. `peak`
is the largest resident memory. `rmse_noise` is the root mean squared error on noisy targets divided by the
standard deviation of the noise, and is at least about 1. Linux and macOS only.
"""

import time
import warnings
from typing import Any

import numpy as np

from measuring import store
from measuring.harness import choice
from measuring.tables import table

POOLED, INTERVALS = ", pooled", 10_000
LIMITS = {"borehole": 10**9}


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    sizes = {"borehole": 1_000_000, "wing": 1_200_000, "borehole" + POOLED: 1_000_000}
    if quick:
        return [{"test_rows": 4_000, "function": "borehole", "n_rows": 4_000}]
    return [{"test_rows": 100_000, "function": name, "n_rows": n} for name, n in sizes.items()]


def run(cell: store.Cell) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    import stochgp
    from benchmarks.datasets.functions import FUNCTIONS, load_function
    from stochgp import budget, metrics

    name, n_test = cell["function"], cell["test_rows"]
    function, n_all = name.removesuffix(POOLED), cell["n_rows"] + n_test
    rows = load_function(function, n_all, test_fraction=n_test / n_all, dtype=np.float32)
    begun = time.perf_counter()
    kind = stochgp.KernelGPRegressor if name == function else stochgp.GPRegressor
    model: Any = kind(memory_limit=LIMITS.get(name), random_state=0).fit(rows.X, rows.y)
    fitted = time.perf_counter()
    mean, std = model.predict(rows.X_test, return_std=True, include_noise=True)
    predicted = time.perf_counter()
    parts = [model] if name == function else list(model.estimators_.values())
    seconds = [[entry["seconds"] for entry in part.history_ if "seconds" in entry] for part in parts]
    y = rows.y_test.astype(np.float64)
    lower, upper = model.predict_interval(rows.X_test[:INTERVALS]).T
    return {
        "learning_seconds": sum(max(of, default=0.0) for of in seconds),
        "fit_seconds": fitted - begun,
        "predict_seconds": predicted - fitted,
        "peak": budget.peak_resident(),
        "rmse_noise": metrics.rmse(y, mean) / FUNCTIONS[function].noise_std,
        "nlpd": metrics.nlpd(y, mean, std) - float(np.log(np.std(rows.y))),
        "coverage_95": float(np.mean((lower <= y[:INTERVALS]) & (y[:INTERVALS] <= upper))),
        "neighbours": max(choice(part, "neighbours", 0) for part in parts),
        "likelihood": ", ".join(str(choice(part, "likelihood")) for part in parts),
    }


def page(records: list[store.Record]) -> list[str]:
    fields = (
        "learning_seconds",
        "fit_seconds",
        "predict_seconds",
        "peak_mb",
        "rmse_noise",
        "nlpd",
        "coverage_95",
        "neighbours",
    )
    headings = "function | rows | learning s | fit s | prediction s | peak MB | RMSE / noise | NLPD | 95 % | neighbours"
    rows = [row | {"peak_mb": row["peak"] / 1e6} for row in store.rows(records)]
    return [
        table(headings, ([r["function"], r["n_rows"], *(float(f"{r[f]:.4g}") for f in fields)] for r in rows))
    ]
