"""`time_limits`: fits with limits of 2, 5 and 20 seconds, for two estimators on three sets.

The sets are kin40k, protein and 200,000 simulated rows. No code is compiled before. `allowed` is the limit
plus 3 seconds or 20 %, whichever is more. `kept` is True if the fit ended within it.
"""

import time
import warnings
from typing import Any

import numpy as np

from measuring import store
from measuring.harness import choice
from measuring.tables import table

GRACE, SHARE = 3.0, 0.2
MANY, TEST_ROWS = 200_000, 2_000


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    limits = (2.0,) if quick else (2.0, 5.0, 20.0)
    return [
        {"grace_seconds": GRACE, "grace_share": SHARE, "set": name, "model": model, "limit": limit}
        for name in (("kin40k",) if quick else ("kin40k", "protein", "many"))
        for model in ("kernel", "feature")
        for limit in limits
    ]


def run(cell: store.Cell) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    import stochgp
    from stochgp import metrics

    X, y, X_test, y_test = _rows(cell["set"])
    limit, scale = cell["limit"], float(np.std(y))
    kind = {"kernel": stochgp.KernelGPRegressor, "feature": stochgp.FeatureGPRegressor}[cell["model"]]
    begun = time.perf_counter()
    model: Any = kind(time_limit=limit, random_state=0).fit(X, y)
    seconds = time.perf_counter() - begun
    mean, std = model.predict(X_test, return_std=True, include_noise=True)
    return {
        "seconds": seconds,
        "overshoot": max(seconds - limit, 0.0),
        "kept": bool(seconds <= limit + max(GRACE, SHARE * limit)),
        "rmse": metrics.rmse(y_test, mean) / scale,
        "nlpd": metrics.nlpd(y_test, mean, std) - float(np.log(scale)),
        "prediction": choice(model, "prediction"),
        "ended": choice(model, "ended"),
        "learning_rows": choice(model, "learning_rows", len(y)),
        "steps": model.n_iter_,
    }


def page(records: list[store.Record]) -> list[str]:
    rows = []
    for r in store.rows(records):
        numbers = [round(r[field], 2) for field in ("limit", "seconds", "overshoot")]
        scores = [round(r[field], 3) for field in ("rmse", "nlpd")]
        rows.append([r["set"], r["model"], *numbers, r["kept"], *scores, r["prediction"], r["ended"]])
    return [
        table("set | model | limit s | seconds | overshoot s | kept | RMSE | NLPD | prediction | ended", rows)
    ]


def _rows(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training and test rows: split 0 of a set, or simulated rows."""
    if name != "many":
        from benchmarks.datasets import load

        found = load(f"uci:{name}:0")
        return found.X, found.y, found.X_test[:TEST_ROWS], found.y_test[:TEST_ROWS]
    generator = np.random.default_rng(0)
    X = generator.normal(size=(MANY + TEST_ROWS, 8))
    y = np.sin(2 * X[:, 0]) + np.cos(X[:, 1] * X[:, 2]) + 0.3 * generator.normal(size=len(X))
    return X[TEST_ROWS:], y[TEST_ROWS:], X[:TEST_ROWS], y[:TEST_ROWS]
