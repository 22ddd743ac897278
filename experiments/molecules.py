"""X18: Morgan counts of molecules: ESOL, ChEMBL, 41,913 molecules and DOCKSTRING.

`gp` is the default `KernelGPRegressor("tanimoto")` with 2 GB and 530 s; `gp-chiral` uses counts with
chirality. `forest` has 500 trees of scikit-learn, and `xgboost` 300 trees of depth 8, with the same
fingerprints. ESOL and ChEMBL have five random folds; the 41,913 molecules have a random fifth as test rows.
DOCKSTRING has its cluster split, published hyperparameters and SDD. `--slow` adds the last two. R² in the
paper (Lin et al. 2024, table 2) is 0.627, 0.880, 0.790 and 0.907 on ESR2, F2, KIT and PARP1.
"""

import dataclasses
import time
import warnings
from typing import Any

import numpy as np

from experiments.problems import unit_scores
from measuring import tables
from measuring.store import Cell, Record, select

FOLDS = 5
SMALL = (
    "mol:esol",
    *(f"mol:chembl:{t}" for t in ("CHEMBL261", "CHEMBL205", "CHEMBL3594", "CHEMBL3242", "CHEMBL228")),
)
LARGE = ("mol:hiv:logp", "mol:hiv:qed")
PROTEINS = tuple(f"mol:dockstring:{t}" for t in ("ESR2", "F2", "KIT", "PARP1", "PGR"))
METHODS = ("gp", "forest", "xgboost")
CHIRAL = "gp-chiral"
EVERY = (*METHODS, CHIRAL, "sdd")
LIMIT = "2GB"
SECONDS = 530.0  # time limit of a fit


def cells(quick: bool, slow: bool) -> list[Cell]:
    small = [(name, fold) for name in SMALL for fold in range(FOLDS)][: 1 if quick else None]
    found = [
        {"set": name, "fold": fold, "method": method} for name, fold in small for method in (*METHODS, CHIRAL)
    ]
    if slow:
        found += [{"set": name, "fold": 0, "method": method} for name in LARGE for method in METHODS]
        found += [{"set": name, "fold": 0, "method": "sdd"} for name in PROTEINS]
    return found


def run(cell: Cell) -> dict:
    from benchmarks.datasets.molecule_sets import load_molecules
    from stochgp.budget import peak_resident
    from stochgp.tables.molecules import fingerprints_of

    molecules = load_molecules(cell["set"])
    begun = time.perf_counter()
    morgan = dataclasses.replace(molecules.morgan, chirality=cell["method"] == CHIRAL)
    counts, _ = fingerprints_of(molecules.smiles, morgan)
    prepared = time.perf_counter() - begun
    train, test = _division(cell, molecules)
    y, y_test = molecules.y[train], molecules.y[test]
    begun = time.perf_counter()
    mean, std, told = _FITS[cell["method"]](counts[train], y, counts[test], cell["set"].split(":")[-1])
    seconds = time.perf_counter() - begun
    found: dict[str, Any] = {
        "r2": 1 - float(np.sum((y_test - mean) ** 2) / np.sum((y_test - y_test.mean()) ** 2)),
        "rmse": float(np.sqrt(np.mean((y_test - mean) ** 2))),
        "fingerprint_seconds": round(prepared, 1),
        "seconds": round(seconds, 1),
        "peak_bytes": peak_resident(),
    }
    if std is not None:
        scores = unit_scores(y_test, mean, std, float(np.std(y)))
        found |= {"nlpd": scores["nlpd"], "coverage95": scores["coverage95"]}
    return found | told


def page(records: list[Record]) -> list[str]:
    headings = [
        "set",
        "method",
        "folds",
        "R²",
        "its standard error",
        "NLPD",
        "95 % coverage",
        "seconds",
        "peak GB so far",
    ]
    rows = []
    for name in (*SMALL, *LARGE, *PROTEINS):
        for method in EVERY:
            found = [record["results"] for record in select(records, set=name, method=method)]
            if not found:
                continue
            mean = lambda field, found=found: float(np.mean([r.get(field, np.nan) for r in found]))
            r2 = [r["r2"] for r in found]
            error = float(np.std(r2, ddof=1) / np.sqrt(len(r2))) if len(r2) > 1 else float("nan")
            numbers = [
                (mean("r2"), 3),
                (error, 3),
                (mean("nlpd"), 3),
                (mean("coverage95"), 3),
                (mean("seconds"), 0),
            ]
            memory = tables.number(max(r["peak_bytes"] for r in found) / 1e9, 2)
            shown = [tables.number(value, digits) if np.isfinite(value) else "" for value, digits in numbers]
            rows.append([name, method, str(len(found)), *shown, memory])
    return [tables.table(headings, rows)]


def _division(cell: Cell, molecules: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return training rows and test rows."""
    N = len(molecules.y)
    if molecules.is_test is not None:
        return np.flatnonzero(~molecules.is_test), np.flatnonzero(molecules.is_test)
    part = np.empty(N, int)
    part[np.random.default_rng(0).permutation(N)] = np.arange(N) % FOLDS
    return np.flatnonzero(part != cell["fold"]), np.flatnonzero(part == cell["fold"])


def _gp(X: Any, y: np.ndarray, X_test: Any, target: str) -> tuple:
    from stochgp import KernelGPRegressor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits = {"memory_limit": LIMIT, "time_limit": SECONDS}
        model = KernelGPRegressor("tanimoto", random_state=0, **limits).fit(X, y)
    return *_predicted(model, X_test), _told(model)


def _published(solver: str) -> Any:
    def fit(X: Any, y: np.ndarray, X_test: Any, target: str) -> tuple:
        from benchmarks.datasets.molecule_sets import DOCKSTRING
        from stochgp import KernelGPRegressor, kernels
        from stochgp.likelihoods import Gaussian
        from stochgp.likelihoods.noise import known_noise

        known = DOCKSTRING[target]
        kernel, noise = kernels.Tanimoto(known.variance), known.noise_variance
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = KernelGPRegressor(kernel, learner=None, likelihood=Gaussian(known_noise(noise)), mean=known.mean, standardize=False, solver=solver, random_state=0).fit(X, y)  # fmt: skip
        return model.predict(X_test), None, _told(model)

    return fit


def _predicted(model: Any, X_test: Any) -> tuple[np.ndarray, np.ndarray]:
    return model.predict(X_test, return_std=True, include_noise=True)


def _told(model: Any) -> dict:
    plan = {
        name: model.plan_[name]["choice"]
        for name in ("learner", "prediction", "solver")
        if name in model.plan_
    }
    return {**{name: str(value) for name, value in plan.items()}, "converged": str(bool(model.converged_))}


def _forest(X: Any, y: np.ndarray, X_test: Any, target: str) -> tuple:
    from sklearn.ensemble import RandomForestRegressor

    X, X_test = (_narrow(part) for part in (X, X_test))
    model = RandomForestRegressor(500, random_state=0, n_jobs=-1).fit(X, y)
    return model.predict(X_test), None, {}


def _narrow(X: Any) -> Any:
    """Return a matrix with 32-bit indices, which trees of scikit-learn need."""
    return type(X)((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)


def _xgboost(X: Any, y: np.ndarray, X_test: Any, target: str) -> tuple:
    from xgboost import XGBRegressor

    model = XGBRegressor(n_estimators=300, max_depth=8, random_state=0).fit(X, y)
    return model.predict(X_test), None, {}


_FITS = {
    "gp": _gp,
    CHIRAL: _gp,
    "forest": _forest,
    "xgboost": _xgboost,
    "sdd": _published("sdd"),
}
