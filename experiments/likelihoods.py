"""Likelihoods "auto" and "gaussian", compared with boosting on UCI and simulated sets.

Scores are for targets with unit variance. `w` is n ∫ (F̂(p) − p)² dp of the PIT values, which is 1/6 on
average if the distribution is right. `rivals` describes the other methods. The simulated sets have constant
Gaussian noise, so that any other choice is wrong. `few` keeps this many training rows. For counts of bikes,
NLPD is that of the count. "counts" is Warped("auto", "count").
"""

import functools
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.datasets.prepared import bike_counts, load_raw
from experiments import rivals
from experiments.problems import SETS
from measuring import tables
from measuring.store import Cell, Record, select

LIKELIHOODS = ("auto", "gaussian")
LEVELS = (0.5, 0.8, 0.95, 0.99)
TRAP, TRAP_ROWS = "trap", 8000
FEATURES = "features, "  # prefix of the names of feature GPs
TRAP_SEEDS, TRAP_FEW = 20, 60  # TRAP_FEW rows are too few for a choice
FEW, REFUSED = (50, 500, 5000), 15  # numbers of rows of protein
COUNTS, OF_COUNTS = "bike counts", "counts"
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        names = (*LIKELIHOODS, FEATURES + "auto")
        return [{"set": TRAP, "seed": 0, "method": method, "few": 300} for method in names]
    ours = (*LIKELIHOODS, *(FEATURES + name for name in LIKELIHOODS))
    methods = (*ours, *rivals.available())
    found = [{"set": name, "seed": 0, "method": method} for name in SETS for method in methods]
    found += [
        {"set": "protein", "seed": 0, "method": method, "few": n} for n in FEW for method in LIKELIHOODS
    ]
    of_counts = (name for name in methods if name != "lightgbm quantiles")
    found += [{"set": COUNTS, "seed": 0, "method": method} for method in (OF_COUNTS, *of_counts)]
    traps = [
        {"set": TRAP, "seed": seed, "method": method}
        for method in ("auto", FEATURES + "auto")
        for seed in range(TRAP_SEEDS)
    ]
    return found + traps + [cell | {"few": TRAP_FEW} for cell in traps]


def run(cell: Cell) -> dict:
    rows = _rows(cell["set"], cell["seed"])
    n = cell.get("few", len(rows.y))
    kept = np.random.default_rng(cell["seed"]).permutation(len(rows.y))[:n]
    scale = 1.0 if cell["set"] == COUNTS else float(np.std(rows.y))
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            law, told = _method(cell)(rows.X[kept], rows.y[kept], rows.X_test)
        except ValueError as refused:
            if cell.get("few") != REFUSED:
                raise
            return {"likelihood": "refused", "why": str(refused)}
    seconds = time.perf_counter() - begun
    if cell["set"] == COUNTS:
        return {**_scores_of_counts(law, rows.y_test), "seconds": round(seconds, 1), **told}
    return {**_scores(law.affine(1 / scale, 0.0), rows.y_test / scale), "seconds": round(seconds, 1), **told}


def _rows(name: str, seed: int) -> Any:
    from benchmarks.datasets import load

    if name == TRAP:
        return load(f"fun:borehole:{TRAP_ROWS}", seed=seed, test_fraction=0.25)
    if name == COUNTS:
        return bike_counts(seed)
    return load_raw(name, 0)


def _method(cell: Cell) -> Callable[..., tuple[Any, dict]]:
    if cell["method"].startswith(FEATURES):
        return functools.partial(_feature_gp, cell["method"].removeprefix(FEATURES), cell["seed"])
    if cell["method"] in LIKELIHOODS:
        return functools.partial(_gp, "matern32", cell["method"], cell["seed"])
    if cell["method"] == OF_COUNTS:
        from stochgp.likelihoods import Warped

        return functools.partial(_gp, "matern32", Warped("auto", "count"), cell["seed"])
    return rivals.METHODS[cell["method"]]


def _gp(
    kernel: str, likelihood: Any, seed: int, X: Any, y: Any, X_test: Any, **more: Any
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
    """Return the predictions and the choice."""
    plan = model.plan_
    told = {"likelihood": plan["likelihood"]["choice"], "df": plan.get("df", {"choice": None})["choice"]}
    return model.predict_distribution(X_test), told


def _scores_of_counts(law: Any, y: np.ndarray) -> dict[str, float]:
    below, above = law.cdf(y - 0.5), law.cdf(y + 0.5)
    return _summed(law, y, -np.log(np.maximum(above - below, 1e-300)), (above + below) / 2)


def _scores(law: Any, y: np.ndarray) -> dict[str, float]:
    if isinstance(law, rivals.Quantiles):
        found = {"rmse": float(np.sqrt(np.mean((y - law.mean) ** 2))), "crps": float(np.mean(law.crps(y)))}
        return found | {f"coverage{100 * level:.0f}": law.coverage(y, level) for level in LEVELS}
    return _summed(law, y, -law.logpdf(y), law.cdf(y))


def _summed(law: Any, y: np.ndarray, losses: np.ndarray, u: np.ndarray) -> dict[str, float]:
    u, n = np.sort(u), len(y)
    ranks = (2 * np.arange(n) + 1) / (2 * n)
    found = {
        "test_rows": n,
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
        "distribution",
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
            numbers = [tables.number(found.get(field), 3) for field in fields]
            rows.append(
                [cell["set"], cell.get("few", "all"), cell["method"], found.get("likelihood", ""), *numbers]
            )
    return [tables.table(headings, rows), *_kept(records), *_against_rivals(records), *_covered(records)]


def _against_rivals(records: list[Record]) -> list[str]:
    """Compare the NLPD of all methods on each set."""
    lines = []
    for name in SETS:
        found = {
            r["settings"]["method"]: r["results"]
            for r in select(records, set=name)
            if "few" not in r["settings"] and r["results"].get("nlpd") is not None
        }
        others = {method: got for method, got in found.items() if method in rivals.METHODS}
        if "auto" not in found or not others:
            continue
        ours, best = found["auto"], min(others, key=lambda method: others[method]["nlpd"])
        behind = ours["nlpd"] - others[best]["nlpd"]
        error = float(np.hypot(ours["nlpd_stderr"], others[best]["nlpd_stderr"]))
        verdict = "not behind" if behind <= 2 * error else "behind"
        lines.append(
            f"{name}: {verdict}; NLPD less that of {best}, the best rival: {behind:.3f} ± {error:.3f}."
        )
    return lines


def _covered(records: list[Record]) -> list[str]:
    """Check the coverage with few rows, with and without a correction by left-out rows."""
    lines = []
    for n in (*FEW, REFUSED):
        for r in select(records, set="protein", few=n):
            found = r["results"]
            if r["settings"]["method"] in rivals.METHODS:
                continue
            if "why" in found:
                lines.append(f"{n} rows of protein, {r['settings']['method']}: refused, {found['why']}.")
                continue
            allowed = {p: 2 * (p * (1 - p) / found["test_rows"]) ** 0.5 for p in LEVELS}
            within = sum(abs(found[f"coverage{100 * p:.0f}"] - p) <= allowed[p] for p in LEVELS)
            lines.append(
                f"{n} rows of protein, {r['settings']['method']}: coverage within two standard errors at {within} of {len(LEVELS)} levels."
            )
    return lines


def _kept(records: list[Record]) -> list[str]:
    """Return how often constant Gaussian noise was kept when it is correct."""
    lines = []
    for method, few in itertools.product(("auto", FEATURES + "auto"), (None, TRAP_FEW)):
        found = [r for r in select(records, set=TRAP, method=method) if r["settings"].get("few") == few]
        kept = sum(r["results"]["likelihood"] == "gaussian" for r in found)
        rows = "" if few is None else f" of {few} rows"
        if found:
            lines.append(f"{method}: constant Gaussian noise was kept in {kept} of {len(found)} traps{rows}.")
    return lines
