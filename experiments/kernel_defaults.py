"""`KernelGPRegressor()` on split 0 of six UCI sets, compared with the exact posterior.

NLPD and RMSE are for targets with unit variance, and NLPD includes the noise. Seconds are those of `fit`,
including compilation. The limits are the scores of the exact posterior (`posteriors`) plus 3 % of the RMSE
and 0.05 of the NLPD (bike: 0.15).
"""

import math

from experiments.problems import SETS, default_scores
from measuring import tables
from measuring.harness import choice
from measuring.store import Cell, Record, select

LIMITS = {  # maximum RMSE and NLPD
    "pol": (1.03 * 0.08336, -1.2136 + 0.05),
    "elevators": (1.03 * 0.35664, 0.3920 + 0.05),
    "bike": (1.03 * 0.04306, -2.706 + 0.15),
    "kin40k": (0.10, -0.8),
    "protein": (1.03 * 0.4936, 0.642 + 0.05),
    "keggdirected": (1.03 * 0.0871, -0.714 + 0.05),
}
SECONDS = 300


def cells(quick: bool, slow: bool) -> list[Cell]:
    return [{"set": name, "split": 0, "seed": 0} for name in (SETS[:1] if quick else SETS)]


def run(cell: Cell) -> dict:
    from stochgp import KernelGPRegressor

    model, found, scale = default_scores(KernelGPRegressor, cell)
    return found | {
        "learner": choice(model, "learner"),
        "solver": choice(model, "solver", "none"),
        "rotation": choice(model, "rotation"),
        "noise_std": math.sqrt(model.noise_variance_) / scale,
        "converged": str(bool(model.converged_)),
    }


def page(records: list[Record]) -> list[str]:
    headings = "set | RMSE | NLPD | CRPS | 95 % coverage | distribution | seconds | peak GB so far | learner | solver | RMSE limit | NLPD limit | kept"
    rows = []
    for name in SETS:
        for record in select(records, set=name):
            found, (rmse, nlpd) = record["results"], LIMITS[name]
            kept = found["rmse"] <= rmse and found["nlpd"] <= nlpd and found["fit_seconds"] <= SECONDS
            scores = tables.numbers(found, rmse=4, nlpd=3, crps=4, coverage95=3)
            seconds, memory = (
                tables.number(found["fit_seconds"], 0),
                tables.number(found["peak_bytes"] / 1e9, 2),
            )
            limits = [tables.number(rmse, 4), tables.number(nlpd, 4), "yes" if kept else "no"]
            rows.append(
                [
                    name,
                    *scores,
                    found["likelihood"],
                    seconds,
                    memory,
                    found["learner"],
                    found["solver"],
                    *limits,
                ]
            )
    return [tables.table(headings, rows)]
