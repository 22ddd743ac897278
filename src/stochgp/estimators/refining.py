"""The mean of a sampled posterior, solved on until what is left of its residual is small beside the errors of rows left out."""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Array

from stochgp.posteriors import SampledKernelPosterior
from stochgp.posteriors.calibration import left_out_variances
from stochgp.results import RESULTS, Solution

SHARE = 0.3  # of the typical error of a row left out
TYPICAL = 1.4826  # standard deviations of a Gaussian in its median absolute deviation
LEAST = 1e-5


def wanted_tolerance(posterior: SampledKernelPosterior) -> float | None:
    """The relative residual ‖y − Aα‖/‖y‖ = 0.3 s/rms y; s = 1.48 median |α_i V_i|, the typical error of a row predicted without itself.

    A residual of no particular direction adds about its own size to the errors of predictions. Where tails are heavy, most errors are
    much smaller than their root-mean-square, and so is s. None where too few samples say what V_i is.
    """
    variance = left_out_variances(posterior)
    if variance is None or posterior.y is None:
        return None
    errors = np.abs(np.asarray(posterior.weights, np.float64)[:, 0] * variance)
    size = float(np.sqrt(np.mean(np.square(posterior.y))))
    relative = SHARE * TYPICAL * float(np.median(errors)) / max(size, 1e-300)
    return max(relative * posterior.solver.tolerance_share, LEAST)


def refined(
    posterior: SampledKernelPosterior, found: Solution, solve_mean: Callable[[float, Array], Solution]
) -> tuple[SampledKernelPosterior, Solution]:
    """(The posterior whose mean is within `wanted_tolerance`, or as near as the solver came; both solves as one).

    `solve_mean(tolerance, start)` solves for the mean alone. A run that a limit has ended is not gone on with.
    """
    tolerance = wanted_tolerance(posterior)
    if not found.converged or tolerance is None or found.residual_norms[0] <= tolerance:
        return posterior, found
    more = solve_mean(tolerance, posterior.weights)
    if not more.residual_norms[0] < found.residual_norms[0]:
        more = more._replace(value=posterior.weights, residual_norms=found.residual_norms[:1])
    weights = more.value
    explained = float(posterior.y @ np.asarray(weights, np.float64)[:, 0])
    return dataclasses.replace(posterior, weights=weights, explained=explained), _joined(found, more)


def _joined(found: Solution, more: Solution) -> Solution:
    """Of the mean, `more`; the run ended as the first one did, unless a limit has cut the second."""
    cut = more.result in (RESULTS.time_limit, RESULTS.interrupted)
    return found._replace(
        result=more.result if cut else found.result,
        converged=found.converged and not cut,
        residual_norms=np.concatenate([more.residual_norms, found.residual_norms[1:]]),
        n_steps=found.n_steps + more.n_steps,
        epochs=found.epochs + more.epochs,
        seconds=found.seconds + more.seconds,
        history=found.history + more.history,
    )
