"""`KernelGPRegressor(metric="inputs")` on the six UCI sets, split 0: what lengthscales along the inputs reach, beside the lines of `kernel_defaults`, whose may turn.

No other setting but `random_state` and `memory_limit`. NLPD and RMSE are of unit-variance targets, the NLPD includes the noise. Seconds are of `fit`.
"""

import functools

import numpy as np

from experiments import kernel_defaults
from experiments.problems import SETS, law_scores
from measuring import tables
from measuring.sets import load_raw
from measuring.store import Cell, Record, select

ONE_CORE = False
cells, depends, cost, figure = (
    kernel_defaults.cells,
    kernel_defaults.depends,
    kernel_defaults.cost,
    kernel_defaults.figure,
)


def run(cell: Cell) -> dict:
    from stochgp import KernelGPRegressor

    raw = load_raw(cell["set"], cell["split"])
    kind = functools.partial(KernelGPRegressor, metric="inputs")
    model, seconds = kernel_defaults.fitted(kind, raw, cell["seed"])
    scale = float(np.std(raw.y))
    return {
        **law_scores(raw.y_test, model.predict_distribution(raw.X_test), scale),
        "fit_seconds": round(seconds, 1),
        "solver": model.plan_.get("solver", {}).get("choice", "none"),
    }


def page(records: list[Record]) -> list[str]:
    rows = []
    for name in SETS:
        for record in select(records, set=name):
            found = record["results"]
            scores = [tables.number(found[field], digits) for field, digits in (("rmse", 4), ("nlpd", 3), ("crps", 4), ("coverage95", 3))]  # fmt: skip
            rows.append([name, *scores, tables.number(found["fit_seconds"], 0), found["solver"]])
    return [tables.table(["set", "RMSE", "NLPD", "CRPS", "95 % coverage", "seconds", "solver"], rows)]
