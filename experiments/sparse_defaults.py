"""`SparseGPRegressor()` as it comes on the six UCI sets, split 0, beside the same with 4,096 points of the mean, an RBF kernel, and constant Gaussian noise.

No setting but `random_state`, `memory_limit` and these. Those with an RBF kernel have the mean of their inducing points. NLPD and RMSE are of unit-variance targets, the NLPD includes the noise. Seconds are of `fit`, the choice of the
distribution included.
"""

import functools

import numpy as np
from matplotlib.figure import Figure

from experiments import kernel_defaults
from experiments.problems import SETS, law_scores
from measuring import tables
from measuring.sets import load_raw
from measuring.store import Cell, Record, select

ONE_CORE = False
VARIANTS = {
    "default": {},
    "4,096 of the mean": {"n_inducing_mean": 4096},
    "RBF": {"kernel": "rbf", "n_inducing_mean": 0},
    "RBF, Gaussian": {"kernel": "rbf", "likelihood": "gaussian", "n_inducing_mean": 0},
}
DEFAULT = next(iter(VARIANTS))
depends, cost = kernel_defaults.depends, kernel_defaults.cost


def cells(quick: bool, slow: bool) -> list[Cell]:
    each = kernel_defaults.cells(quick, slow)
    return [cell | {"variant": name} for cell in each for name in VARIANTS]


def run(cell: Cell) -> dict:
    from stochgp import SparseGPRegressor
    from stochgp.budget import peak_resident

    raw = load_raw(cell["set"], cell["split"])
    kind = functools.partial(SparseGPRegressor, **VARIANTS[cell["variant"]])
    model, seconds = kernel_defaults.fitted(kind, raw, cell["seed"])
    scale = float(np.std(raw.y))
    return {
        **law_scores(raw.y_test, model.predict_distribution(raw.X_test), scale),
        "likelihood": model.plan_["likelihood"]["choice"],
        "fit_seconds": round(seconds, 1),
        "peak_bytes": peak_resident(),
    }


def page(records: list[Record]) -> list[str]:
    headings = ["set", "variant", "RMSE", "NLPD", "CRPS", "95 % coverage", "distribution", "seconds"]
    rows = []
    for name in SETS:
        for record in select(records, set=name):
            found = record["results"]
            scores = [tables.number(found[field], digits) for field, digits in (("rmse", 4), ("nlpd", 3), ("crps", 4), ("coverage95", 3))]  # fmt: skip
            seconds = tables.number(found["fit_seconds"], 0)
            rows.append([name, record["settings"]["variant"], *scores, found["likelihood"], seconds])
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    """NLPD of each variant, per set."""
    drawing = Figure(figsize=(6, 3), layout="constrained")
    panel = drawing.subplots()
    names = [name for name in SETS if select(records, set=name)]
    for variant in VARIANTS:
        found = {r["settings"]["set"]: r["results"]["nlpd"] for r in select(records, variant=variant)}
        places = [place for place, name in enumerate(names) if name in found]
        panel.plot(places, [found[names[place]] for place in places], "o", label=variant)
    panel.set_xticks(range(len(names)), names)
    panel.set(ylabel="NLPD, unit-variance targets")
    panel.legend()
    return drawing
