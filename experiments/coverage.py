"""Coverage of intervals with few rows, fitted prior means, or new categories.

Rows are simulated from a known latent function f. The aims are coverages of 0.93 to 0.97 for 95 % intervals
of new observations, and of 0.86 to 0.94 for 90 % intervals of f.

- `rows`: `KernelGPRegressor()` with few rows; f is a draw of a Matérn-3/2 GP with noise variance 0.1.
- `pool`: `GPRegressor` with the members kernel and linear, on such rows.
- `line`: `mean="linear"`; f = Xb with normal slopes, and noise variance 1.
- `trees`: linear regression, and a kernel GP around trees; f has steps or is smooth, and noise variance 1/4.
- `categories`: rows of new categories; effects have standard deviation `tau`, and noise 0.5.
"""

import warnings
from typing import Any

import numpy as np

from measuring import tables
from measuring.store import Cell, Record, select

Z90 = 1.6448536
BLOCK, BLOCKS = 20, 10  # simulations per cell, cells per setting
NEW = 400  # number of predicted rows
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "rows": tuple({"n": n, "D": d} for n, d in ((60, 20), (300, 20), (60, 10), (150, 20), (15, 1))),
    "pool": tuple({"n": n, "D": d} for n, d in ((100, 10), (200, 5), (400, 10))),
    "line": ({"n": 60, "D": 20}, {"n": 500, "D": 100}),
    "trees": tuple(
        {"family": family, "n": n, "kind": kind}
        for family in ("linear", "kernel")
        for n, kind in ((300, "step"), (300, "smooth"), (1000, "step"))
    ),
    "categories": tuple(
        {"L": L, "per": per, "tau": tau}
        for L, per, tau in ((150, 4, 1.0), (60, 10, 1.0), (60, 10, 0.3), (300, 2, 1.0), (100, 4, 3.0))
    ),
}
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    return [
        {"case": case, "block": block, "simulations": 1 if quick else BLOCK, **setting}
        for block in range(1 if quick else BLOCKS)
        for case, settings in SETTINGS.items()
        for setting in (settings[:1] if quick else settings)
    ]


def run(cell: Cell) -> dict:
    """Return mean coverages of y and f, and the mean NLPD, over the simulations."""
    own = ("case", "block", "simulations")
    setting = {name: value for name, value in cell.items() if name not in own}
    first = cell["block"] * cell["simulations"]
    found = [CASES[cell["case"]](seed, **setting) for seed in range(first, first + cell["simulations"])]
    keys = found[0]
    means = {key: float(np.mean([one[key] for one in found])) for key in keys}
    return means | {f"{key}_sd": float(np.std([one[key] for one in found])) for key in keys}


def _rows(seed: int, n: int, D: int, make: Any = None) -> dict[str, float]:
    from stochgp import KernelGPRegressor

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + NEW, D))
    Z = X / (np.sqrt(D) * np.exp(rng.normal(size=D)))
    squares = np.sum(Z**2, axis=1)
    r = np.sqrt(3 * np.maximum(squares[:, None] + squares - 2 * Z @ Z.T, 0))
    K = (1 + r) * np.exp(-r) + 1e-8 * np.eye(len(X))
    f = np.linalg.cholesky(K) @ rng.normal(size=len(X))
    y = f + 0.1**0.5 * rng.normal(size=len(X))
    return _scored((make or KernelGPRegressor)(random_state=seed), X, f, y, n)


def _pool(seed: int, n: int, D: int) -> dict[str, float]:
    from stochgp import GPRegressor

    return _rows(seed, n, D, lambda **given: GPRegressor(members=["kernel", "linear"], **given))


def _line(seed: int, n: int, D: int) -> dict[str, float]:
    from stochgp import KernelGPRegressor

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + NEW, D))
    f = X @ rng.normal(size=D) / D**0.5
    model = KernelGPRegressor(mean="linear", likelihood="gaussian", random_state=0)
    return _scored(model, X, f, f + rng.normal(size=len(X)), n)


def _trees(seed: int, family: str, n: int, kind: str) -> dict[str, float]:
    from stochgp import FeatureGPRegressor, KernelGPRegressor

    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n + NEW, 5))
    smooth = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2]
    step = 2.0 * (X[:, 0] > 0.2) * (X[:, 1] < 0.3) + 1.0 * (X[:, 2] > 0)
    f = smooth if kind == "smooth" else step
    settings: dict[str, Any] = {"mean": "trees", "likelihood": "gaussian", "random_state": 0}
    model = KernelGPRegressor(**settings)
    if family == "linear":
        model = FeatureGPRegressor("linear", **settings)
    return _scored(model, X, f, f + 0.5 * rng.normal(size=len(X)), n)


def _categories(seed: int, L: int, per: int, tau: float) -> dict[str, float]:
    import pandas as pd

    from stochgp import KernelGPRegressor

    rng = np.random.default_rng(seed)
    level = np.concatenate([np.repeat(np.arange(L), per), np.arange(L, L + NEW)])
    effect = tau * rng.normal(size=L + NEW)
    x = rng.uniform(-2, 2, len(level))
    f = np.sin(2 * x) + effect[level]
    X = pd.DataFrame({"c": [f"l{v}" for v in level], "x": x})
    return _scored(KernelGPRegressor(random_state=seed), X, f, f + 0.5 * rng.normal(size=len(x)), L * per)


CASES = {"rows": _rows, "pool": _pool, "line": _line, "trees": _trees, "categories": _categories}


def _scored(model: Any, X: Any, f: np.ndarray, y: np.ndarray, n: int) -> dict[str, float]:
    """Fit the first n rows, and score predictions of the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[:n], y[:n])
        interval, (mean, std) = model.predict_interval(X[n:]), model.predict(X[n:], return_std=True)
        nlpd = -model.predict_distribution(X[n:]).logpdf(y[n:])
    return {
        "y95": float(np.mean((interval[:, 0] <= y[n:]) & (y[n:] <= interval[:, 1]))),
        "f90": float(np.mean(np.abs(f[n:] - mean) < Z90 * std)),
        "nlpd": float(np.mean(nlpd)),
    }


def _settings(records: list[Record]) -> list[tuple[str, dict[str, Any], list[Record]]]:
    found = []
    for case, settings in SETTINGS.items():
        for setting in settings:
            if some := select(records, case=case, **setting):
                found.append((case, setting, some))
    return found


def page(records: list[Record]) -> list[str]:
    rows = []
    for case, setting, some in _settings(records):
        n = sum(record["settings"]["simulations"] for record in some)
        mean = lambda key, some=some: float(np.mean([record["results"][key] for record in some]))
        what = ", ".join(f"{name} {value}" for name, value in setting.items())
        rows.append([case, what, str(n), *(tables.number(mean(key), 3) for key in ("y95", "f90", "nlpd"))])
    headings = ["case", "setting", "simulations", "95 % of y", "90 % of f", "NLPD"]
    return [tables.table(headings, rows)]
