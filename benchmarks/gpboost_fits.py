"""`gpboost_fits`: `KernelGPRegressor()` compared with GPBoost's Vecchia approximation.

GPBoost uses its defaults with 20 neighbours, and a Matérn-3/2 kernel with a lengthscale per input. Data are
split 0 of four sets, standardised by the training rows. Seconds include compilation and use all cores. The
benchmark needs the package gpboost (extra `bench`).
"""

import time
from typing import Any

import numpy as np

from measuring import store
from measuring.tables import table


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    common = {"split": 0, "neighbours": 20} | ({"rows": 500} if quick else {})
    sets = ("pol",) if quick else ("pol", "elevators", "bike", "kin40k")
    return [common | {"set": name, "side": side} for name in sets for side in ("stochgp", "gpboost")]


def run(cell: store.Cell) -> dict[str, Any]:
    from benchmarks.datasets import load
    from stochgp import metrics

    found = load(f"uci:{cell['set']}:0")
    n = cell.get("rows", len(found.y))
    X, X_test = _standardised(found.X[:n], found.X_test)
    y, y_test = _standardised(found.y[:n], found.y_test)
    begun = time.perf_counter()
    predict = {"stochgp": _ours, "gpboost": _gpboost}[cell["side"]](X, y, cell["neighbours"])
    trained = time.perf_counter()
    predicted = predict(X_test)
    return {
        "n_train": n,
        "train_seconds": trained - begun,
        "predict_seconds": time.perf_counter() - trained,
        "rmse": metrics.rmse(y_test, predicted.mean),
        "nlpd": metrics.nlpd(y_test, predicted),
        "coverage_95": metrics.coverage(y_test, predicted),
    }


def page(records: list[store.Record]) -> list[str]:
    rows = [
        [r["set"], r["side"], round(r["train_seconds"], 1), round(r["predict_seconds"], 1)]
        + [round(r[field], 4) for field in ("rmse", "nlpd", "coverage_95")]
        for r in store.rows(records)
    ]
    return [table("set | side | train s | predict s | RMSE | NLPD | coverage", rows)]


def _standardised(rows: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return (rows - center) / scale, (test - center) / scale


def _ours(X: np.ndarray, y: np.ndarray, neighbours: int) -> Any:
    from stochgp import KernelGPRegressor

    return KernelGPRegressor(random_state=0).fit(X, y).predict_distribution


def _gpboost(X: np.ndarray, y: np.ndarray, neighbours: int) -> Any:
    from benchmarks.arena_rivals import vecchia
    from stochgp.distributions import Normal

    moments = vecchia(X, y, neighbours)
    return lambda X_test: Normal(*moments(X_test))
