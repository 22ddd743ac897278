"""From hyperparameters to the posterior of a kernel GP: planned, solved, described."""

import dataclasses
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from sklearn.exceptions import ConvergenceWarning

from stochgp.budget import Budget
from stochgp.data import Standardiser, TableEncoder
from stochgp.estimators.progress import progress_line
from stochgp.models import KernelGP
from stochgp.operators import TILE, KernelOperator
from stochgp.parameters import cast, value_of
from stochgp.planning.solve_plan import SolvePlan
from stochgp.planning.solver import plan
from stochgp.posteriors import ExactKernelPosterior, KernelSystem, SampledKernelPosterior, sample_targets
from stochgp.posteriors.base import known_noise, noise_variances
from stochgp.priors import prior_functions
from stochgp.results import Solution
from stochgp.solvers import AbstractDirectSolver, AbstractSolver, SystemSize, solve

TOLERANCE, POWER = 0.2, 0.75  # see `tolerances`
ENOUGH_ROWS = 10_000
LEAST_TOLERANCE, LEAST_SAMPLES_TOLERANCE = 1e-5, 0.03
SAMPLES_TOLERANCE = 3.5  # times looser for samples, of which 64 estimate a variance to 18 % anyway
MOST_TOLERANCE, MOST_SAMPLES_TOLERANCE = 0.1, 0.08


class KernelRows(NamedTuple):
    """Standardised rows and targets, what made them so, and the encoder of their text columns."""

    X: Float[Array, "N D"]
    y: Float[np.ndarray, " N"]
    weight: Float[np.ndarray, " N"] | None
    inputs: Standardiser
    targets: Standardiser
    encoder: TableEncoder | None

    @property
    def weights(self) -> Float[np.ndarray, " N"]:
        return np.ones(len(self.y)) if self.weight is None else self.weight


class Wanted(NamedTuple):
    """What the user asked of the solve."""

    solver: str | AbstractSolver
    n_samples: int
    time_limit: float | None
    dtype: str
    verbose: int


def posterior_of(
    gp: KernelGP, data: KernelRows, wanted: Wanted, budget: Budget, *, key: PRNGKeyArray
) -> tuple[ExactKernelPosterior | SampledKernelPosterior, SolvePlan, Solution]:
    """The posterior at the hyperparameters of `gp`; how it was to be solved for, and how that went."""
    noise = known_noise(float(gp.noise_variance))
    system = KernelSystem(value_of(gp.kernel), data.X, data.weights, noise, TILE)
    prior_key, sample_key, run_key = jax.random.split(key, 3)
    chosen = _plan(system, data.y, wanted, budget)
    solver, dtype = chosen.solver, chosen.dtype
    kernel, X = cast((system.kernel, data.X), dtype)
    system = KernelSystem(kernel, X, data.weights, noise, chosen.tile)
    operator = dataclasses.replace(system.operator, keep_rows=chosen.keep_rows)
    prior, b = None, jnp.asarray(data.y[:, None], dtype)
    if chosen.n_samples:
        prior = prior_functions(kernel, X.shape[1], chosen.n_samples, key=prior_key, dtype=X.dtype)
        b = jnp.concatenate([b, sample_targets(operator, prior, X, key=sample_key)], axis=1)
    tolerance = tolerances(float(noise.level), data.y, b.shape[1])
    tolerance = np.maximum(tolerance * solver.tolerance_share, LEAST_TOLERANCE)
    factor = solver.factorise(operator) if isinstance(solver, AbstractDirectSolver) else None
    if factor is not None:
        found = solver.solve(operator, b, tolerance, factor)
    else:
        found = _run(solver, operator, b, tolerance, wanted, run_key)
    weights, samples = found.value[:, :1], None if prior is None else found.value[:, 1:]
    explained = float(data.y @ np.asarray(weights[:, 0], np.float64))
    if factor is None:
        rest = prior, samples, solver, float(tolerance[0])
        return SampledKernelPosterior(system, weights, explained, *rest), chosen, found
    posterior = ExactKernelPosterior(system, weights, explained, solver)
    vars(posterior)["factor"] = factor  # what its property would compute again
    return posterior, chosen, found


def described(chosen: SolvePlan, solved: Solution) -> dict[str, Any]:
    """What `plan_` says of a solve."""
    why = f"of the mean, relative, measured on all rows; {solved.result.name}"
    return chosen.described() | {"residual": {"choice": float(solved.residual_norms[0]), "why": why}}


def tolerances(noise_variance: float, y: Float[np.ndarray, " N"], n_columns: int) -> Float[np.ndarray, " S"]:
    """Relative residuals to reach, times √(N/10,000) where N is smaller: 0.2 (σ / rms y)^¾, at most 0.1, for the mean; for samples

    3.5 times that, from 0.03 to 0.08. An empirical rule: on pol, elevators and bike, with noise standard deviations of 0.037, 0.31 and 0.006,
    the RMSE on test rows was within 1 % of the exact one at residuals of 0.022, 0.09 and 0.005, and the NLPD within 0.04 of that of
    exactly solved samples at 0.05. Smaller sets, where it costs little, are solved more exactly.
    """
    share = math.sqrt(noise_variance / max(float(np.mean(np.square(y))), 1e-12))
    mean = min(TOLERANCE * share**POWER, MOST_TOLERANCE)
    samples = min(max(SAMPLES_TOLERANCE * mean, LEAST_SAMPLES_TOLERANCE), MOST_SAMPLES_TOLERANCE)
    exactly = min(1.0, math.sqrt(len(y) / ENOUGH_ROWS))
    return np.maximum(exactly * np.array([mean] + [samples] * (n_columns - 1)), LEAST_TOLERANCE)


def _plan(system: KernelSystem, y: Float[np.ndarray, " N"], wanted: Wanted, budget: Budget) -> SolvePlan:
    """Solver, tiles and samples; the machine is measured where more than one solver could be the fastest."""
    operator, X = system.operator, system.X
    noise = float(np.mean(noise_variances(system.noise, X, system.count)))
    ratio = noise / float(jnp.mean(system.kernel.diag(X)))
    size = SystemSize.of(operator, X.shape[1], wanted.n_samples, ratio)
    tolerance = float(tolerances(noise, y, 1)[0])
    return plan(operator, size, budget, solver=wanted.solver, tolerance=tolerance)


def _run(
    solver: AbstractSolver,
    operator: KernelOperator,
    b: Array,
    tolerance: Float[np.ndarray, " S"],
    wanted: Wanted,
    key: PRNGKeyArray,
) -> Solution:
    with progress_line(wanted.verbose, _progress_text) as progress:
        limits = {"tolerance": tolerance, "time_limit": wanted.time_limit}
        found = solve(operator, b, solver, key=key, progress=progress, **limits)
    if not found.converged:
        worst = float(found.residual_norms[0])
        warnings.warn(
            f"the solver ended with a relative residual of {worst:.3g}: {found.result.value}",
            ConvergenceWarning,
            stacklevel=5,
        )
    return found


def _progress_text(entry: dict[str, float]) -> str:
    kind = "measured" if entry.get("measured") else "estimated"
    return f"epoch {entry['epoch']:.0f}: relative residual {entry['residual']:.4f} ({kind}), {entry['seconds']:.0f} s"
