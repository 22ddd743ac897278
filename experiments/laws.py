"""Laws of observations: likelihood="auto" against "gaussian", of kernel and feature GPs, and against boosting, on six UCI sets, the flights and traps.

Scores are of unit-variance targets; of the flights in minutes. NLPD is by the density of each law. `w` is n ∫ (F̂(p) − p)² dp of the PIT
values: 1/6 on average where the law is right. Rivals as they come: CatBoost with a variance for each row, where it is installed, and histogram
boosting with the standard deviation of residuals of a tenth of the training rows that it has not seen. The traps have constant Gaussian noise: anything
else is a wrong choice. `few` keeps so many training rows. The bikes rented in an hour are counts: their NLPD is that of the whole number, and PIT values are taken
in the middle of its step. "counts" is target="count", "recalibrated" constant Gaussian noise with calibration="pit".
"""

import dataclasses
import functools
import importlib.util
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import ROWS, SETS
from measuring import tables
from measuring.sets import load_raw, use_shared_data
from measuring.store import Cell, Record, select

FLIGHTS = ("flights", "flights:by-day")
LIKELIHOODS = ("auto", "gaussian")
RIVALS = ("histogram boosting", "catboost")
LEVELS = (0.5, 0.8, 0.95, 0.99)
TRAP, TRAP_ROWS = "trap", 8000
FEATURES = "features, "  # of the names of methods that are feature GPs
TRAP_SEEDS, TRAP_FEW = 20, 60  # the second as many rows as nothing may be chosen from
FEW = (50, 500, 5000)  # rows of protein, for refusals and for coverage after few
CATBOOST_TREES = 1000
COUNTS, OF_COUNTS, RECALIBRATED = "bike counts", "counts", "recalibrated"
GROUPS = {
    "traps": {"set": (TRAP,)},
    "counts": {"set": (COUNTS,)},
    "few": {"set": ("protein",), "few": tuple(map(str, FEW))},
    "small": {"set": ("pol", "elevators", "bike")},
}


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        names = (*LIKELIHOODS, FEATURES + "auto")
        return [{"set": TRAP, "seed": 0, "method": method, "few": 300} for method in names]
    ours = (*LIKELIHOODS, *(FEATURES + name for name in LIKELIHOODS))
    methods = (*ours, *RIVALS[: 1 + (importlib.util.find_spec("catboost") is not None)])
    found = [{"set": name, "seed": 0, "method": method} for name in (*SETS, *FLIGHTS) for method in methods]
    found += [
        {"set": "protein", "seed": 0, "method": method, "few": n} for n in FEW for method in LIKELIHOODS
    ]
    found += [{"set": "protein", "seed": 0, "method": RECALIBRATED, "few": n} for n in FEW[1:]]
    found += [{"set": COUNTS, "seed": 0, "method": method} for method in (OF_COUNTS, *methods)]
    traps = [
        {"set": TRAP, "seed": seed, "method": method}
        for method in ("auto", FEATURES + "auto")
        for seed in range(TRAP_SEEDS)
    ]
    return found + traps + [cell | {"few": TRAP_FEW} for cell in traps]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    n = TRAP_ROWS if cell["set"] == TRAP else ROWS.get(cell["set"], 250_000)
    return min(cell.get("few", n), n)


def run(cell: Cell) -> dict:
    rows = _rows(cell["set"], cell["seed"])
    n = cell.get("few", len(rows.y))
    kept = np.random.default_rng(cell["seed"]).permutation(len(rows.y))[:n]
    scale = 1.0 if cell["set"] in (*FLIGHTS, COUNTS) else float(np.std(rows.y))
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        law, told = _method(cell)(rows.X[kept], rows.y[kept], rows.X_test)
    seconds = time.perf_counter() - begun
    if cell["set"] == COUNTS:
        return {**_scores_of_counts(law, rows.y_test), "seconds": round(seconds, 1), **told}
    return {**_scores(law.affine(1 / scale, 0.0), rows.y_test / scale), "seconds": round(seconds, 1), **told}


def _rows(name: str, seed: int) -> Any:
    from stochgp import data

    if name == TRAP:
        return data.load(f"fun:borehole:{TRAP_ROWS}", seed=seed, test_fraction=0.25)
    if name == COUNTS:
        use_shared_data()
        rows = data.load("bike-hourly", seed=seed)  # of logarithms
        return dataclasses.replace(rows, y=np.rint(np.exp(rows.y)), y_test=np.rint(np.exp(rows.y_test)))
    if name in FLIGHTS:
        use_shared_data()
        return data.load(name, seed=seed)
    return load_raw(name, 0)


def _method(cell: Cell) -> Callable[..., tuple[Any, dict]]:
    if cell["method"].startswith(FEATURES):
        return functools.partial(_feature_gp, cell["method"].removeprefix(FEATURES), cell["seed"])
    if cell["method"] in LIKELIHOODS:
        kernel = "matern12" if cell["set"] in FLIGHTS else "matern32"
        return functools.partial(_gp, kernel, cell["method"], cell["seed"])
    if cell["method"] == OF_COUNTS:
        return functools.partial(_gp, "matern32", "auto", cell["seed"], target="count")
    if cell["method"] == RECALIBRATED:
        return functools.partial(_gp, "matern32", "gaussian", cell["seed"], calibration="pit")
    return {"histogram boosting": _boosting, "catboost": _catboost}[cell["method"]]


def _gp(
    kernel: str, likelihood: str, seed: int, X: Any, y: Any, X_test: Any, **more: Any
) -> tuple[Any, dict]:
    from stochgp import KernelGPRegressor

    model = KernelGPRegressor(kernel, likelihood=likelihood, random_state=seed, memory_limit="3GB", **more)
    model.fit(X, y)
    return _told(model, X_test)


def _feature_gp(likelihood: str, seed: int, X: Any, y: Any, X_test: Any) -> tuple[Any, dict]:
    from stochgp import FeatureGPRegressor

    model = FeatureGPRegressor(likelihood=likelihood, random_state=seed, memory_limit="3GB").fit(X, y)
    return _told(model, X_test)


def _told(model: Any, X_test: Any) -> tuple[Any, dict]:
    """(The predictions, the choice)."""
    plan = model.plan_
    told = {"likelihood": plan["likelihood"]["choice"], "df": plan.get("df", {"choice": None})["choice"]}
    return model.predict_distribution(X_test), told


def _boosting(X: Any, y: Any, X_test: Any) -> tuple[Any, dict]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    from stochgp.distributions import Normal

    n = len(y) - len(y) // 10
    found = HistGradientBoostingRegressor(max_iter=1500, max_leaf_nodes=127, random_state=0).fit(X[:n], y[:n])
    std = float(np.sqrt(np.mean((y[n:] - found.predict(X[n:])) ** 2)))
    mean = np.asarray(found.predict(X_test), np.float64)
    return Normal(mean, np.full(len(mean), std)), {}


def _catboost(X: Any, y: Any, X_test: Any) -> tuple[Any, dict]:
    """Its second output is a variance."""
    from catboost import CatBoostRegressor  # pyright: ignore[reportMissingImports]

    from stochgp.distributions import Normal

    settings = {"loss_function": "RMSEWithUncertainty", "random_seed": 0, "verbose": False}
    rival = CatBoostRegressor(iterations=CATBOOST_TREES, allow_writing_files=False, **settings).fit(X, y)
    found = np.asarray(rival.predict(X_test), np.float64)
    return Normal(found[:, 0], np.sqrt(found[:, 1])), {}


def _scores_of_counts(law: Any, y: np.ndarray) -> dict[str, float]:
    return _summed(law, y, -law.log_mass(y), (law.cdf(y + 0.5) + law.cdf(y - 0.5)) / 2)


def _scores(law: Any, y: np.ndarray) -> dict[str, float]:
    return _summed(law, y, -law.logpdf(y), law.cdf(y))


def _summed(law: Any, y: np.ndarray, losses: np.ndarray, u: np.ndarray) -> dict[str, float]:
    u, n = np.sort(u), len(y)
    ranks = (2 * np.arange(n) + 1) / (2 * n)
    found = {
        "rmse": float(np.sqrt(np.mean((y - law.mean) ** 2))),
        "nlpd": float(np.mean(losses)),
        "nlpd_stderr": float(np.std(losses)) / n**0.5,
        "crps": float(np.mean(law.crps(y))),
        "w": float(np.sum((u - ranks) ** 2) + 1 / (12 * n)),
    }
    return found | {
        f"coverage{100 * level:.0f}": float(np.mean(np.abs(u - 0.5) <= level / 2)) for level in LEVELS
    }


def page(records: list[Record]) -> list[str]:
    headings = [
        "set",
        "rows",
        "method",
        "law",
        "RMSE",
        "NLPD",
        "±",
        "CRPS",
        "W",
        *(f"{level:.0%}" for level in LEVELS),
        "seconds",
    ]
    fields = (
        "rmse",
        "nlpd",
        "nlpd_stderr",
        "crps",
        "w",
        *(f"coverage{100 * level:.0f}" for level in LEVELS),
        "seconds",
    )
    rows = []
    for record in records:
        cell, found = record["settings"], record["results"]
        if cell["set"] != TRAP:
            numbers = [tables.number(found[field], 3) for field in fields]
            rows.append(
                [cell["set"], cell.get("few", "all"), cell["method"], found.get("likelihood", ""), *numbers]
            )
    return [tables.table(headings, rows), *_kept(records)]


def _kept(records: list[Record]) -> list[str]:
    """How often constant Gaussian noise was kept where it is the truth."""
    lines = []
    for method, few in itertools.product(("auto", FEATURES + "auto"), (None, TRAP_FEW)):
        found = [r for r in select(records, set=TRAP, method=method) if r["settings"].get("few") == few]
        kept = sum(r["results"]["likelihood"] == "gaussian" for r in found)
        rows = "" if few is None else f" of {few} rows"
        if found:
            lines.append(f"{method}: constant Gaussian noise was kept in {kept} of {len(found)} traps{rows}.")
    return lines


def figure(records: list[Record]) -> Figure:
    """NLPD gained over the constant Gaussian, set by set."""
    drawing = Figure(figsize=(6, 3), layout="constrained")
    panel = drawing.subplots()
    for name in (*SETS, *FLIGHTS):
        scores = {
            r["settings"]["method"]: r["results"]["nlpd"]
            for r in select(records, set=name)
            if "few" not in r["settings"]
        }
        if {"auto", "gaussian"} <= set(scores):
            panel.bar(name, scores["gaussian"] - scores["auto"])
    panel.set(ylabel="NLPD gained by the law chosen")
    return drawing
