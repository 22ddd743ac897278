"""Initial models and posteriors of the sparse regressor and classifier."""

import dataclasses
import typing
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from stochgp import deadline, kernels
from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext
from stochgp.data.memory import Source, padded_size
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError, in_time
from stochgp.families.left_out import SEED
from stochgp.families.starts import inputs_of
from stochgp.likelihoods import AbstractLikelihood, Gaussian
from stochgp.likelihoods.noise import ConstantNoise
from stochgp.models import SparseGP
from stochgp.numerics.arrays import filled_up, on_device
from stochgp.numerics.seeds import random_rows
from stochgp.objectives import bound_of_all, lower_bound
from stochgp.parameters import cast
from stochgp.posteriors import VariationalPosterior
from stochgp.results import RESULTS
from stochgp.sharding import agreed
from stochgp.tables.molecules import Inputs
from stochgp.variational import (
    DecoupledMean,
    InducingPoints,
    InducingProcess,
    NormalEquations,
    choose_points,
)
from stochgp.variational.decoupled import BLOCK

LATE = "as it was"  # choice for q(u) if there is no time for a pass
COMPILING_PASS = 1.5  # seconds to compile a pass
CLOSING_JITTER = 1e-8  # jitter of k(Z, Z) in float64

NAME = "n_inducing_mean"
AS_LEARNED = "the learned functions of the mean, with optimal weights for all rows"
SIZES = (4096, 2048, 1024)  # candidate numbers of points of the mean; the first that fits is used
MAX_PRODUCTS = 2e11  # maximum of rows times squared points
# Tried shares of the learned noise variance, which includes errors due to few points.
SHARES = (1.0, 1 / 4, 1 / 16, 1 / 64)
ROWS = 2048  # number of left-out rows to choose the share
LEAST = 1e-3  # smallest share of the learned noise variance


def start(
    estimator: Any,
    data: TrainingData,
    likelihood: AbstractLikelihood,
    variance: float,
    context: FitContext,
    *,
    jitter: float | None = None,
) -> SparseGP:
    """Return the model before learning, with inducing points at centres of clusters."""
    dtype, n_rows = np.dtype(estimator.dtype), data.n_rows
    kernel = resolve_kernel(estimator, "matern32", data.n_inputs, variance)
    n = min(int(estimator.n_inducing), n_rows)
    points = choose_points(data.X, n, key=context.start_key)
    approximation = InducingPoints.of(points, n_latent=likelihood.n_latent, jitter=jitter)
    few = f"there are only {n_rows} different rows" if n < estimator.n_inducing else AS_ASKED
    context.record("n_inducing", n, f"{few}; initial inducing points are centres of clusters of rows")
    return cast(SparseGP(kernel, approximation, likelihood), dtype)


def resolve_kernel(estimator: Any, usual: str, n_inputs: int, variance: float) -> kernels.AbstractKernel:
    """Return the kernel of the estimator; "auto" means the kernel named `usual`."""
    is_auto = isinstance(estimator.kernel, str) and estimator.kernel == "auto"
    given, dtype = usual if is_auto else estimator.kernel, np.dtype(estimator.dtype)
    return kernels.resolve(given, n_inputs, variance=variance, dtype=dtype)


def refuse_fingerprints(estimator: Any) -> None:
    """Raise ValueError for the Tanimoto kernel."""
    if inputs_of(estimator.kernel) is not Inputs.NUMBERS:
        raise ValueError(
            "the Tanimoto kernel needs fingerprints, but inducing points are not fingerprints; use KernelGPRegressor or FeatureGPRegressor"
        )


def variational_posterior(gp: SparseGP, data: TrainingData, context: FitContext) -> VariationalPosterior:
    """Return q(f), with the optimal q(u) for Gaussian noise, and record the bound of all rows."""
    is_sample, is_gaussian = data.everything is not None, isinstance(gp.likelihood, Gaussian)
    try:
        deadline.require(COMPILING_PASS)
        gp, bound = _closed(gp, data.passes(context.mesh))
    except TimeIsUpError as late:
        context.record("q", LATE, f"there was no time for a pass over all rows: {late}")
        if is_sample:
            why = f"of {data.n_all} rows, a uniform sample, determine q(u)"
            context.record("closing_rows", data.n_rows, why)
        context.end(RESULTS.time_limit, "there was no time to compute the optimal q(u)")
        return VariationalPosterior.of(gp, data.n_inputs)
    if is_gaussian:
        n = gp.approximation.n_inducing
        why = f"the optimal q(u) of all rows was computed in closed form, for {n} learned inducing points"
        context.record("q", "optimal", why)
    else:
        context.record("q", "learned", "the optimum has a closed form only for Gaussian noise")
    if is_sample:
        why = f"of {data.n_all} rows; other parameters were learned from a uniform sample of {data.n_rows} rows, and the bound uses all rows"
        context.record("closing_rows", data.n_all if is_gaussian else data.n_rows, why)
    # The bound of all rows, per row and in target units.
    context.report["elbo"] = bound - float(np.log(data.scale)) + data.log_slope
    return VariationalPosterior.of(gp, data.n_inputs)


def likelihood_of(gp: SparseGP) -> AbstractLikelihood:
    """Return the likelihood with parameters in float64."""
    with jax.enable_x64(True):
        return cast(gp.likelihood, np.float64)


def bound_of(estimator: Any) -> float:
    """Return `elbo_`. Raises AttributeError before a fit and after a fit that a limit ended."""
    found = vars(estimator).get("fit_report_", {}).get("elbo")
    if found is None:
        raise AttributeError(
            "elbo_ is not available: the model is not fitted, or a limit ended the fit early"
        )
    return found


def _closed(gp: SparseGP, source: Source) -> tuple[SparseGP, float]:
    """Return the model with the optimal q(u) from a pass, and its bound per row."""
    if not isinstance(gp.likelihood, Gaussian):
        return gp, agreed(bound_of_all(gp, source))
    wide = cast(gp, np.float64)
    points = InducingPoints.of(typing.cast(InducingPoints, wide.approximation).points, jitter=CLOSING_JITTER)
    with jax.enable_x64(True):
        bound, gaussian = agreed(lower_bound(SparseGP(wide.kernel, points, wide.likelihood), source))
        best = points.at(*gaussian)
    return SparseGP(wide.kernel, best, wide.likelihood), bound / source.count


def with_decoupled_mean(
    posterior: VariationalPosterior,
    gp: SparseGP,
    asked: int | None,
    data: TrainingData,
    context: FitContext,
    points: Float[np.ndarray, "P D"] | None = None,
) -> VariationalPosterior:
    """Return the posterior with a mean at `points`, else at `asked` points (None: automatic)."""
    base, made = typing.cast(InducingProcess, posterior.process), typing.cast(Any, None)
    if points is None:
        size, why = _size(gp, asked, data, context)
        points = _with_rows(np.asarray(base.points, np.float64), size, data)
    else:
        points, size, why = np.asarray(points, np.float64), len(points), AS_LEARNED
        if _peak_bytes(size) > context.budget.free():
            size, why = 0, "there is not enough memory for the learned functions of the mean"
    if size > 0:
        try:
            with jax.enable_x64(True):
                passes = in_time(data.passes().blocks(BLOCK))
                made = _solved(NormalEquations.of(posterior.kernel, points, passes), posterior, gp, data)
        except TimeIsUpError:
            made = "there was no time for a pass over all rows"
    if size == 0 or isinstance(made, str):
        context.record(NAME, 0, made if isinstance(made, str) else why)
        return posterior
    share, found, noise = made
    room = padded_size(len(points))  # filled up with weights of 0, so that JAX compiles few programs
    with jax.enable_x64(True):
        parts = filled_up(points, room), filled_up(found.weights, room, 0.0), np.asarray(noise)
        process = DecoupledMean(*vars(base).values(), *map(on_device, parts))
    wide = dataclasses.replace(posterior, process=process)
    vars(wide)["solved"] = found  # for the error distribution; not saved
    context.record(NAME, size, why)
    context.report["mean_noise"] = share  # of the learned noise variance
    return wide


def _size(gp: SparseGP, asked: int | None, data: TrainingData, context: FitContext) -> tuple[int, str]:
    """Return the number of points of the mean (0: the inducing points only), and the reason."""
    M, N = gp.approximation.n_inducing, data.n_rows
    if asked == 0:
        return 0, AS_ASKED
    if not (isinstance(gp.likelihood, Gaussian) and isinstance(gp.likelihood.noise, ConstantNoise)):
        return 0, "the mean has a closed form only for constant Gaussian noise"
    if asked is not None:
        size = min(asked, N)
        context.budget.require(_peak_bytes(size), f"a mean from {size} points")
        return (size, AS_ASKED) if size > M else (0, f"{size} points are not more than n_inducing")
    for size in (min(size, N) for size in SIZES):
        enough = size >= min(2 * M, N) and size > M
        if enough and data.n_all * size**2 <= MAX_PRODUCTS and _peak_bytes(size) < context.budget.free():
            return size, "inducing points plus random rows; the number depends on rows and memory"
    return 0, "the mean uses only the inducing points: there are few rows, very many rows, or little memory"


def _with_rows(points: Float[np.ndarray, "M D"], size: int, data: TrainingData) -> Float[np.ndarray, "P D"]:
    """Return `size` points: the given points, and random rows that `_solved` does not use."""
    if size == 0:
        return points
    order = np.random.default_rng(SEED).permutation(data.n_rows)[len(points) - size :]
    return np.concatenate([points, np.asarray(data.X[np.sort(order)], np.float64)])


def _peak_bytes(size: int) -> int:
    return 8 * (4 * size**2 + 2 * BLOCK * size)


def _solved(
    equations: NormalEquations, posterior: VariationalPosterior, gp: SparseGP, data: TrainingData
) -> tuple[float, NormalEquations, float] | str:
    """Return noise share, solution and noise, or the reason to keep the mean unchanged."""
    learned = float(gp.noise_variance)
    if data.rows.group is not None:
        return 1.0, equations.solved(learned), learned
    rows = Data(data.X, data.y, data.rows.weights).take(random_rows(data.n_rows, ROWS, SEED))
    y, weight = np.asarray(rows.y, np.float64), np.asarray(rows.weights, np.float64)
    error, variance = posterior.without(rows, learned)
    before, best = _mean_of(error**2, weight), None
    for share in SHARES:
        found = equations.solved(share * learned)
        square = _mean_of(found.without(rows.X, y, weight) ** 2, weight)
        if best is not None and square >= best[0]:
            break
        best = square, share, found
    assert best is not None
    if best[0] >= before:
        return f"the standardised RMSE of left-out rows would be {best[0] ** 0.5:.3g}, but is {before**0.5:.3g} with the inducing points only"
    return best[1], best[2], min(max(best[0] - _mean_of(variance, weight), LEAST * learned), learned)


def _mean_of(values: np.ndarray, weight: np.ndarray) -> float:
    return float(np.average(values, weights=weight))
