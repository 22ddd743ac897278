"""`SparseGPRegressor()` on split 0 of six UCI sets, and variants of it.

The variants have 4,096 points for the mean, an RBF kernel, or constant Gaussian noise. "svdgp" and "ivsgpr"
are those approximations with an RBF kernel and 150 s, on three sets. `walking` is one of three targets of a
simulated robot with 180,000 rows. NLPD and RMSE are for targets with unit variance, and NLPD includes the
noise. Seconds are those of `fit`.
"""

import functools

from experiments import kernel_defaults
from experiments.problems import SETS, default_scores
from measuring import tables
from measuring.store import Cell, Record, select

VARIANTS = {
    "default": {},
    "4,096 of the mean": {"n_inducing_mean": 4096},
    "RBF": {"kernel": "rbf", "n_inducing_mean": 0},
    "RBF, Gaussian": {"kernel": "rbf", "likelihood": "gaussian", "n_inducing_mean": 0},
    "inducing points alone": {"n_inducing_mean": 0},
    "svdgp": {"learner": "svdgp", "time_limit": 150},
    "ivsgpr": {"learner": "ivsgpr", "time_limit": 150},
}
GROWING, WITH_GROWING = ("svdgp", "ivsgpr"), ("protein", "kin40k", "elevators")
WALKING = "walking"


def cells(quick: bool, slow: bool) -> list[Cell]:
    each = kernel_defaults.cells(quick, slow)
    found = [
        cell | {"variant": name}
        for cell in each
        for name in VARIANTS
        if name not in GROWING or (cell["set"] in WITH_GROWING and not quick)
    ]
    walking = [{"set": WALKING, "output": k, "split": 0, "seed": 0} for k in (() if quick else (0, 4, 8))]
    names = ("inducing points alone", "4,096 of the mean")
    return found + [cell | {"variant": name} for cell in walking for name in names]


def run(cell: Cell) -> dict:
    from experiments import online
    from stochgp import SparseGPRegressor

    kind = functools.partial(SparseGPRegressor, **VARIANTS[cell["variant"]])
    raw = online.load(WALKING, cell["output"]) if cell["set"] == WALKING else None
    return default_scores(kind, cell, raw)[1]


def page(records: list[Record]) -> list[str]:
    headings = "set | variant | RMSE | NLPD | CRPS | 95 % coverage | distribution | seconds"
    rows = []
    for name in (*SETS, WALKING):
        for record in select(records, set=name):
            cell, found = record["settings"], record["results"]
            scores = tables.numbers(found, rmse=4, nlpd=3, crps=4, coverage95=3)
            label = f"{name}, {cell['output'] + 1}" if name == WALKING else name
            seconds = tables.number(found["fit_seconds"], 0)
            rows.append([label, cell["variant"], *scores, found["likelihood"], seconds])
    return [tables.table(headings, rows)]
