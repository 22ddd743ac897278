"""`many_rows`: default kernel GPs and a default pool of a million rows: simulated functions with noise, each fit in a fresh process.

"borehole, pooled" is `GPRegressor()`, whose `learning_seconds` are those of the members; the others are `KernelGPRegressor()`. Borehole has 1,000,000 rows to learn from and 100,000 test rows under a memory limit of 1 GB, wing weight 1,200,000 and 100,000 without one. `learning_seconds`
are those of learning hyperparameters, compilation included, `fit_seconds` those of `fit`, `predict_seconds` those of means and standard deviations of all test rows, `peak` the process's largest resident memory.
`rmse_noise` is the root mean squared error to the noisy test targets, over the noise's standard deviation: the least there can be is 1.
Linux and macOS only.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from measuring.places import ROOT

KEYS = ("function", "n_rows")
TEST_ROWS, QUICK_ROWS, INTERVALS = 100_000, 4_000, 10_000
POOLED = ", pooled"
CASES = {  # rows, memory limit
    "borehole": (1_000_000, 10**9),
    "wing": (1_200_000, None),
    "borehole" + POOLED: (1_000_000, None),
}


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per function."""
    rows = []
    for name in list(CASES)[: 1 if quick else None]:
        command = [sys.executable, "-m", "benchmarks.many_rows", name, *(["quick"] if quick else [])]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        rows.append(json.loads(found.stdout))
        report(json.dumps(rows[-1]))
    return {"settings": {"test_rows": QUICK_ROWS if quick else TEST_ROWS}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people; memory in megabytes (10⁶ bytes)."""
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
    headings = ["function", "rows", "learning s", "fit s", "prediction s", "peak MB", "RMSE / noise", "NLPD", "95 %", "neighbours"]  # fmt: skip
    rows = [row | {"peak_mb": row["peak"] / 1e6} for row in result["rows"]]
    return headings, [[r["function"], r["n_rows"], *(float(f"{r[f]:.4g}") for f in fields)] for r in rows]


def measure(name: str, quick: bool) -> dict:
    """One fit and its predictions in this process."""
    warnings.simplefilter("ignore")
    import stochgp
    from benchmarks.datasets.functions import FUNCTIONS, load_function
    from stochgp import budget, metrics

    n_rows, limit = (QUICK_ROWS, None) if quick else CASES[name]
    n_test = QUICK_ROWS if quick else TEST_ROWS
    function = name.removesuffix(POOLED)
    rows = load_function(
        function, n_rows + n_test, test_fraction=n_test / (n_rows + n_test), dtype=np.float32
    )
    begun = time.perf_counter()
    kind = stochgp.KernelGPRegressor if name == function else stochgp.GPRegressor
    model = kind(memory_limit=limit, random_state=0).fit(rows.X, rows.y)
    fitted = time.perf_counter()
    mean, std = model.predict(rows.X_test, return_std=True, include_noise=True)
    predicted = time.perf_counter()
    parts = list(model.estimators_.values()) if name != function else [model]
    kernel_plan = next((part.plan_ for part in parts if "neighbours" in part.plan_), {})
    y, scale = rows.y_test.astype(np.float64), float(np.std(rows.y))
    lower, upper = model.predict_interval(rows.X_test[:INTERVALS]).T
    return {
        "function": name,
        "n_rows": len(rows.X),
        "learning_seconds": sum(
            max((entry["seconds"] for entry in part.history_ if "seconds" in entry), default=0.0)
            for part in parts
        ),
        "fit_seconds": fitted - begun,
        "predict_seconds": predicted - fitted,
        "peak": budget.peak_resident(),
        "rmse_noise": metrics.rmse(y, mean) / FUNCTIONS[function].noise_std,
        "nlpd": metrics.nlpd(y, mean, std) - float(np.log(scale)),
        "coverage_95": float(np.mean((lower <= y[:INTERVALS]) & (y[:INTERVALS] <= upper))),
        "neighbours": kernel_plan.get("neighbours", {"choice": 0})["choice"],
        "why_neighbours": kernel_plan.get("neighbours", {"why": ""})["why"],
        "law": ", ".join(str(part.plan_["likelihood"]["choice"]) for part in parts),
    }


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], "quick" in sys.argv), sys.stdout)
