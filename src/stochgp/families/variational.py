"""What the sparse regressor and classifier share: where their models start, and their posterior."""

import typing
from typing import Any

import jax
import numpy as np

from stochgp import deadline, kernels
from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext
from stochgp.data.fingerprint_rows import Inputs
from stochgp.data.memory import Source
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError
from stochgp.devices import agreed
from stochgp.families.kernel_choice import USUAL, inputs_of
from stochgp.likelihoods import AbstractLikelihood, Gaussian
from stochgp.models import SparseGP
from stochgp.objectives import bound_of_all, lower_bound
from stochgp.parameters import cast
from stochgp.posteriors import VariationalPosterior
from stochgp.results import RESULTS, Estimate
from stochgp.variational import InducingPoints, choose_points

LATE = "as it was"  # q(u), where there is no time for the pass
COMPILING_PASS = 1.5  # seconds of its programs
CLOSING_JITTER = 1e-8  # of k(Z, Z), where q(u) is found in float64


def start(
    estimator: Any,
    data: TrainingData,
    likelihood: AbstractLikelihood,
    variance: float,
    context: FitContext,
    *,
    jitter: float | None = None,
) -> SparseGP:
    """The model before learning: a kernel of this `variance`, inducing points at centres of clusters."""
    dtype, n_rows = np.dtype(estimator.dtype), data.n_rows
    name = named_kernel(estimator.kernel, USUAL, context)
    kernel = kernels.resolve(name, data.n_inputs, variance=variance, dtype=dtype)
    n = min(int(estimator.n_inducing), n_rows)
    points = choose_points(data.X, n, "kmeans", key=context.start_key)
    approximation = InducingPoints.of(points, n_latent=likelihood.n_latent, jitter=jitter)
    few = f"there are only {n_rows} different rows" if n < estimator.n_inducing else AS_ASKED
    context.record(
        "n_inducing", n, f"{few}; they start at the centres of clusters of the rows, and are learned"
    )
    return cast(SparseGP(kernel, approximation, likelihood), dtype)


def named_kernel(given: Any, usual: str, context: FitContext) -> Any:
    """The kernel given, or the name of the usual one in place of "auto"."""
    if not (isinstance(given, str) and given == "auto"):
        return given
    context.record("kernel", usual, "the usual one of this approximation")
    return usual


def refuse_fingerprints(estimator: Any) -> None:
    """Raise ValueError for the Tanimoto kernel, between whose fingerprints there are no inducing points, and for `missing="skip"`."""
    if inputs_of(estimator.kernel, None, estimator.missing) is not Inputs.NUMBERS:
        raise ValueError(
            "the Tanimoto kernel's inputs are fingerprints, which inducing points cannot be: use KernelGPRegressor or FeatureGPRegressor"
        )


def variational_posterior(gp: SparseGP, data: TrainingData, context: FitContext) -> VariationalPosterior:
    """q(f), and the bound of all rows, which is recorded. With Gaussian noise q(u) is the optimum of all rows, which mini-batches only come near.

    Without time for a pass over the rows, q(u) stays as it was learned, and the bound is not known.
    """
    is_sample, is_gaussian = data.everything is not None, isinstance(gp.likelihood, Gaussian)
    try:
        deadline.require(COMPILING_PASS)
        gp, bound = _closed(gp, data.passes(context.mesh))
    except TimeIsUpError as late:
        context.record("q", LATE, f"there was no time for a pass over all rows: {late}")
        if is_sample:
            why = f"of {data.n_all}: q(u) is that of a uniform sample"
            context.record("closing_rows", data.n_rows, why)
        context.end(RESULTS.time_limit, "q(u) stays as it was learned")
        return VariationalPosterior.of(gp, data.n_inputs)
    if is_gaussian:
        n = gp.approximation.n_inducing
        why = f"of all rows in closed form, for the {n} inducing points that were learned"
        context.record("q", "optimal", why)
        known = f"all rows, in one pass; hyperparameters and inducing points were learned from a uniform sample of {data.n_rows}"
    else:
        context.record("q", "learned", "only Gaussian noise has an optimum in closed form")
        known = f"of {data.n_all}: q(f) was learned from a uniform sample; the bound is of all rows"
    if is_sample:
        context.record("closing_rows", data.n_all if is_gaussian else data.n_rows, known)
    # Nats per row in target units, of all rows, in float64; the standard error is that of expectations, by independent scrambles of their points.
    context.report["elbo"] = bound.value - float(np.log(data.scale)) + data.log_slope
    if bound.stderr > 0:
        context.report["elbo_stderr"] = bound.stderr
    return VariationalPosterior.of(gp, data.n_inputs)


def likelihood_of(gp: SparseGP) -> AbstractLikelihood:
    """With its parameters in float64, as q(f) has them."""
    with jax.enable_x64(True):
        return cast(gp.likelihood, np.float64)


def kernel_of(estimator: Any) -> kernels.AbstractKernel:
    """`kernel_`, in the estimator's dtype. Raises AttributeError before a fit."""
    if "_fitted" not in vars(estimator):
        raise AttributeError("kernel_ is there after fit")
    return cast(estimator._fitted.posterior.kernel, estimator.dtype)


def bound_of(estimator: Any) -> float:
    """`elbo_`. Raises AttributeError before a fit, and after one that a limit ended before the bound was known."""
    found = vars(estimator).get("fit_report_", {}).get("elbo")
    if found is None:
        raise AttributeError("elbo_ is there after a fit that no limit ended early")
    return found


def _closed(gp: SparseGP, source: Source) -> tuple[SparseGP, Estimate]:
    """(The model with the best q(u) that a pass finds, its bound per row)."""
    if not isinstance(gp.likelihood, Gaussian):
        return gp, agreed(bound_of_all(gp, source))
    wide = cast(gp, np.float64)
    points = InducingPoints.of(typing.cast(InducingPoints, wide.approximation).points, jitter=CLOSING_JITTER)
    with jax.enable_x64(True):
        bound, gaussian = agreed(lower_bound(SparseGP(wide.kernel, points, wide.likelihood), source))
        best = points.at(*gaussian)
    return SparseGP(wide.kernel, best, wide.likelihood), Estimate(bound / source.count)
