"""How far standard deviations from samples are from the exact ones, by how many nearest rows they begin with.

10,000 training rows, 1,000 test rows, the hyperparameters of Lin et al. (2023), `KernelGPRegressor(learner=None)` with 64 samples solved to its default tolerances. Errors are of the
standard deviation of f, relative to that of a float64 Cholesky factor: root mean square, and mean. Without near rows the variance is that of `posteriors.base.variance_of_samples` from k(z, z).
Seconds are those of predicting mean and deviation of the test rows, compiled before.
"""

import dataclasses
import time

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import load
from measuring import tables
from measuring.store import Cell, Record

SETS, SOLVERS = ("pol", "elevators", "protein"), ("cg", "sdd")
NEIGHBOURS = (0, 16, 32, 48, 64, 96, 128)
N, TEST_ROWS, REPEATS = 10_000, 1000, 5
QUICK = 400


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "protein", "solver": "cg", "rows": QUICK}]
    return [{"set": name, "solver": solver, "rows": N} for solver in SOLVERS for name in SETS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["rows"]


def run(cell: Cell) -> dict:
    from experiments import kernel_fits
    from stochgp import KernelGPRegressor
    from stochgp.parameters import value_of

    problem = load(cell["set"], 0, cell["rows"])
    gp = kernel_fits.published(cell["set"], 0)
    Z = problem.X_test[:TEST_ROWS]
    settings = {"learner": None, "likelihood": "gaussian", "prediction": "global", "new_rows": "between"}
    model = KernelGPRegressor(
        value_of(gp.kernel), noise_variance=float(gp.noise_variance), solver=cell["solver"], standardize=False,
        mean=0.0, random_state=0, **settings,
    ).fit(problem.X, problem.y)  # fmt: skip
    exact = np.sqrt(
        kernel_fits.dense(gp, problem.X, problem.y).predict(Z).variance - float(gp.noise_variance)
    )
    fitted, found = model._fitted, []
    for m in NEIGHBOURS:
        posterior = dataclasses.replace(fitted.posterior, n_neighbours=m)
        model._fitted = dataclasses.replace(fitted, posterior=posterior)
        ratio = model.predict(Z, return_std=True)[1] / exact
        seconds = [_seconds(model, Z) for _ in range(REPEATS)]
        found.append(
            {
                "neighbours": m,
                "error": float(np.sqrt(np.mean((ratio - 1) ** 2))),
                "mean": float(np.mean(ratio - 1)),
                "seconds": float(np.median(seconds)),
            }
        )
    return {
        "deviations": found,
        "residual": model.plan_["residual"]["choice"],
        "chosen": model.plan_["variance_neighbours"]["choice"],
        "fit_seconds": model.fit_seconds_,
    }


def _seconds(model, Z: np.ndarray) -> float:
    start = time.perf_counter()
    model.predict(Z, return_std=True)
    return time.perf_counter() - start


def page(records: list[Record]) -> list[str]:
    headings = ["solver", "set", "near rows", "error", "mean", "seconds"]
    rows = [
        [r["settings"]["solver"], r["settings"]["set"], d["neighbours"], f"{d['error']:.4f}", f"{d['mean']:+.4f}", f"{d['seconds']:.3f}"]
        for r in records
        for d in r["results"]["deviations"]
    ]  # fmt: skip
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    drawing = Figure(figsize=(4.5, 3.5), layout="constrained")
    panel = drawing.subplots()
    for record in records:
        cell, found = record["settings"], record["results"]["deviations"]
        label = f"{cell['set']}, {cell['solver']}"
        panel.semilogy([d["neighbours"] for d in found], [d["error"] for d in found], "o-", ms=3, label=label)
    panel.set(xlabel="near rows that a variance begins with", ylabel="relative error of standard deviations")
    panel.legend(fontsize=7)
    return drawing
