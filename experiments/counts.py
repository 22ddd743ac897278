"""Bikes rented in an hour, from calendar and weather: SparseGPRegressor with likelihoods of counts beside Gaussian noise.

`nlpd` is minus the mean log probability of the held-out count; of densities that is the log of their mass within half a count, so that all
are alike. A tenth of the hours is held out, at random for each seed. "log count" is target="count", Gaussian noise on log(y + ½).
"""

import time
import warnings
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from measuring import tables
from measuring.sets import bike_counts
from measuring.store import Cell, Record, select

METHODS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "log count": {"target": "count"},
    "poisson": {"likelihood": "poisson"},
    "negative-binomial": {"likelihood": "negative-binomial"},
}
KERNEL, N_INDUCING, BATCH, EPOCHS, RATE, SEEDS = "matern32", 256, 512, 60, 0.03, 3
FEW = {"n_inducing": 40, "rows": 600}  # of a quick run
FIELDS = ("nlpd", "nlpd_stderr", "rmse", "crps", "coverage95", "elbo", "seconds")


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"seed": 0, "method": method, **FEW} for method in ("gaussian", "negative-binomial")]
    seeds = range(10 if slow else SEEDS)
    return [
        {"seed": seed, "method": name, "n_inducing": N_INDUCING, "rows": None}
        for seed in seeds
        for name in METHODS
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["n_inducing"]


def run(cell: Cell) -> dict:
    from stochgp import SparseGPRegressor

    found = bike_counts(cell["seed"])
    rows = np.random.default_rng(cell["seed"]).permutation(len(found.y))[: cell["rows"]]
    settings = {
        "n_inducing": cell["n_inducing"],
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "learning_rate": RATE,
    }
    model = SparseGPRegressor(KERNEL, random_state=cell["seed"], **settings, **METHODS[cell["method"]])
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(found.X[rows], found.y[rows])
    seconds = time.perf_counter() - begun
    law = model.predict_distribution(found.X_test)
    return scores(law, found.y_test) | {"elbo": model.elbo_, "seconds": round(seconds, 1)}


def scores(law: Any, y: np.ndarray) -> dict[str, float]:
    """Of laws of counts and of real numbers alike."""
    from stochgp import metrics
    from stochgp.distributions import Normal

    losses = -(law.log_mass(y) if isinstance(law, Normal) else law.logpdf(y))
    return {
        "nlpd": float(np.mean(losses)),
        "nlpd_stderr": float(np.std(losses)) / len(y) ** 0.5,
        "rmse": metrics.rmse(y, law.mean),
        "crps": metrics.crps(y, law),
        "coverage95": metrics.coverage(y, law),
    }


def page(records: list[Record]) -> list[str]:
    """A row for each method: averages over splits."""
    rows = []
    for name in METHODS:
        found = [record["results"] for record in select(records, method=name)]
        if found:
            rows.append(
                [name, len(found), *(tables.number(np.mean([r[f] for r in found]), 3) for f in FIELDS)]
            )
    return [
        tables.table(
            ["method", "splits", "NLPD of the count", "±", "RMSE", "CRPS", "95 %", "ELBO", "seconds"], rows
        )
    ]


def figure(records: list[Record]) -> Figure | None:
    return None
