"""X16 (Lin et al. 2024, table 1): posteriors with published Matérn-3/2 hyperparameters.

Each solver uses its defaults. Targets have unit variance; NLPD includes the noise. Iterative solvers also
solve for 64 samples with 2,000 prior features. Seconds are those of `fit`, including compilation. `published`
cells run SDD with the settings of the paper (βN = 50, B = 512, ρ = 0.9, r = 100/T) for the mean. `svgp` is
the default `SparseGPRegressor` with 512 inducing points at the same hyperparameters. `page` describes missing
sets.
"""

import math
import time
import warnings
from typing import Any

import numpy as np

from benchmarks.datasets.prepared import hyperparameters, load_raw
from experiments.problems import unit_scores
from measuring import tables
from measuring.store import Cell, Record, select

SMALL, LARGE = ("pol", "elevators", "bike"), ("protein", "keggdirected")
SOLVERS = ("cholesky", "cg", "sdd")
PAPER_NAME = {"keggdirected": "keggdir"}
STEPS = 100_000


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "pol", "split": 0, "solver": "sdd", "seed": 0}]
    found = [
        {"set": name, "split": split, "solver": solver, "seed": 0}
        for solver in (*SOLVERS, "auto", "svgp")
        for name in (*SMALL, *LARGE)
        for split in (range(5) if name in SMALL and solver in SOLVERS else (0,))
    ]
    if slow:
        found.append({"set": "pol", "split": 0, "solver": "published", "seed": 0})
    return found


def run(cell: Cell) -> dict:
    raw = load_raw(cell["set"], cell["split"])
    theta, is_sparse = hyperparameters(cell["set"], cell["split"]), cell["solver"] == "svgp"
    model = _sparse(theta, cell["seed"]) if is_sparse else _global(cell, theta, len(raw.y))
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(raw.X, raw.y)
    fit_seconds = time.perf_counter() - begun
    scale = float(np.std(raw.y))
    results = {
        "fit_seconds": round(fit_seconds, 2),
        "converged": str(model.converged_),
        "steps": model.n_iter_,
    }
    results |= {"used": "SVGP"} if is_sparse else _solve(model)
    begun = time.perf_counter()
    if cell["solver"] == "published":
        mean = model.predict(raw.X_test)
        curve = [[e["step"], e["residual"], round(e["seconds"], 1)] for e in model.history_ if e["measured"]]
        return results | {"rmse": _rmse(raw.y_test, mean) / scale, "curve": curve}
    mean, std = model.predict(raw.X_test, return_std=True, include_noise=True)
    return results | {
        **unit_scores(raw.y_test, mean, std, scale),
        "predict_seconds": round(time.perf_counter() - begun, 2),
    }


def _global(cell: Cell, theta: dict[str, Any], n_rows: int) -> Any:
    """Return a kernel GP with these hyperparameters and the solver of the cell."""
    from stochgp import KernelGPRegressor, kernels, solvers
    from stochgp.likelihoods import Gaussian
    from stochgp.likelihoods.noise import known_noise

    by_step_size = cell["solver"] == "published"
    given = {
        "published": solvers.SDD(
            epochs=_epochs(n_rows), step_size=50 / n_rows, averaging=100 / STEPS, check_every=100
        )
    }
    return KernelGPRegressor(
        kernels.Matern32(theta["lengthscale"], theta["variance"]),
        learner=None,
        likelihood=Gaussian(known_noise(theta["noise_variance"])),
        solver=given.get(cell["solver"], cell["solver"]),
        time_limit=600.0 if by_step_size else None,
        random_state=cell["seed"],
    )


def _sparse(theta: dict[str, Any], seed: int) -> Any:
    """Return a sparse GP with these hyperparameters and learned inducing points."""
    from stochgp import SparseGPRegressor, kernels, likelihoods
    from stochgp.parameters import frozen

    lengthscale, variance, noise = (
        frozen(theta[name]) for name in ("lengthscale", "variance", "noise_variance")
    )
    kernel = kernels.Matern32(lengthscale, variance)
    return SparseGPRegressor(
        kernel, n_inducing_mean=0, likelihood=likelihoods.Gaussian(noise), random_state=seed
    )


def _solve(model: Any) -> dict[str, Any]:
    """Return how the posterior of a kernel GP was solved."""
    residual, used = (model.plan_[k]["choice"] for k in ("residual", "solver"))
    seconds = round(model.history_[-1]["seconds"], 2)
    return {"residual": residual, "used": used, "solve_seconds": seconds}


def page(records: list[Record]) -> list[str]:
    headings = [
        "set",
        "solver",
        "splits",
        "RMSE",
        "NLPD",
        "coverage",
        "fit seconds",
        "residual",
        "published RMSE",
        "published NLL",
    ]
    published = _published()
    rows = []
    for name in (*SMALL, *LARGE):
        for solver in (*SOLVERS, "auto", "svgp", "published"):
            if runs := select(records, set=name, solver=solver):
                get = lambda field, runs=runs: [r["results"].get(field, math.nan) for r in runs]
                scores = [tables.spread(get(f), d) for f, d in (("rmse", 4), ("nlpd", 3), ("coverage95", 3), ("fit_seconds", 1), ("residual", 4))]  # fmt: skip
                paper = [
                    published.get((metric, PAPER_NAME.get(name, name)), "") for metric in ("rmse", "nll")
                ]
                rows.append([name, solver, len(runs), *scores, *paper])
    large = (
        "Not at hand: 3droad, song, buzz, houseelectric (435 thousand to 2 million rows). A pass over all rows of K with 65 columns costs "
        "N² (evaluate + 65 multiply) ≈ 1.3e-9 N² s on two cores: 4 minutes for 3droad, 90 minutes for houseelectric; 20 passes of them are needed."
    )
    return [tables.table(headings, rows), "Published: stochastic dual descent.", large]


def _rmse(y: np.ndarray, mean: np.ndarray) -> float:
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def _epochs(n_rows: int) -> int:
    return STEPS * 512 // n_rows


def _published() -> dict[tuple[str, str], str]:
    """Return published means of SDD per metric and set."""
    return {
        (r["metric"], r["dataset"]): r["mean"] for r in tables.published("sdd_uci") if r["method"] == "SDD"
    }
