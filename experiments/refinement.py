"""Can the global solve take the learned noise variance as it is? (N6 of the acceptance experiments.)

bike, pol and kin40k, Matérn-3/2, so many random training rows that a float64 factor of A = K + σ²I fits (6,000: 0.3 GB; with --slow 12,000: 1.2 GB). θ is learned by leave-one-out from 16
neighbours of 1,024 centres. The reference is the posterior by that factor, with exact variances. Beside it, at the learned σ² and not raised: the solver that "auto" takes, direct or not; conjugate
gradients with products in float32 and everything else, and the residuals that they are corrected with, as the library has it; and the same with products in float64, which is what refinement
would cost at least. Last, conjugate gradients at the noise variance that the estimator would raise σ² to. Iterative solvers have variances of 64 samples, without the factor by which a fit that learns calibrates them. No solver here corrects
a float32 solution with float64 products (B2.3): float64 throughout stands for it.

Scores are of 2,000 test rows, unit-variance targets. Seconds are the processor's, of one core, for `fit` with compilation, and only those of one set compare. Accepted: at the learned σ² RMSE within 1 % and NLPD within
0.02 of the reference, in at most twice the time of the raised solve.
"""

import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import Problem, load
from measuring import tables
from measuring.acceptance import RAISED, REFERENCE, solve_kept, solves_verdict
from measuring.store import Cell, Record

SETS = ("bike", "pol", "kin40k")
ROWS, MANY_ROWS, TEST_ROWS, EPOCHS = 6000, 12_000, 2000, 300
AUTO, CG, WIDE = "auto", "cg", "cg, float64 products"
ONE_CORE = True


class Rows(NamedTuple):
    """What `raised_for_solving` looks at."""

    X: np.ndarray
    y: np.ndarray
    count: np.ndarray


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "synthetic", "rows": 300, "seed": 0}]
    return [{"set": s, "rows": n, "seed": 0} for n in (ROWS, MANY_ROWS)[: 1 + slow] for s in SETS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["rows"] ** 3


def run(cell: Cell) -> dict:
    import jax

    from experiments import kernel_fits
    from stochgp import learners

    problem = load(cell["set"], 0, cell["rows"])
    truth = kernel_fits.some_tests(problem, TEST_ROWS)
    learner = learners.LeaveOneOut(n_neighbours=16, n_centres=min(1024, cell["rows"] // 2), n_scored=1)
    first = kernel_fits.start(problem.X.shape[1])
    gp = learners.fit(learner, first, problem.source, key=jax.random.key(cell["seed"])).gp
    learned, (raised, growth) = float(gp.noise_variance), _raised(gp, problem)
    begun = time.process_time()
    made = kernel_fits.dense(gp, problem.X, problem.y)
    seconds = time.process_time() - begun
    exact = kernel_fits.scores(made.predict(truth.X), truth)
    found = {REFERENCE: exact | {"seconds": round(seconds, 1), "noise_variance": learned}}
    for side, noise in ((AUTO, learned), (CG, learned), (WIDE, learned), (RAISED, raised)):
        jax.clear_caches()  # each solve compiles what it needs
        found[side] = _solved(side, gp, noise, problem, truth, cell["seed"])
    return {"sides": found, "growth": growth}


def _raised(gp: Any, problem: Problem) -> tuple[float, float]:
    """(The σ² that the estimator would solve with, the growth of variances of observations)."""
    from stochgp.selection.raised_noise import raised_for_solving

    rows: Any = Rows(problem.X, problem.y, np.ones(len(problem.y), problem.y.dtype))
    found = raised_for_solving(gp, rows)
    return float(found.gp.noise_variance), found.growth


def _solved(side: str, gp: Any, noise: float, problem: Problem, truth: Any, seed: int) -> dict:
    from experiments import kernel_fits
    from stochgp import KernelGPRegressor, solvers

    dtype = "float64" if side == WIDE else "float32"
    model = KernelGPRegressor(
        gp.kernel,
        learner=None,
        noise_variance=noise,
        solver="auto" if side == AUTO else solvers.CG(epochs=EPOCHS),
        likelihood="gaussian",
        standardize=False,
        dtype=dtype,
        random_state=seed,
    )
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(problem.X.astype(dtype), problem.y.astype(dtype))
    seconds = time.process_time() - begun
    mean, std = model.predict(truth.X.astype(dtype), return_std=True, include_noise=True)
    predicted = kernel_fits.Predicted(np.asarray(mean, np.float64), np.asarray(std, np.float64) ** 2)
    return kernel_fits.scores(predicted, truth) | {
        "seconds": round(seconds, 1),
        "noise_variance": noise,
        "solver": model.plan_["solver"]["choice"],
        "residual": model.plan_["residual"]["choice"],
        "steps": model.n_iter_,
        "converged": str(bool(model.converged_)),
    }


def page(records: list[Record]) -> list[str]:
    headings = ["set", "rows", "solve", "solver", "σ²", "RMSE", "NLPD", "95 % coverage", "residual", "steps", "seconds", "converged", "accepted"]  # fmt: skip
    rows = []
    for record in records:
        cell = record["settings"]
        for side, found in record["results"]["sides"].items():
            rows.append(
                [
                    cell["set"],
                    cell["rows"],
                    side,
                    found.get("solver", ""),
                    f"{found['noise_variance']:.2g}",
                    *(tables.number(found[field], 4) for field in ("rmse", "nlpd")),
                    tables.number(found["coverage95"], 3),
                    f"{found['residual']:.1e}" if found.get("residual") is not None else "",
                    found.get("steps", ""),
                    tables.number(found["seconds"], 1),
                    found.get("converged", ""),
                    "" if side in (REFERENCE, RAISED) else ("yes" if solve_kept(record, side) else "no"),
                ]
            )
    return [tables.table(headings, rows), solves_verdict(records)]


def figure(records: list[Record]) -> Figure:
    """NLPD less that of the float64 factor."""
    drawing = Figure(figsize=(6, 3), layout="constrained")
    panel = drawing.subplots()
    for i, side in enumerate((AUTO, CG, WIDE, RAISED)):
        for j, record in enumerate(records):
            found = record["results"]["sides"]
            less = found[side]["nlpd"] - found[REFERENCE]["nlpd"]
            panel.bar(j + 0.2 * (i - 1.5), less, 0.2, color=f"C{i}", label=side if j == 0 else None)
    names = [f"{r['settings']['set']}, {r['settings']['rows']}" for r in records]
    panel.set_xticks(range(len(names)), names)
    panel.set_yscale("symlog", linthresh=0.02)
    panel.set(ylabel="NLPD less the factor's")
    panel.legend(fontsize=7)
    return drawing
