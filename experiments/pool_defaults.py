"""`GPRegressor()` as it comes on the six UCI sets, split 0, beside each of its members and the families at their defaults.

No setting but `random_state` and `memory_limit`. NLPD and RMSE are of unit-variance targets, the NLPD includes the noise. Seconds are of `fit`, of all members together. A member
learned from nine tenths of the rows and took in the others; the families' own lines, of all rows, are those of `kernel_defaults` and `defaults`.
"""

import numpy as np
from matplotlib.figure import Figure

from benchmarks.datasets.prepared import load_raw
from experiments import kernel_defaults
from experiments.problems import SETS, law_scores
from measuring import tables
from measuring.store import Cell, Record, select

ONE_CORE = False
cells, depends, cost = kernel_defaults.cells, kernel_defaults.depends, kernel_defaults.cost


def run(cell: Cell) -> dict:
    from stochgp import GPRegressor
    from stochgp.budget import peak_resident

    raw = load_raw(cell["set"], cell["split"])
    model, seconds = kernel_defaults.fitted(GPRegressor, raw, cell["seed"])
    scale = float(np.std(raw.y))
    members = {}
    for name, member in model.estimators_.items():
        found = law_scores(raw.y_test, member.predict_distribution(raw.X_test), scale)
        members |= {f"{score}_of_{name}": found[score] for score in ("nlpd", "rmse")}
    return {
        **law_scores(raw.y_test, model.predict_distribution(raw.X_test), scale),
        **members,
        "weights": {name: round(weight, 3) for name, weight in model.weights_.items()},
        "fit_seconds": round(seconds, 1),
        "peak_bytes": peak_resident(),
    }


def page(records: list[Record]) -> list[str]:
    headings = ["set", "RMSE", "NLPD", "CRPS", "95 % coverage", "best member's RMSE", "best member's NLPD", "weights", "seconds", "peak GB so far"]  # fmt: skip
    rows = []
    for name in SETS:
        for record in select(records, set=name):
            found = record["results"]
            best = lambda score, found=found: min(
                value for key, value in found.items() if key.startswith(f"{score}_of_")
            )
            rows.append(
                [
                    name,
                    tables.number(found["rmse"], 4),
                    tables.number(found["nlpd"], 3),
                    tables.number(found["crps"], 4),
                    tables.number(found["coverage95"], 3),
                    tables.number(best("rmse"), 4),
                    tables.number(best("nlpd"), 3),
                    ", ".join(f"{member} {weight:.2f}" for member, weight in found["weights"].items()),
                    tables.number(found["fit_seconds"], 0),
                    tables.number(found["peak_bytes"] / 1e9, 2),
                ]
            )
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    """NLPD of the pool and of each member, per set."""
    drawing = Figure(figsize=(6, 3), layout="constrained")
    panel = drawing.subplots()
    found = {record["settings"]["set"]: record["results"] for record in records}
    for place, name in enumerate(found):
        members = [value for key, value in found[name].items() if key.startswith("nlpd_of_")]
        panel.plot([place] * len(members), members, "o", color="grey")
    panel.plot(range(len(found)), [of["nlpd"] for of in found.values()], "D", color="#1f5fa8", label="pool")
    panel.set_xticks(range(len(found)), list(found))
    panel.set(ylabel="NLPD, unit-variance targets")
    panel.legend()
    return drawing
