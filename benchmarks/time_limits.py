"""`time_limits`: fits under `time_limit`: 2, 5 and 20 seconds on kin40k, protein and 200,000 rows by both estimators, as they come.

Each fit is in a process of its own that keeps no compiled code, so that compilation counts; `seconds` are those of `fit`, data in memory.
`allowed` is the limit plus 3 seconds or 20 %, whichever is more; `kept` says whether the fit ended within it.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from measuring.places import ROOT

SETS, LIMITS, MODELS = ("kin40k", "protein", "many"), (2.0, 5.0, 20.0), ("kernel", "feature")
KEYS = ("set", "model", "limit")
GRACE, SHARE = 3.0, 0.2
MANY, TEST_ROWS = 200_000, 2_000


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per set, model and limit."""
    rows = []
    for name in SETS[:1] if quick else SETS:
        for model in MODELS:
            for limit in LIMITS[:1] if quick else LIMITS:
                command = [sys.executable, "-m", "benchmarks.time_limits", name, model, str(limit)]
                plain = os.environ | {"JAX_COMPILATION_CACHE_DIR": ""}
                found = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=plain
                )
                rows.append(json.loads(found.stdout))
                report(json.dumps(rows[-1]))
    return {"settings": {"grace_seconds": GRACE, "grace_share": SHARE}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people."""
    headings = [
        "set",
        "model",
        "limit s",
        "seconds",
        "overshoot s",
        "kept",
        "RMSE",
        "NLPD",
        "prediction",
        "ended",
    ]
    lines = []
    for row in result["rows"]:
        numbers = [round(row[field], 2) for field in ("limit", "seconds", "overshoot")]
        scores = [round(row[field], 3) for field in ("rmse", "nlpd")]
        lines.append(
            [row["set"], row["model"], *numbers, row["kept"], *scores, row["prediction"], row["ended"]]
        )
    return headings, lines


def allowed(limit: float) -> float:
    """Seconds that a fit under this limit may take."""
    return limit + max(GRACE, SHARE * limit)


def measure(name: str, kind: str, limit: float) -> dict:
    """One fit in this process."""
    warnings.simplefilter("ignore")
    import stochgp
    from stochgp import metrics

    X, y, X_test, y_test = _rows(name)
    estimator = stochgp.KernelGPRegressor if kind == "kernel" else stochgp.FeatureGPRegressor
    begun = time.perf_counter()
    model = estimator(time_limit=limit, random_state=0).fit(X, y)
    seconds = time.perf_counter() - begun
    mean, std = model.predict(X_test, return_std=True, include_noise=True)
    plan, scale = model.plan_, float(np.std(y))
    return {
        "set": name,
        "model": kind,
        "limit": limit,
        "seconds": seconds,
        "overshoot": max(seconds - limit, 0.0),
        "kept": bool(seconds <= allowed(limit)),
        "rmse": metrics.rmse(y_test, mean) / scale,
        "nlpd": metrics.nlpd(y_test, mean, std) - float(np.log(scale)),
        "prediction": plan.get("prediction", {}).get("choice"),
        "ended": plan["ended"]["choice"],
        "learning_rows": plan["learning_rows"]["choice"],
        "steps": model.n_iter_,
    }


def _rows(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(X, y, test X, test y): split 0 of a set, or rows drawn here."""
    if name != "many":
        from benchmarks.datasets import load

        found = load(f"uci:{name}:0")
        return found.X, found.y, found.X_test[:TEST_ROWS], found.y_test[:TEST_ROWS]
    generator = np.random.default_rng(0)
    X = generator.normal(size=(MANY + TEST_ROWS, 8))
    y = np.sin(2 * X[:, 0]) + np.cos(X[:, 1] * X[:, 2]) + 0.3 * generator.normal(size=len(X))
    return X[TEST_ROWS:], y[TEST_ROWS:], X[:TEST_ROWS], y[:TEST_ROWS]


if __name__ == "__main__":
    name, kind, limit = sys.argv[1:]
    json.dump(measure(name, kind, float(limit)), sys.stdout)
