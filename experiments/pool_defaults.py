"""`GPRegressor()` on split 0 of six UCI sets, compared with its members.

NLPD and RMSE are for targets with unit variance, and NLPD includes the noise. Seconds are those of `fit`.
Members were fitted to nine tenths of the rows and then updated. Results of the other estimators are those of
`kernel_defaults` and `defaults`.
"""

from experiments import kernel_defaults
from experiments.problems import SETS, default_scores, density_scores, load_raw
from measuring import tables
from measuring.store import Cell, Record, select

cells = kernel_defaults.cells


def run(cell: Cell) -> dict:
    from stochgp import GPRegressor

    model, found, scale = default_scores(GPRegressor, cell)
    raw = load_raw(cell["set"], cell["split"])
    for name, member in model.estimators_.items():
        scores = density_scores(raw.y_test, member.predict_distribution(raw.X_test), scale)
        found |= {f"{score}_of_{name}": scores[score] for score in ("nlpd", "rmse")}
    return found | {"weights": {name: round(weight, 3) for name, weight in model.weights_.items()}}


def page(records: list[Record]) -> list[str]:
    headings = "set | RMSE | NLPD | CRPS | 95 % coverage | best member's RMSE | best member's NLPD | weights | seconds | peak GB so far"
    rows = []
    for name in SETS:
        for record in select(records, set=name):
            found = record["results"]
            best = [min(found[key] for key in found if key.startswith(f"{s}_of_")) for s in ("rmse", "nlpd")]
            scores = tables.numbers(found, rmse=4, nlpd=3, crps=4, coverage95=3)
            weights = ", ".join(f"{member} {weight:.2f}" for member, weight in found["weights"].items())
            seconds, memory = (
                tables.number(found["fit_seconds"], 0),
                tables.number(found["peak_bytes"] / 1e9, 2),
            )
            rows.append(
                [
                    name,
                    *scores,
                    tables.number(best[0], 4),
                    tables.number(best[1], 3),
                    weights,
                    seconds,
                    memory,
                ]
            )
    return [tables.table(headings, rows)]
