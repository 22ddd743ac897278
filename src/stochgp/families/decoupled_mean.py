"""Sparse GPs whose mean is solved for at many more points than they have learned: where the noise is Gaussian, and time and memory allow it."""

import dataclasses
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError, in_time
from stochgp.families.left_out import SEED, some_rows
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import ConstantNoise
from stochgp.models import SparseGP
from stochgp.posteriors import VariationalPosterior
from stochgp.variational import DecoupledMean, InducingProcess, NormalEquations
from stochgp.variational.decoupled_mean import BLOCK, Solved

NAME = "n_inducing_mean"
AS_LEARNED = "the functions that were learned for it; the mean is the best one of all rows"
SIZES = (4096, 2048, 1024)  # points, the first that time and memory allow
MAX_PRODUCTS = 2e11  # rows times squared points: about 8 s, a sixth of what learning takes
# Of the noise that was learned, which holds what few points could not explain: on kin40k a quarter of it made RMSE .131 for .143.
SHARES = (1.0, 1 / 4, 1 / 16, 1 / 64)
ROWS = 2048  # left out to choose among these
LEAST = 1e-3  # of the noise that was learned, which is kept at least


def with_decoupled_mean(
    posterior: VariationalPosterior,
    gp: SparseGP,
    asked: int | None,
    data: TrainingData,
    context: FitContext,
    points: Float[np.ndarray, "P D"] | None = None,
) -> VariationalPosterior:
    """The posterior with a mean from `points`; None: from `asked` points, None = as many as pay.

    Rows of groups do not say how large the noise is: it stays.
    """
    base = typing.cast(InducingProcess, posterior.process)
    made: Any = None
    if points is None:
        size, why = _size(gp, asked, data, context)
        points = _with_rows(np.asarray(base.points, np.float64), size, data)
    else:
        points, why = np.asarray(points, np.float64), AS_LEARNED
        size = len(points)
        if _need_bytes(size) > context.budget.free():
            size, why = 0, "there is no memory for the mean of the functions that were learned for it"
    if size > 0:
        try:
            with jax.enable_x64(True):
                passes = in_time(data.passes().blocks(BLOCK))
                made = _solved(NormalEquations.of(posterior.kernel, points, passes), posterior, gp, data)
        except TimeIsUpError:
            made = "there was no time for a pass over all rows"
    if size == 0 or isinstance(made, str):
        context.record(NAME, 0, made or why)
        return posterior
    share, found, noise = made
    with jax.enable_x64(True):
        process = DecoupledMean(base, jnp.asarray(points), jnp.asarray(found.weights), jnp.asarray(noise))
    wide = dataclasses.replace(posterior, process=process)
    vars(wide)["solved"] = found  # until left-out rows have chosen the distribution; no part of a file
    context.record(NAME, size, why)
    # Of the noise variance that was learned: the lowest error of left-out rows.
    context.report["mean_noise"] = share
    return wide


def _size(gp: SparseGP, asked: int | None, data: TrainingData, context: FitContext) -> tuple[int, str]:
    """(The number of points, 0 for the inducing points alone; why)."""
    M, N = gp.approximation.n_inducing, data.n_rows
    if asked == 0:
        return 0, AS_ASKED
    if not (isinstance(gp.likelihood, Gaussian) and isinstance(gp.likelihood.noise, ConstantNoise)):
        return 0, "only constant Gaussian noise has a mean in closed form"
    if asked is not None:
        size = min(asked, N)
        context.budget.require(_need_bytes(size), f"a mean from {size} points")
        return (size, AS_ASKED) if size > M else (0, f"{size} points are no more than the inducing ones")
    for size in (min(size, N) for size in SIZES):
        enough = size >= min(2 * M, N) and size > M
        if enough and data.n_all * size**2 <= MAX_PRODUCTS and _need_bytes(size) < context.budget.free():
            return size, "as many as rows and memory allow: the inducing points and random rows"
    return 0, "no more points than the inducing ones: rows are few or very many, or memory is short"


def _with_rows(points: Float[np.ndarray, "M D"], size: int, data: TrainingData) -> Float[np.ndarray, "P D"]:
    """The points and random rows, others than `some_rows`: `size` in all."""
    if size == 0:
        return points
    order = np.random.default_rng(SEED).permutation(data.n_rows)[len(points) - size :]
    return np.concatenate([points, np.asarray(data.X[np.sort(order)], np.float64)])


def _need_bytes(size: int) -> int:
    return 8 * (4 * size**2 + 2 * BLOCK * size)


def _solved(
    equations: NormalEquations, posterior: VariationalPosterior, gp: SparseGP, data: TrainingData
) -> tuple[float, Solved, float] | str:
    """(Share of the noise, the solution with it, the noise of an observation by left-out rows); why not, where the inducing points alone err less."""
    learned = float(gp.noise_variance)
    if data.rows.group is not None:
        return 1.0, equations.solved(learned), learned
    rows = Data(data.X, data.y, data.weight).take(some_rows(data.n_rows, ROWS))
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
        return f"left-out rows err by {best[0] ** 0.5:.3g} for {before**0.5:.3g} of the inducing points, standardised"
    return best[1], best[2], min(max(best[0] - _mean_of(variance, weight), LEAST * learned), learned)


def _mean_of(values: np.ndarray, weight: np.ndarray) -> float:
    return float(np.average(values, weights=weight))
