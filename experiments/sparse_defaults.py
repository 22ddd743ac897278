"""`SparseGPRegressor()` as it comes on the six UCI sets, split 0, beside the same with 4,096 points of the mean, an RBF kernel, and constant Gaussian noise.

No setting but `random_state`, `memory_limit` and these. Those with an RBF kernel, and "inducing points alone", have the mean of their inducing points. "svdgp" and "ivsgpr" are the
approximations of that name, with 150 s and an RBF kernel as they come, on three sets. `walking` is the first, the fifth or the ninth target of a simulated robot (`robots`), of 180,000 rows. NLPD and RMSE are of unit-variance targets, the NLPD includes the noise. Seconds are of `fit`, the choice of the
distribution included.
"""

import functools

import numpy as np
from matplotlib.figure import Figure

from benchmarks.datasets.prepared import load_raw
from experiments import kernel_defaults, online
from experiments.problems import SETS, law_scores
from experiments.walking import FRAMES
from measuring import tables
from measuring.store import Cell, Record, select

ONE_CORE = False
VARIANTS = {
    "default": {},
    "4,096 of the mean": {"n_inducing_mean": 4096},
    "RBF": {"kernel": "rbf", "n_inducing_mean": 0},
    "RBF, Gaussian": {"kernel": "rbf", "likelihood": "gaussian", "n_inducing_mean": 0},
}
DEFAULT = next(iter(VARIANTS))
ALONE, WIDER = "inducing points alone", "4,096 of the mean"
GROWING = {name: {"approximation": name, "time_limit": 150} for name in ("svdgp", "ivsgpr")}
SETTINGS = VARIANTS | {ALONE: {"n_inducing_mean": 0}} | GROWING
WITH_GROWING = ("protein", "kin40k", "elevators")
WALKING, OUTPUTS = "walking", (0, 4, 8)
depends = kernel_defaults.depends


def cells(quick: bool, slow: bool) -> list[Cell]:
    each = kernel_defaults.cells(quick, slow)
    with_each = lambda cells, names: [cell | {"variant": name} for cell in cells for name in names]
    if quick:
        return with_each(each, VARIANTS)
    growing = with_each([cell for cell in each if cell["set"] in WITH_GROWING], GROWING)
    walking = [{"set": WALKING, "output": k, "split": 0, "seed": 0} for k in OUTPUTS]
    return with_each(each, (*VARIANTS, ALONE)) + growing + with_each(walking, (ALONE, WIDER))


def cost(cell: Cell) -> float:
    return FRAMES if cell["set"] == WALKING else kernel_defaults.cost(cell)


def run(cell: Cell) -> dict:
    from stochgp import SparseGPRegressor
    from stochgp.budget import peak_resident

    raw = (
        online.load(WALKING, cell["output"])
        if cell["set"] == WALKING
        else load_raw(cell["set"], cell["split"])
    )
    kind = functools.partial(SparseGPRegressor, **SETTINGS[cell["variant"]])
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
    for name in (*SETS, WALKING):
        for record in select(records, set=name):
            found = record["results"]
            scores = [tables.number(found[field], digits) for field, digits in (("rmse", 4), ("nlpd", 3), ("crps", 4), ("coverage95", 3))]  # fmt: skip
            seconds = tables.number(found["fit_seconds"], 0)
            label = name if name != WALKING else f"{name}, {record['settings']['output'] + 1}"
            rows.append([label, record["settings"]["variant"], *scores, found["likelihood"], seconds])
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
