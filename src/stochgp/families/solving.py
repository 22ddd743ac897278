"""Linear solves for the posterior of a kernel GP, and updates from the last solution."""

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from sklearn.exceptions import ConvergenceWarning

from stochgp import deadline
from stochgp.budget import Budget, release
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError
from stochgp.estimators.fitted import Fitted
from stochgp.kernels.dense import diagonal
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import noise_of_rows, with_level
from stochgp.models import KernelGP
from stochgp.numerics.arrays import on_device
from stochgp.numerics.linalg import factorised
from stochgp.operators import KernelOperator
from stochgp.parameters import cast, value_of
from stochgp.posteriors import (
    AbstractKernelPosterior,
    ExactKernelPosterior,
    KernelSystem,
    LocalPosterior,
    MixturePosterior,
    SampledKernelPosterior,
)
from stochgp.posteriors.kernel import CALIBRATION_SECONDS, EXACT_ROWS, NEAR, ROWS
from stochgp.posteriors.local import NEIGHBOURS, local_search_bytes
from stochgp.results import RESULTS, Solution
from stochgp.sharding import default_tile, on_one
from stochgp.solvers import AbstractSolver, Cholesky, solve
from stochgp.solvers.base import SMALL, TERM_BYTES, n_terms, plannable
from stochgp.solvers.choice import Choice, choose_solver, keeps_matrix, name_of
from stochgp.solvers.cholesky import refined
from stochgp.warning import warn

logger = logging.getLogger("stochgp.estimators")

TOLERANCE, POWER, TYPICAL_SHARE = 0.2, 0.75, 0.4  # see `relative_tolerance`
SOME_ROWS = 100  # rows to average the kernel's variance
ENOUGH_ROWS = 10_000
LEAST_TOLERANCE, MOST_TOLERANCE = 1e-5, 0.1
SMALLEST = float(np.finfo(np.float64).tiny)


def choose(gp: KernelGP, data: TrainingData, solver: str | AbstractSolver, context: FitContext) -> Choice:
    """Choose the solver of the system. Raises MemoryLimitError if none fits."""
    kernel, X, noise_ratio = value_of(gp.kernel), data.X, 0.01
    if len(X) > SMALL:  # fewer rows are solved in float64
        noise = np.mean(noise_of_rows(with_level(gp.noise, float(gp.noise_variance)), X, data.rows.weights))
        noise_ratio = float(noise / diagonal(kernel, X[:: len(X) // SOME_ROWS][:SOME_ROWS]).mean())
    release()
    budget = context.budget.keeping(TERM_BYTES * (n_terms(kernel) - 1))
    return choose_solver(
        *(len(X), 0, X.shape[1], budget), solver=solver, dtype=data.dtype, noise_ratio=noise_ratio
    )


def solved(
    gp: KernelGP,
    data: TrainingData,
    choice: Choice,
    context: FitContext,
    *,
    typical_error: float | None = None,
    is_learned: bool = False,
) -> tuple[AbstractKernelPosterior, Solution]:
    """Return the posterior at the hyperparameters of `gp`, and the solution of its system.

    Variances of learned models are calibrated with leave-one-out errors, if time and memory allow.
    `typical_error` is a typical error of left-out rows. Raises TimeIsUpError if a Cholesky factorisation of
    more than 3,000 rows is expected to end after the deadline.
    """
    solver, dtype, need, why = choice
    N = len(data.y)
    logger.info("solving by %s: %s", type(solver).__name__, why)
    kernel, X = cast((value_of(gp.kernel), on_device(data.X)), dtype)
    noise = with_level(gp.noise, float(gp.noise_variance))
    system = KernelSystem(kernel, X, data.rows.weights, noise, min(default_tile(), N))
    posterior: Any
    if isinstance(solver, Cholesky):
        posterior, found = solved_directly(system, data.y)
    else:
        posterior, found = _solved(system, solver, data.y, need, typical_error, context)
    context.record("solver", name_of(solver), why)
    if isinstance(posterior, ExactKernelPosterior) and posterior.is_exact:
        context.record("variance", "exact", f"from the Cholesky factor; there are at most {EXACT_ROWS} rows")
    else:
        of_near = f"variances are computed from the {NEAR} nearest rows, whose information is multiplied by {posterior.information:.3g}"
        context.record(
            "variance", "near rows", f"there are more than {EXACT_ROWS} rows or no Cholesky factor; {of_near}"
        )
    searched = local_search_bytes(kernel, N, data.n_inputs, ROWS, NEIGHBOURS)
    calibrates = is_learned and (N > SMALL or data.rows.group is not None)
    if calibrates and searched <= context.budget.free():
        with contextlib.suppress(TimeIsUpError), deadline.granted(CALIBRATION_SECONDS):
            posterior, context.report["variance_scale"] = posterior.calibrated(data.rows.group)
    # The relative residual of the mean, and 1.48 times the median error of left-out rows.
    context.report |= {"residual": float(found.residual_norms[0]), "typical_error": typical_error}
    return posterior, found


def _solved(
    system: KernelSystem, solver: AbstractSolver, y: Float[np.ndarray, " N"], need: int,
    typical_error: float | None, context: FitContext,
) -> tuple[SampledKernelPosterior, Solution]:  # fmt: skip
    """Solve with an iterative solver that needs `need` bytes. K is stored if memory allows."""
    run_key = jax.random.split(context.solve_key, 3)[2]
    b, mesh = on_device(y[:, None], system.X.dtype), context.mesh
    if mesh is not None and mesh.size > 1:
        operator = system.operator_on(mesh)
    else:
        keep = keeps_matrix(system.operator, plannable(context.budget) - need)
        operator = dataclasses.replace(system.operator, keep=keep)
    known = float(system.noise.level), y
    tolerance = relative_tolerance(*known, typical_error, solver.tolerance_share)
    enough = relative_tolerance(*known, share=solver.tolerance_share)
    found = run_solver(solver, operator, b, tolerance, context.bar.show, run_key, enough=enough)
    if operator.mesh is not None:  # the posterior is on one device
        value, left = on_one((found.value, found.residual))
        found = found._replace(value=value, residual=left)
    posterior = sampled_posterior(system, solver, y, found, tolerance)
    return posterior.with_information(), found


def sampled_posterior(
    system: KernelSystem, solver: AbstractSolver, y: Float[np.ndarray, " N"], found: Solution,
    tolerance: float, information: float = 1.0,
) -> SampledKernelPosterior:  # fmt: skip
    """Return the posterior from the solution for the mean."""
    explained = float(y @ np.asarray(found.value, np.float64)[:, 0])
    left = y[:, None] - system.times(np.asarray(found.value)) if found.residual is None else found.residual
    return SampledKernelPosterior(
        system=system, weights=found.value, explained=explained, solver=solver, tolerance=tolerance,
        y=y, left=np.asarray(left, np.float64)[:, 0], information=information,
    )  # fmt: skip


def solved_directly(
    system: KernelSystem,
    y: Float[np.ndarray, " N"],
    information: float | None = None,
) -> tuple[ExactKernelPosterior, Solution]:
    """Return the posterior from a Cholesky factor; `information` is computed if it is None."""
    b, tolerance = y[:, None], relative_tolerance(float(system.noise.level), y)
    factor = factorised(system.upper)
    found = refined(factor, b, system.times, tolerance, system.X.dtype)
    explained = float(y @ np.asarray(found.value, np.float64)[:, 0])
    posterior = ExactKernelPosterior(system, found.value, explained, y)
    vars(posterior)["factor"] = factor  # the property then does not compute the factor again
    if information is None:
        return posterior.with_information(), found
    return posterior.changed(information=information), found


def relative_tolerance(
    noise_variance: float,
    y: Float[np.ndarray, " N"],
    typical_error: float | None = None,
    share: float = 1.0,
) -> float:
    """Return the relative residual ‖y − Aα‖/‖y‖ to reach.

    The empirical rule is share · min(1, √(N/10,000)) · min(0.2 (σ / rms y)^¾, 0.1). The upper limit is 0.4 ·
    `typical_error` / rms y: a residual adds about its own size to errors of predictions, and with heavy tails
    most errors are far smaller than the noise.
    """
    size = max(math.sqrt(float(np.mean(np.square(y)))), SMALLEST)
    found = min(TOLERANCE * (math.sqrt(noise_variance) / size) ** POWER, MOST_TOLERANCE)
    found *= share * min(1.0, math.sqrt(len(y) / ENOUGH_ROWS))
    if typical_error is not None:
        found = min(found, TYPICAL_SHARE * typical_error / size)
    return max(found, LEAST_TOLERANCE)


def run_solver(
    solver: AbstractSolver, operator: KernelOperator, b: Array, tolerance: float,
    show: Callable[[str], None], key: PRNGKeyArray, start: Array | None = None,
    enough: float | None = None,
) -> Solution:  # fmt: skip
    """Run `solve` with progress. Warn if the residual exceeds the tolerance and `enough`."""

    def progress(entry: dict[str, float]) -> None:
        residual = f"{entry['residual']:.4f} ({'measured' if entry.get('measured') else 'estimated'})"
        show(f"epoch {entry['epoch']:.0f}: relative residual {residual}, {entry['seconds']:.0f} s")

    found = solve(operator, b, solver, key=key, start=start, progress=progress, tolerance=tolerance)
    if (
        found.result is RESULTS.precision_reached
        and enough is not None
        and np.all(found.residual_norms <= enough)
    ):
        return found._replace(result=RESULTS.tolerance_reached, converged=True)
    if not found.converged and found.result is not RESULTS.interrupted:
        worst = float(found.residual_norms[0])
        warn(
            f"the solver ended with a relative residual of {worst:.3g}: {found.result.value}",
            ConvergenceWarning,
            stacklevel=5,
        )
    return found


MIXTURE_ROWS = 1000  # with more rows, updates use only the learned hyperparameters


def updated(
    fitted: Fitted, rows: Data, show: Callable[[str], None], budget: Budget, *, key: PRNGKeyArray
) -> tuple[Fitted, Solution | None]:
    """Return the model of old and new rows, and the solution (None for local predictions)."""
    dtype, old = np.dtype(fitted.dtype), fitted.posterior
    new = Data(
        fitted.inputs.transform(rows.X, dtype), fitted.observation.to_model(rows.X, rows.y), rows.weights
    )
    found, solved = fitted.with_rows(rows), None
    posterior: Any
    with jax.enable_x64(True):
        if isinstance(old, LocalPosterior):
            posterior = _grown_locally(old, new, budget)
        elif isinstance(old, SampledKernelPosterior):
            posterior, solved = _grown_by_solving(old, new, show, budget, key)
        else:
            base: Any = old.base if isinstance(old, MixturePosterior) else old
            posterior, solved = _grown_exactly(base, new, budget)
            if isinstance(old, MixturePosterior):
                posterior = posterior if len(posterior.weights) > MIXTURE_ROWS else old.at(posterior)
                found = with_posterior(found, posterior)
    return dataclasses.replace(found, posterior=posterior), solved


def with_posterior(fitted: Fitted, posterior: MixturePosterior | ExactKernelPosterior) -> Fitted:
    """Return the model with another posterior, and its noise."""
    observation = dataclasses.replace(fitted.observation, likelihood=Gaussian(posterior.noise))
    return dataclasses.replace(fitted, posterior=posterior, observation=observation)


def _grown_locally(posterior: LocalPosterior, new: Data, budget: Budget) -> LocalPosterior:
    """Return the posterior of old and new rows. The scale of variances is unchanged."""
    N, D = len(posterior.X) + len(new.X), new.X.shape[1]
    need = local_search_bytes(posterior.gp.kernel, N, D, 1, NEIGHBOURS) + 8 * N * (D + 2)
    budget.require(need, f"local prediction from {N} rows")
    parts = (posterior.X, new.X), (posterior.y, new.y), (posterior.weight, new.weights)
    X, y, weight = (np.concatenate([old, more.astype(old.dtype)]) for old, more in parts)
    return dataclasses.replace(posterior, X=X, y=y, weight=weight)


def _grown_exactly(
    posterior: ExactKernelPosterior, new: Data, budget: Budget
) -> tuple[ExactKernelPosterior, Solution]:
    """Return the posterior of all rows from a new factor, and the solution."""
    y, system = np.concatenate([posterior.y, new.y]), posterior.system.joined(new)
    budget.require(system.peak_bytes(Cholesky(), 1), f"solving for {len(y)} rows by cholesky")
    information = None if posterior.is_exact else posterior.information
    return solved_directly(system, y, information)


def _grown_by_solving(
    posterior: SampledKernelPosterior,
    new: Data,
    show: Callable[[str], None],
    budget: Budget,
    key: PRNGKeyArray,
) -> tuple[SampledKernelPosterior, Solution]:
    y, system, solver = np.concatenate([posterior.y, new.y]), posterior.system.joined(new), posterior.solver
    budget.require(system.peak_bytes(solver, 1), f"solving for {len(y)} rows by {solver.name}")
    operator = system.operator
    tolerance = relative_tolerance(float(system.noise.level), y, share=solver.tolerance_share)
    tolerance = min(tolerance, posterior.tolerance)
    b = on_device(y[:, None], operator.dtype)
    start = on_device(np.pad(np.asarray(posterior.weights), ((0, len(new)), (0, 0))), operator.dtype)
    run_key = jax.random.split(key, 3)[2]
    found = run_solver(solver, operator, b, tolerance, show, run_key, start)
    return sampled_posterior(system, solver, y, found, tolerance, posterior.information), found
