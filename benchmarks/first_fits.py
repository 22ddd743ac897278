"""`first_fits`: seconds until something is there in a fresh process: import, first fit, next fit, help; beside scikit-learn's exact GP.

Rows of 5 inputs, simulated with noise; `KernelGPRegressor()` and `FeatureGPRegressor()` as they come, `GaussianProcessRegressor` with the
same kernel (Matérn-3/2, a lengthscale per input, variance, white noise), without restarts. The next fit has 517 other rows and runs in the
process that has fitted 500. A first fit finds nothing compiled on disk, or, of the sides that are "kept", all that it needs. Each figure is
the median over processes, least and greatest beside it; the sides take turns.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

from measuring.places import ROOT

KEYS = ("side", "n_rows")
FIRST, NEXT, MANY, N_INPUTS, N_TEST = 500, 517, 2_000, 5, 1_000
CELLS = (
    ("kernel", FIRST), ("feature", FIRST), ("kernel, kept", FIRST), ("feature, kept", FIRST), ("scikit-learn", FIRST),
    ("kernel", MANY), ("scikit-learn", MANY), ("help", 0),
)  # fmt: skip
REPEATS = 5
KEPT = ", kept"
CACHE = "JAX_COMPILATION_CACHE_DIR"  # empty: a process finds no compiled code
ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per side and number of rows."""
    cells = [cell for cell in CELLS if not (quick and MANY in cell)]
    runs: dict[tuple[str, int], list[dict]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        for side, n_rows in cells:
            if side.endswith(KEPT):
                _in_fresh_process(side, n_rows, folder)
        for _ in range(1 if quick else REPEATS):
            for side, n_rows in cells:
                runs[side, n_rows].append(_in_fresh_process(side, n_rows, folder))
                report(f"{side}, {n_rows} rows: {json.dumps(runs[side, n_rows][-1])}")
    rows = [{"side": side, "n_rows": n_rows, **summary(found)} for (side, n_rows), found in runs.items()]
    return {"settings": {"n_inputs": N_INPUTS, "next_rows": NEXT}, "rows": rows}


def summary(runs: list[dict]) -> dict:
    """Of each figure that the processes have: the median, the least and the greatest."""
    return {
        name: {"median": median(values), "least": min(values), "greatest": max(values)}
        for name in runs[0]
        for values in [[found[name] for found in runs]]
    }


def table(result: dict) -> tuple[list[str], list[list]]:
    """Medians; an empty cell where a side has no such figure."""
    fields = ("process_seconds", "import_seconds", "first_seconds", "next_seconds", "rmse")
    headings = ["side", "rows", "whole process s", "import s", "first fit s", "next fit s", "RMSE"]
    return headings, [
        [r["side"], r["n_rows"] or "", *(round(r[f]["median"], 3) if f in r else "" for f in fields)]
        for r in result["rows"]
    ]


def measure(side: str, n_rows: int) -> dict:
    """One run in this process, which should be a fresh one."""
    begun = time.perf_counter()
    make = _SIDES[side]()
    found = {"import_seconds": time.perf_counter() - begun}
    X, y, X_test, f_test = simulated(n_rows, seed=0)
    found["first_seconds"], model = _fitted(make, X, y)
    if n_rows == FIRST:
        found["next_seconds"], _ = _fitted(make, *simulated(NEXT, seed=1)[:2])
    error = model.predict(X_test) - f_test
    return found | {"rmse": float((error @ error / len(error)) ** 0.5)}


def simulated(n_rows: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """(X, y, X_test, f at X_test): sin x₀ + x₁x₂/2 + noise of std 0.1; two inputs are without effect."""
    import numpy as np

    generator = np.random.default_rng(seed)
    X, X_test = (generator.normal(size=(n, N_INPUTS)) for n in (n_rows, N_TEST))
    f, f_test = (np.sin(A[:, 0]) + 0.5 * A[:, 1] * A[:, 2] for A in (X, X_test))
    return X, f + 0.1 * generator.normal(size=n_rows), X_test, f_test


def _fitted(make: Callable[[], Any], X: Any, y: Any) -> tuple[float, Any]:
    """(seconds, the fitted model)."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make().fit(X, y)
    return time.perf_counter() - begun, model


def _kernel() -> Callable[[], Any]:
    from stochgp import KernelGPRegressor

    return lambda: KernelGPRegressor(random_state=0)


def _feature() -> Callable[[], Any]:
    from stochgp import FeatureGPRegressor

    return lambda: FeatureGPRegressor(random_state=0)


def _scikit_learn() -> Callable[[], Any]:
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    def make():
        matern = kernels.Matern([1.0] * N_INPUTS, (1e-2, 1e3), nu=1.5)
        kernel = kernels.ConstantKernel(1.0) * matern + kernels.WhiteKernel(0.1)
        return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)

    return make


_SIDES = {"kernel": _kernel, "feature": _feature, "scikit-learn": _scikit_learn}


def _in_fresh_process(side: str, n_rows: int, folder: str) -> dict:
    """What the process says, and the seconds from its start to its end; compiled code of sides that are "kept" is in `folder`."""
    own = [sys.executable, "-m", "benchmarks.first_fits", side.removesuffix(KEPT), str(n_rows)]
    command = [sys.executable, "-m", "stochgp", "--help"] if side == "help" else own
    variables = os.environ | ({CACHE: folder} | ALL if side.endswith(KEPT) else {CACHE: ""})
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=variables)
    seconds = {"process_seconds": time.perf_counter() - begun}
    return seconds if side == "help" else json.loads(done.stdout) | seconds


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], int(sys.argv[2])), sys.stdout)
