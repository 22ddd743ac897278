"""`gpboost_fits`: `KernelGPRegressor()` against GPBoost's Vecchia approximation: Matérn-3/2 with a lengthscale per input, 20 neighbours, its defaults.

Split 0 of four sets, inputs and targets standardised by the training rows. Scores are of each side's own distribution of observations: GPBoost's is
normal, ours has the noise that the held-out rows chose. Every run is in a process of its own, the two
sides of a set one after the other, on all cores. Seconds include compilation. Needs the package gpboost (extra bench).
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from measuring.places import ROOT

SETS, SIDES = ("pol", "elevators", "bike", "kin40k"), ("stochgp", "gpboost")
KEYS = ("set", "side")
NEIGHBOURS, QUICK_ROWS = 20, 500


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per set and side."""
    rows = []
    for name in SETS[:1] if quick else SETS:
        for side in SIDES:
            n = str(QUICK_ROWS if quick else 0)
            command = [sys.executable, "-m", "benchmarks.gpboost_fits", name, side, n]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
            rows.append(json.loads(found.stdout.splitlines()[-1]))
            report(json.dumps(rows[-1]))
    return {"settings": {"split": 0, "neighbours": NEIGHBOURS}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    headings = ["set", "side", "train s", "predict s", "RMSE", "NLPD", "coverage"]
    return headings, [
        [r["set"], r["side"], *(round(r[field], 1) for field in ("train_seconds", "predict_seconds"))]
        + [round(r[field], 4) for field in ("rmse", "nlpd", "coverage_95")]
        for r in result["rows"]
    ]


def measure(name: str, side: str, most_rows: int) -> dict:
    """One run in this process, from at most so many rows; 0 = all."""
    from benchmarks.datasets import load
    from stochgp import metrics

    found = load(f"uci:{name}:0")
    n = most_rows or len(found.y)
    X, X_test = _standardised(found.X[:n], found.X_test)
    y, y_test = _standardised(found.y[:n, None], found.y_test[:, None])
    train, predict = {"stochgp": _ours, "gpboost": _gpboost}[side](X, y[:, 0])
    begun = time.perf_counter()
    model = train()
    trained = time.perf_counter()
    law = predict(model, X_test)
    mean = law.mean
    seconds = time.perf_counter() - trained
    return {
        "set": name,
        "side": side,
        "n_train": n,
        "train_seconds": trained - begun,
        "predict_seconds": seconds,
        "rmse": metrics.rmse(y_test[:, 0], mean),
        "nlpd": metrics.nlpd(y_test[:, 0], law),
        "coverage_95": metrics.coverage(y_test[:, 0], law),
    }


def _standardised(rows: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return (rows - center) / scale, (test - center) / scale


def _ours(X: np.ndarray, y: np.ndarray) -> tuple[Callable, Callable]:
    from stochgp import KernelGPRegressor

    return lambda: KernelGPRegressor(random_state=0).fit(X, y), KernelGPRegressor.predict_distribution


def _gpboost(X: np.ndarray, y: np.ndarray) -> tuple[Callable, Callable]:
    import gpboost

    from stochgp.distributions import Normal

    def train() -> gpboost.GPModel:
        model = gpboost.GPModel(
            gp_coords=X,
            cov_function="matern_ard",
            cov_fct_shape=1.5,
            likelihood="gaussian",
            gp_approx="vecchia",
            num_neighbors=NEIGHBOURS,
        )
        return model.fit(y=y)

    def predict(model: gpboost.GPModel, X_test: np.ndarray) -> Normal:
        found = model.predict(gp_coords_pred=X_test, predict_var=True, predict_response=True)
        return Normal(found["mu"], np.sqrt(found["var"]))

    return train, predict


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
