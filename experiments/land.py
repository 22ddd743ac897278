"""Land or sea at random points of the sphere, from three unit coordinates: SparseGPClassifier beside nearest neighbours and boosting.

Every method may learn for the same `seconds`. Nearest neighbours choose their number among NEIGHBOURS by a tenth of the training rows, and say
(land + 1)/(k + 2) of k neighbours, so that no probability is 0. Histogram boosting adds trees until its time is over. A tenth of the points
is held out, 100,000 of them at `rows` = 900,000 (--slow). The mask is that of the package `global-land-mask` (extra bench), about 1 km fine.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from measuring import tables
from measuring.store import Cell, Record, select

METHODS = ("sparse", "neighbours", "boosting")
SIZES = {"quick": (2_000, 10.0, 32), "small": (90_000, 60.0, 512), "whole": (900_000, 300.0, 1_024)}
NEIGHBOURS = (3, 7, 15, 31)
BATCH, RATE, TREES = 1024, 0.01, 20  # TREES: of boosting between two looks at the clock
ONE_CORE = False
FIELDS = ("log_loss", "accuracy", "fit_seconds", "predict_seconds")


def cells(quick: bool, slow: bool) -> list[Cell]:
    names = ("quick",) if quick else ("small", "whole") if slow else ("small",)
    return [
        {"rows": SIZES[name][0], "seconds": SIZES[name][1], "n_inducing": SIZES[name][2], "method": method}
        for name in names
        for method in METHODS
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["seconds"]


def run(cell: Cell) -> dict:
    from sklearn.metrics import log_loss

    n, n_test = cell["rows"], math.ceil(cell["rows"] / 9)
    X, land = points(n + n_test)
    fit = {"sparse": _sparse, "neighbours": _neighbours, "boosting": _boosting}[cell["method"]]
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict, told = fit(X[:n], land[:n], cell)
    fitted = time.perf_counter()
    p = predict(X[n:])
    return {
        "log_loss": float(log_loss(land[n:], p)),
        "accuracy": float(np.mean((p > 0.5) == land[n:])),
        "fit_seconds": round(fitted - begun, 1),
        "predict_seconds": round(time.perf_counter() - fitted, 1),
        **told,
    }


def points(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(Unit coordinates [n, 3] of uniform random points, whether each is on land)."""
    from global_land_mask import globe  # pyright: ignore[reportMissingImports]

    X = np.random.default_rng(seed).normal(size=(n, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    latitude = np.degrees(np.arcsin(X[:, 2]))
    longitude = np.degrees(np.arctan2(X[:, 1], X[:, 0]))
    return X, np.asarray(globe.is_land(latitude, longitude))


Found = tuple[Callable[[np.ndarray], np.ndarray], dict[str, Any]]
"""A function of rows, the probability of land; what is told of the fit."""


def _sparse(X: np.ndarray, land: np.ndarray, cell: Cell) -> Found:
    from stochgp import SparseGPClassifier

    settings = {"n_inducing": cell["n_inducing"], "batch_size": BATCH, "learning_rate": RATE}
    model = SparseGPClassifier("matern32", **settings, time_limit=cell["seconds"], random_state=0).fit(
        X, land
    )
    return lambda Z: model.predict_proba(Z)[:, 1], {"steps": model.n_iter_}


def _neighbours(X: np.ndarray, land: np.ndarray, cell: Cell) -> Found:
    from scipy.spatial import cKDTree

    kept = len(X) - len(X) // 10
    tree = cKDTree(X[:kept])
    _, near = tree.query(X[kept:], NEIGHBOURS[-1], workers=-1)
    losses = {}
    for k in NEIGHBOURS:
        p = _share(land[:kept], near[:, :k])
        losses[k] = -np.mean(np.log(np.where(land[kept:], p, 1 - p)))
    best, whole = min(losses, key=lambda k: losses[k]), cKDTree(X)
    return lambda Z: _share(land, whole.query(Z, best, workers=-1)[1]), {"neighbours": best}


def _share(land: np.ndarray, near: np.ndarray) -> np.ndarray:
    return (land[near].sum(axis=1) + 1) / (near.shape[1] + 2)


def _boosting(X: np.ndarray, land: np.ndarray, cell: Cell) -> Found:
    from sklearn.ensemble import HistGradientBoostingClassifier

    until = time.perf_counter() + cell["seconds"]
    model = HistGradientBoostingClassifier(
        max_iter=TREES, max_leaf_nodes=127, learning_rate=0.1, early_stopping=False, warm_start=True
    )
    while time.perf_counter() < until:
        model.fit(X, land)
        model.max_iter += TREES
    return lambda Z: model.predict_proba(Z)[:, 1], {"trees": model.n_iter_}


def page(records: list[Record]) -> list[str]:
    rows = [
        [cell["rows"], cell["method"], *(tables.number(found["results"][field], 4) for field in FIELDS)]
        for method in METHODS
        for found in select(records, method=method)
        for cell in [found["settings"]]
    ]
    return [
        tables.table(
            ["rows", "method", "log loss", "accuracy", "fit s", "predict s"], sorted(rows, key=lambda r: r[0])
        )
    ]


def figure(records: list[Record]) -> Figure | None:
    return None
