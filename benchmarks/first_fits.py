"""`first_fits`: seconds until something is there in a fresh process: import, first fit, next fit, help; beside scikit-learn's exact GP.

Rows of 5 inputs, simulated with noise; `KernelGPRegressor()` and `FeatureGPRegressor()` at their defaults, `GaussianProcessRegressor` with the
same kernel (Matérn-3/2, a lengthscale per input, variance, white noise), without restarts. The next fit has 517 other rows and runs in the
process that has fitted 500. A first fit finds nothing compiled on disk, or, of the sides that are "kept", all that it needs. Each figure is
the median over five processes, least and greatest beside it.
"""

import subprocess
import sys
import tempfile
import time
import warnings
from statistics import median
from typing import Any

from measuring import store
from measuring.harness import CACHE, apart
from measuring.tables import table

FIRST, NEXT, MANY, N_INPUTS, N_TEST, REPEATS = 500, 517, 2_000, 5, 1_000, 5
CELLS = (
    ("kernel", FIRST), ("feature", FIRST), ("kernel, kept", FIRST), ("feature, kept", FIRST), ("scikit-learn", FIRST),
    ("kernel", MANY), ("scikit-learn", MANY), ("help", 0),
)  # fmt: skip
KEPT = ", kept"


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    common = {"n_inputs": N_INPUTS, "next_rows": NEXT}
    return [common | {"side": side, "n_rows": n} for side, n in CELLS if not (quick and n == MANY)]


def run(cell: store.Cell) -> dict[str, dict[str, float]]:
    """Of each figure that the processes have: the median, the least and the greatest."""
    kept = cell["side"].endswith(KEPT)
    with tempfile.TemporaryDirectory() as folder:
        variables = {CACHE: folder if kept else "", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        runs = [_process(cell, variables) for _ in range(REPEATS + kept)][kept:]
    each = {name: [found[name] for found in runs] for name in runs[0]}
    return {name: {"median": median(of), "least": min(of), "greatest": max(of)} for name, of in each.items()}


def _process(cell: store.Cell, variables: dict[str, str]) -> dict[str, float]:
    """The figures of a process, and the seconds from its start to its end."""
    begun, found = time.perf_counter(), {}
    if cell["side"] == "help":
        subprocess.run([sys.executable, "-m", "stochgp", "--help"], stdout=subprocess.DEVNULL, check=True)
    else:
        found = apart("benchmarks.first_fits", "measure", cell, variables=variables)["results"]
    return found | {"process_seconds": time.perf_counter() - begun}


def measure(cell: store.Cell) -> dict[str, float]:
    begun = time.perf_counter()
    make = {"kernel": _kernel, "feature": _feature, "scikit-learn": _scikit_learn}[
        cell["side"].removesuffix(KEPT)
    ]
    make()
    found = {"import_seconds": time.perf_counter() - begun}
    X, y, X_test, f_test = simulated(cell["n_rows"], seed=0)
    found["first_seconds"], model = _fitted(make(), X, y)
    if cell["n_rows"] == FIRST:
        found["next_seconds"], _ = _fitted(make(), *simulated(NEXT, seed=1)[:2])
    error = model.predict(X_test) - f_test
    return found | {"rmse": float((error @ error / len(error)) ** 0.5)}


def page(records: list[store.Record]) -> list[str]:
    """Medians; an empty cell if a side has no such figure."""
    fields = ("process_seconds", "import_seconds", "first_seconds", "next_seconds", "rmse")
    shown = lambda row, field: round(row[field]["median"], 3) if field in row else ""
    rows = (
        [r["side"], r["n_rows"] or "", *(shown(r, field) for field in fields)] for r in store.rows(records)
    )
    return [table("side | rows | whole process s | import s | first fit s | next fit s | RMSE", rows)]


def simulated(n_rows: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """(X, y, X_test, f at X_test): sin x₀ + x₁x₂/2 + noise of std 0.1; two inputs are without effect."""
    import numpy as np

    generator = np.random.default_rng(seed)
    X, X_test = (generator.normal(size=(n, N_INPUTS)) for n in (n_rows, N_TEST))
    f, f_test = (np.sin(A[:, 0]) + 0.5 * A[:, 1] * A[:, 2] for A in (X, X_test))
    return X, f + 0.1 * generator.normal(size=n_rows), X_test, f_test


def _fitted(model: Any, X: Any, y: Any) -> tuple[float, Any]:
    """(Seconds, the fitted model)."""
    begun = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):
        model.fit(X, y)
    return time.perf_counter() - begun, model


def _kernel() -> Any:
    from stochgp import KernelGPRegressor

    return KernelGPRegressor(random_state=0)


def _feature() -> Any:
    from stochgp import FeatureGPRegressor

    return FeatureGPRegressor(random_state=0)


def _scikit_learn() -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    lengthscales: Any = [1.0] * N_INPUTS
    kernel = ConstantKernel(1.0) * Matern(lengthscales, (1e-2, 1e3), nu=1.5) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
