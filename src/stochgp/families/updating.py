"""New rows for a fitted kernel GP: read, standardised as the rows of the fit were, solved for from where the last solve ended."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from stochgp.budget import Budget
from stochgp.compiled import kept_on_disk
from stochgp.data.rows import Data
from stochgp.estimators.fitted import Fitted
from stochgp.families.solving import (
    explained_by,
    run_solver,
    solved_directly,
    tolerances,
)
from stochgp.likelihoods import Gaussian
from stochgp.posteriors import (
    AbstractKernelPosterior,
    AbstractPosterior,
    ExactKernelPosterior,
    LocalPosterior,
    MixturePosterior,
    SampledKernelPosterior,
)
from stochgp.posteriors.growing import extended, grown_draws, joined, sides, warm_start
from stochgp.posteriors.local import NEIGHBOURS, local_search_bytes
from stochgp.results import Solution
from stochgp.solvers import Factor

MIXTURE_ROWS = 1000  # beyond which updates keep the learned hyperparameters alone


def updated(
    fitted: Fitted, rows: Data, show: Callable[[str], None], budget: Budget, *, key: PRNGKeyArray
) -> tuple[Fitted, Solution | None]:
    """(What the fit left behind with the rows taken in, how that was solved for; None for local prediction).

    Raises ValueError where it would exceed the budget, and for a posterior without its targets.
    """
    dtype = np.dtype(fitted.dtype)
    X, y = fitted.inputs.transform(rows.X, dtype), fitted.observation.to_model(rows.X, rows.y)
    new = Data(X, y, rows.weights)
    with jax.enable_x64(True), kept_on_disk():
        posterior, solved = _grown(fitted.posterior, new, show, budget, key)
    found = fitted.with_inputs(rows.X)
    if isinstance(fitted.posterior, MixturePosterior):
        found = with_posterior(found, typing.cast(MixturePosterior, posterior))
    found = dataclasses.replace(found, posterior=posterior)
    return found.with_targets(rows.y, rows.weights), solved


def with_posterior(fitted: Fitted, posterior: MixturePosterior | ExactKernelPosterior) -> Fitted:
    """With another posterior, and its noise."""
    observation = dataclasses.replace(fitted.observation, likelihood=Gaussian(posterior.noise))
    return dataclasses.replace(fitted, posterior=posterior, observation=observation)


def _grown(
    posterior: AbstractPosterior, new: Data, show: Callable[[str], None], budget: Budget, key: PRNGKeyArray
) -> tuple[AbstractPosterior, Solution | None]:
    match posterior:
        case LocalPosterior():
            return _grown_locally(posterior, new, budget), None
        case ExactKernelPosterior():
            return _grown_exactly(posterior, new, budget)
        case MixturePosterior():
            base, solved = _grown_exactly(posterior.base, new, budget)
            return base if len(base.weights) > MIXTURE_ROWS else posterior.at(base), solved
        case SampledKernelPosterior():
            return _grown_by_solving(posterior, new, show, budget, key)
    raise TypeError(f"{type(posterior).__name__} takes in no new rows")


def _grown_locally(posterior: LocalPosterior, new: Data, budget: Budget) -> LocalPosterior:
    """The scale of the variances stays that of the fit."""
    N, D = len(posterior.X) + len(new.X), new.X.shape[1]
    need = local_search_bytes(posterior.gp.kernel, N, D, 1, NEIGHBOURS) + 8 * N * (D + 2)
    budget.require(need, f"local prediction from {N} rows")
    parts = (posterior.X, new.X), (posterior.y, new.y), (posterior.weight, new.weights)
    X, y, weight = (np.concatenate([old, more.astype(old.dtype)]) for old, more in parts)
    return dataclasses.replace(posterior, X=X, y=y, weight=weight)


def _grown_exactly(
    posterior: ExactKernelPosterior, new: Data, budget: Budget
) -> tuple[ExactKernelPosterior, Solution]:
    """By the factor of before with new rows, where there is one and room for two; else by a new one."""
    y, system, solver = _targets(posterior, new), joined(posterior.system, new), posterior.solver
    factor: Factor | None = vars(posterior).get("factor")
    budget.require(system.peak_bytes(solver, 1), f"solving for {len(y)} rows by {solver.name}")
    grown = None if factor is None or system.is_small else extended(factor, system, len(posterior.system.X))
    information = None if posterior.is_exact else posterior.information
    return solved_directly(system, solver, y, grown, information)


def _grown_by_solving(
    posterior: SampledKernelPosterior,
    new: Data,
    show: Callable[[str], None],
    budget: Budget,
    key: PRNGKeyArray,
) -> tuple[SampledKernelPosterior, Solution]:
    y, system, solver = _targets(posterior, new), joined(posterior.system, new), posterior.solver
    n_columns = 1 + posterior.n_samples
    need = system.peak_bytes(solver, n_columns)
    budget.require(need, f"solving for {len(y)} rows and {n_columns} right-hand sides by {solver.name}")
    noise_key, start_key, run_key = jax.random.split(key, 3)
    draws = grown_draws(posterior, len(new), key=noise_key)
    operator = system.operator
    b = sides(operator, system.X, y, posterior.prior, draws)
    tolerance = tolerances(float(system.noise.level), y, b.shape[1], share=solver.tolerance_share)
    tolerance[0] = min(tolerance[0], posterior.tolerance)
    known = held_weights(posterior), posterior.left
    start = warm_start(operator, b, *known, tolerance=tolerance, key=start_key, most_bytes=need)
    found = run_solver(solver, operator, b, tolerance, show, run_key, start)
    weights = found.value[:, :1]
    more: dict[str, Any] = {
        "system": system,
        "weights": weights,
        "explained": explained_by(y, weights),
        "sample_weights": None if posterior.prior is None else found.value[:, 1:],
        "tolerance": float(tolerance[0]),
        "y": y,
        "draws": None if posterior.prior is None else draws,
        "left": found.residual,
    }
    return dataclasses.replace(posterior, **more), found


def held_weights(posterior: SampledKernelPosterior) -> Float[np.ndarray, "N C"]:
    """The weights of the mean and of the samples, side by side."""
    parts = [np.asarray(posterior.weights)]
    if posterior.sample_weights is not None:
        parts.append(np.asarray(posterior.sample_weights))
    return np.concatenate(parts, axis=1)


def _targets(posterior: AbstractKernelPosterior, new: Data) -> Float[np.ndarray, " N"]:
    if posterior.y is None:
        raise ValueError(
            "the model was saved without its targets, by an older version: fit it again for update"
        )
    return np.concatenate([posterior.y, new.y])
