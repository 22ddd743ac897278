"""`memory_limits`: random (rows, inputs, limit): fit, predict and functions under `memory_limit`, each run in a process of its own.

`peak` is the process's largest resident memory, which has to stay within the limit; `refused` names the calls that said, with both numbers,
that they would exceed it. STOCHGP_MEMORY_RUNS=20 makes 20 runs instead of 100. Linux and macOS only.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np

from measuring.places import ROOT

KEYS = ("run",)
RUNS = int(os.environ.get("STOCHGP_MEMORY_RUNS", "100"))
QUICK_RUNS = 3
ROWS, INPUTS, LIMITS = (200, 60_000), (1, 40), (0.4e9, 2e9)  # drawn evenly on a logarithmic scale
SECONDS = 60.0  # for a fit: more changes nothing of the memory
TEST_ROWS, FUNCTIONS = 5_000, 10


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per run."""
    rows = []
    for number in range(QUICK_RUNS if quick else RUNS):
        command = [sys.executable, "-m", "benchmarks.memory_limits", str(number)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        rows.append(json.loads(found.stdout))
        report(json.dumps(rows[-1]))
    return {"settings": {"seconds": SECONDS, "test_rows": TEST_ROWS, "functions": FUNCTIONS}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people; memory in megabytes (10⁶ bytes)."""
    headings = ["run", "model", "rows", "inputs", "limit MB", "peak MB", "kept", "refused"]
    return headings, [
        [
            row["run"],
            row["model"],
            row["n_rows"],
            row["n_inputs"],
            round(row["limit"] / 1e6),
            round(row["peak"] / 1e6),
        ]
        + [row["kept"], ", ".join(row["refused"]) or "-"]
        for row in result["rows"]
    ]


def drawn(number: int) -> dict:
    """The run of this number."""
    generator = np.random.default_rng(number)
    between = lambda low, high: float(np.exp(generator.uniform(np.log(low), np.log(high))))
    n_rows, n_inputs, limit = round(between(*ROWS)), round(between(*INPUTS)), round(between(*LIMITS))
    model = "kernel" if generator.random() < 0.6 else "feature"
    return {"run": number, "model": model, "n_rows": n_rows, "n_inputs": n_inputs, "limit": limit}


def measure(number: int) -> dict:
    """One run in this process."""
    warnings.simplefilter("ignore")
    import stochgp
    from stochgp import budget

    what, refused = drawn(number), []
    generator = np.random.default_rng(number)
    X = generator.normal(size=(what["n_rows"], what["n_inputs"]))
    y = np.sin(2 * X[:, 0]) + 0.3 * generator.normal(size=len(X))
    kind = stochgp.KernelGPRegressor if what["model"] == "kernel" else stochgp.FeatureGPRegressor
    # Local prediction would spare what is to be measured.
    settings = {"prediction": "global"} if what["model"] == "kernel" else {}
    model = kind(memory_limit=what["limit"], time_limit=SECONDS, random_state=0, **settings)
    rows = generator.normal(size=(TEST_ROWS, what["n_inputs"]))
    calls = {
        "fit": lambda: model.fit(X, y),
        "predict": lambda: model.predict(rows, return_std=True),
        "functions": lambda: model.sample_functions(FUNCTIONS)(rows),
    }
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            if "memory_limit is" not in str(error):
                raise
            refused.append(name)
            if name == "fit":
                break
    peak = budget.peak_resident()
    return what | {"peak": peak, "kept": peak <= what["limit"], "refused": refused}


if __name__ == "__main__":
    json.dump(measure(int(sys.argv[1])), sys.stdout)
