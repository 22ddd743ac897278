"""The iterative learner against the full batch: exact NLML reached and seconds, and what warm starts save.

Matérn-3/2, pol and elevators, split 0, standardised. Both go on from the optimum of 3,000 random rows, which is made once and counted for
both: `full-batch` by L-BFGS on the exact likelihood of all rows, `iterative` with the settings of `learner="iterative"`. Both ends are
evaluated by a float64 factor of all rows. `warm` and `cold` take the first ten steps to the tolerance, however many epochs that takes: the
epochs of the solver are compared from the second step on.
"""

import dataclasses
import time

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import load
from measuring import tables
from measuring.store import Cell, Record, select

SETS, SIDES = ("pol", "elevators"), ("full-batch", "iterative", "warm", "cold")
COMPARED_STEPS, MOST_EPOCHS = 10, 300
ONE_CORE = False


def cells(quick: bool, slow: bool) -> list[Cell]:
    return [{"set": name, "side": side, "seed": 0} for name in SETS for side in SIDES]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return 1 + SIDES[::-1].index(cell["side"])


def run(cell: Cell) -> dict:
    import jax

    from stochgp import kernels
    from stochgp.learners import Chain, FullBatch, fit
    from stochgp.models import KernelGP
    from stochgp.objectives.kernel import nlml
    from stochgp.parameters import cast
    from stochgp.selection.choices import kernel_learner
    from stochgp.solvers import SDD

    problem = load(cell["set"], 0)
    N, D = problem.X.shape
    chain, _ = kernel_learner("iterative", N)
    assert isinstance(chain, Chain)
    last = dataclasses.replace(chain.learners[1], keep_rows=N)
    if cell["side"] in ("warm", "cold"):
        last = dataclasses.replace(
            last, epochs=COMPARED_STEPS, warm_start=cell["side"] == "warm", solver=SDD(epochs=MOST_EPOCHS)
        )
    if cell["side"] == "full-batch":
        last = FullBatch()
    learner = Chain((chain.learners[0], last))
    with jax.enable_x64(True):
        source = problem.source
        kernel = kernels.Matern32(np.full(D, D**0.5))
        gp = cast(KernelGP(kernel, 0.1), "float32")
        begun = time.perf_counter()
        found = fit(learner, gp, source, key=jax.random.key(cell["seed"]))
        seconds = time.perf_counter() - begun
        later = [entry for entry in found.history if entry.get("stage") == 1]
        results = {
            "seconds": round(seconds, 1),
            "last_seconds": round(seconds - later[0]["seconds"] + _first(later), 1),
            "steps": len(later),
            "noise_variance": float(found.gp.noise_variance),
            "loss": float(found.loss),
        }
        if cell["side"] != "full-batch":
            results["epochs"] = [entry["solver_epochs"] for entry in later]
        if cell["side"] in ("full-batch", "iterative"):
            results["nlml"] = nlml(found.gp, source.take(np.arange(source.size)))
    return results


def _first(later: list[dict]) -> float:
    """Seconds of the first step, taken to be those of the second."""
    return later[1]["seconds"] - later[0]["seconds"] if len(later) > 1 else 0.0


def page(records: list[Record]) -> list[str]:
    rows = []
    for record in records:
        cell, found = record["settings"], record["results"]
        epochs = found.get("epochs", [])
        rows.append(
            [
                cell["set"], cell["side"], found["steps"], tables.number(found["seconds"], 0),
                tables.number(found["last_seconds"], 0), tables.number(found.get("nlml", float("nan")), 4),
                tables.number(sum(epochs[1:]), 0) if epochs else "",
            ]
        )  # fmt: skip
    headings = [
        "set",
        "learner",
        "steps",
        "seconds",
        "after the subset",
        "exact NLML",
        "solver epochs after the first step",
    ]
    return [tables.table(headings, rows)] + [_saved(records, name) for name in SETS]


def _saved(records: list[Record], name: str) -> str:
    found = {side: select(records, set=name, side=side) for side in ("warm", "cold")}
    if not all(found.values()):
        return ""
    warm, cold = (sum(found[side][0]["results"]["epochs"][1:]) for side in ("warm", "cold"))
    return f"{name}: cold starts take {cold / warm:.1f} times the epochs of warm ones.\n"


def figure(records: list[Record]) -> Figure | None:
    return None
