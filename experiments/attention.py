"""X5, attention kernel: lowest exact NLML so far against epochs and against seconds (the SCGD paper, second version, figures 7 and 8).

Linear kernel on the attention map (32 features), Adam, split 0 of bike and kin40k, batch 128, 20 epochs (--slow: 100); rates 0.001, 0.003
and 0.01, the one of lowest NLML is shown. `scgd-published` is b = 0.9 at a constant rate with a kernel scale fixed at its start and no
refit, `minimax-published` the same with μ = 1; `scgd` is anchored at every epoch, `bsgd` refitted, both with a rate that falls to zero. `svgp` has 128
inducing points (`inducing`); its curve is −ELBO, which is above the NLML, without passes. Seconds
are of one core, compilation and the evaluations (an exact pass per epoch) included. NLML in the raw units of the targets.
"""

import math

import jax
import optax
from matplotlib.figure import Figure

from experiments import inducing
from experiments.methods import NOT_REFITTED, Method
from experiments.problems import ROWS, curve, deep_gp, load, score
from measuring import tables
from measuring.store import Cell, Record, select
from stochgp.learners import BSGD, SCGD, SVGP, ByLoss, Minimax, constant, fit

SETS, BATCH, EPOCHS, SLOW_EPOCHS, RATES = ("bike", "kin40k"), 128, 20, 100, (1e-3, 3e-3, 1e-2)
_PUBLISHED = {"optimizer": optax.adam, "decay": constant, "anchored": False, "judge": NOT_REFITTED}
METHODS = {
    "scgd-published": Method(SCGD, RATES, True, {**_PUBLISHED, "tracking": 0.9}),
    "scgd": Method(SCGD, RATES, settings={"optimizer": optax.adam}),
    "minimax-published": Method(Minimax, RATES, True, {**_PUBLISHED, "penalty": 1.0}),
    "bsgd": Method(BSGD, RATES, settings={"optimizer": optax.adam}),
    "svgp": Method(SVGP, RATES, settings={"judge": ByLoss()}, sparse=True),
}


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [_cell("synthetic", method, 1e-3, 1) for method in ("scgd", "svgp")]
    found = [_cell(name, method, rate, EPOCHS) for name in SETS for method in METHODS for rate in RATES]
    if slow:
        found += [
            _cell(name, method, rate, SLOW_EPOCHS) for name in SETS for method in METHODS for rate in RATES
        ]
    return found


def _cell(name: str, method: str, rate: float, epochs: int) -> Cell:
    return {"set": name, "split": 0, "batch": BATCH, "method": method, "rate": rate, "epochs": epochs}


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["epochs"] * ROWS[cell["set"]]


def run(cell: Cell) -> dict:
    method, problem = METHODS[cell["method"]], load(cell["set"], cell["split"])
    gp = method.prepared(deep_gp(problem, 0, network="attention"))
    learner = method.learner(cell["batch"], cell["epochs"], cell["rate"])
    if method.sparse:
        return inducing.run(gp, problem, learner, 0) | {"rate": cell["rate"]}
    result = fit(learner, gp, problem.source, key=jax.random.key(0))
    return score(result, problem) | {"rate": cell["rate"], "curve": curve(result, problem)}


def page(records: list[Record]) -> list[str]:
    headings = [
        "set",
        "epochs",
        "method",
        "rate",
        "NLML",
        "RMSE",
        "held-out NLPD",
        "95 % coverage",
        "seconds",
    ]
    rows = []
    for name, epochs in _groups(records):
        for method in METHODS:
            if best := _best(select(records, set=name, epochs=epochs, method=method)):
                found, digits = (
                    best["results"],
                    {"nlml": 3, "rmse": 4, "nlpd": 3, "coverage95": 3, "fit_seconds": 0},
                )
                scores = [tables.number(found[field], d) for field, d in digits.items()]
                rows.append([name, epochs, method, best["settings"]["rate"], *scores])
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    """Per set: against epochs above, against seconds below."""
    groups = _groups(records)
    drawing = Figure(figsize=(5 * len(groups), 7), layout="constrained")
    panels = drawing.subplots(2, len(groups), squeeze=False)
    for column, (name, epochs) in enumerate(groups):
        for method in METHODS:
            if best := _best(select(records, set=name, epochs=epochs, method=method)):
                path = best["results"]["curve"]
                for row, axis in enumerate(("epoch", "seconds")):
                    panels[row, column].plot(path[axis], _lowest(path["nlml"]), label=method)
                    panels[row, column].set_xlabel(axis)
        panels[0, column].set_title(f"{name}, attention, batch {BATCH}")
    panels[0, 0].legend()
    panels[0, 0].set_ylabel("lowest NLML per datum so far")
    panels[1, 0].set_ylabel("lowest NLML per datum so far")
    return drawing


def _groups(records: list[Record]) -> list[tuple[str, int]]:
    return sorted({(r["settings"]["set"], r["settings"]["epochs"]) for r in records})


def _best(runs: list[Record]) -> Record | None:
    """The run of lowest NLML, once there is one."""
    runs = [r for r in runs if r["results"]["nlml"] is not None]
    return min(runs, key=lambda r: r["results"]["nlml"], default=None)


def _lowest(values: list[float | None]) -> list[float]:
    found, least = [], math.inf
    for value in values:
        least = least if value is None else min(least, value)
        found.append(least)
    return found
