"""Transforms of targets, and fitted prior means."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import scipy.optimize
from jaxtyping import Float, Int32

from stochgp.choosing import AS_ASKED, Preference, prefer
from stochgp.context import FitContext
from stochgp.data.files import FileSource
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.kernels import Matern32, dense
from stochgp.likelihoods import ConstantNoise, Warped
from stochgp.likelihoods.base import COUNT, TRANSFORMS
from stochgp.models import KernelGP
from stochgp.numerics.arrays import packed
from stochgp.numerics.clustered import clusters
from stochgp.numerics.linalg import Factor
from stochgp.objectives import kernel
from stochgp.observations import MEANS, LinearMean
from stochgp.parameters import Positive
from stochgp.tables.targets import refuse_no_counts
from stochgp.transforms import QUARTILE, AbstractTransform, Log, anchored

CANDIDATES = ("sinh-arcsinh",)  # transforms that "auto" compares
POSITIVE_CANDIDATES = ("log",)  # also compared if all targets are positive
FIT_ROWS, HELD_ROWS = 300, 1000
STEPS = 60
STEEPEST = math.log(50.0)
PENALTY = 10.0  # weight of the squared excess of log T' over its bound
SPREAD = 1.0  # standard deviation of the prior on log θ
DIFFERENCE = 1e-5  # step of numeric derivatives with respect to γ
MAX_LENGTHS = 20  # with at most this many inputs, each input has its own lengthscale


def target_transform(likelihood: Any) -> AbstractTransform | str | None:
    """Return the transform of a Warped likelihood, or None."""
    T = likelihood.transform if isinstance(likelihood, Warped) else None
    return TRANSFORMS[COUNT] if isinstance(T, str) and T == COUNT else T


def standardised(
    rows: Data, mean: float | str | None, estimator: Any, leaves_inputs: bool, context: FitContext
) -> TrainingData:
    """Return data minus a fitted mean if `mean` is a name, standardised if set."""
    settings = bool(estimator.standardize), estimator.dtype
    if not isinstance(mean, str):
        return TrainingData.of(rows, settings[0], mean, settings[1], leaves_inputs)
    found, values = MEANS[mean].fit(rows)
    variance = lambda part: float(np.cov(part, ddof=0, aweights=rows.weight))
    share = 1.0 - variance(rows.y - values) / (variance(rows.y) or 1.0)
    values = found(rows.X) if isinstance(found, LinearMean) else values
    rest = dataclasses.replace(rows, y=rows.y - values)
    data = TrainingData.of(rest, settings[0], None, settings[1], leaves_inputs)
    context.record("mean", mean, f"{share:.0%} of the targets' variance is explained by {found.described}")
    return dataclasses.replace(data, mean_function=found, mean_values=values)


def transformed(
    rows: Data,
    wanted: AbstractTransform | str,
    estimator: Any,
    leaves_inputs: bool,
    context: FitContext,
) -> TrainingData:
    """Return data with transformed targets. A numeric `mean` is in the original units."""
    if estimator._target == COUNT:
        refuse_no_counts(rows.y)
    mean = estimator.mean
    plain = TrainingData.of(rows, bool(estimator.standardize), None, estimator.dtype, leaves_inputs)
    T = _fitted_transform(wanted, rows, plain, context)
    if T is None:
        return standardised(rows, mean, estimator, leaves_inputs, context)
    if mean is not None and not isinstance(mean, str):
        T.check(np.atleast_1d(np.float64(mean)))
        mean = float(T(np.asarray(mean, np.float64)))
    z = np.asarray(T(rows.y), np.float64)
    data = standardised(dataclasses.replace(rows, y=z), mean, estimator, leaves_inputs, context)
    slope = float(np.average(T.log_slope(rows.y), weights=data.rows.weights))
    return dataclasses.replace(data, transform=T, log_slope=slope)


def transformed_files(data: TrainingData, found: FileSource, context: FitContext) -> TrainingData:
    """Return the data of files with targets log(y + c)."""
    T = found.transform
    whole = data.everything is None
    mean = np.average(data.rows.y, weights=data.rows.weights) if whole else found.of_rows.mean[-1]
    context.record("transform", type(T).__name__, "as asked; it has no parameters to learn")
    return dataclasses.replace(data, transform=T, log_slope=-float(mean))


def _fitted_transform(
    wanted: AbstractTransform | str, rows: Data, plain: TrainingData, context: FitContext
) -> AbstractTransform | None:
    """Return the fitted transform, or None if "auto" prefers none."""
    chooses = isinstance(wanted, str)
    if isinstance(wanted, AbstractTransform):
        wanted.check(rows.y)
    if plain.leaves_inputs and not isinstance(wanted, Log):
        raise ValueError(
            "the Tanimoto kernel accepts only the transforms 'log' and 'count', which have no parameters to learn"
        )
    T: Any = wanted
    why = f"{AS_ASKED}; it has no parameters to learn"
    if chooses and (refusal := context.refusal()):
        T, why = None, refusal
    elif not isinstance(wanted, Log):
        names = CANDIDATES + (POSITIVE_CANDIDATES if rows.y.min() > 0 else ())
        tried = {name: TRANSFORMS[name] for name in names} if chooses else {type(wanted).__name__: wanted}
        options: dict[str, Any] = {"seed": context.sample_seed, "group": rows.group, "weight": rows.weight}
        T, found = fit_transforms(tried, plain.X.astype(np.float64), rows.y, **options)
        T, why = (
            None if chooses and found.name is None else T,
            f"compared on rows that were not used to fit the transforms: {found.why}",
        )
    context.record("transform", None if T is None else type(getattr(T, "inner", T)).__name__, why)
    return T


def fit_transforms(
    transforms: Mapping[str, AbstractTransform],
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " N"],
    *,
    seed: Any,
    group: Int32[np.ndarray, " N"] | None = None,
    weight: Float[np.ndarray, " N"] | None = None,
) -> tuple[AbstractTransform, Preference]:
    """Return the preferred transform, fitted (without preference, the first), and the preference.

    The fit uses at most 300 random rows. With a weak prior on θ, the parameters γ of T and the
    hyperparameters θ of a Matérn-3/2 kernel with noise minimise

        −log N(T(y); μ, K_θ + σ²I) − Σ_i log T'(y_i).

    A penalty keeps log T' below log 50, in units of the spread of the targets, because log T' has no limit at
    repeated targets. `choosing.prefer` compares the mean of log p(y) over other rows, by whole groups.
    """
    fit, held = _sides(len(y), seed, group)
    count = np.ones(len(y)) if weight is None else weight

    def scored(T: AbstractTransform | None) -> tuple[Any, Float[np.ndarray, " V"]]:
        rows = X[fit], y[fit], count[fit]
        found = _fitted(T, *rows, y)
        return found[0], _held_out(found, *rows, X[held], y[held])

    tried = {name: scored(anchored(T, y)) for name, T in transforms.items()}
    fitted = {name: T for name, (T, _) in tried.items()}
    if len(held) < 2:
        return next(iter(fitted.values())), Preference(None, {}, "there are too few rows")
    cell = clusters(X[held], None if group is None else group[held])
    scores = {name: score for name, (_, score) in tried.items()}
    found = prefer(scored(None)[1], scores, cell, count[held])
    return fitted[found.name or next(iter(fitted))], found


def _sides(n: int, seed: Any, group: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows for the fits and the rows for the comparison, in whole groups."""
    generator = np.random.default_rng(seed)
    if group is None:
        order = generator.permutation(n)
        n_fit = min(FIT_ROWS, max(1, 2 * n // 3))
        return order[:n_fit], order[n_fit : n_fit + HELD_ROWS]
    kinds = generator.permutation(np.unique(group))
    first = np.isin(group, kinds[: max(1, 2 * len(kinds) // 3)])
    fit, held = (generator.permutation(np.flatnonzero(side)) for side in (first, ~first))
    return fit[:FIT_ROWS], held[:HELD_ROWS]


def _fitted(
    transform: AbstractTransform | None, X: np.ndarray, y: np.ndarray, count: np.ndarray, all_y: np.ndarray
) -> tuple[Any, np.ndarray]:
    """Return the fitted transform and θ: log lengthscales, log variance and log noise."""
    D = X.shape[1]
    n_lengths = D if D <= MAX_LENGTHS else 1
    spread = float(np.var(all_y if transform is None else transform(all_y))) or 1.0
    start = np.concatenate([np.full(n_lengths, 0.5 * math.log(D)), np.log([spread, 0.2 * spread])])
    low, high = np.quantile(all_y, [0.25, 0.75])
    log_unit = math.log(float(high - low) / (2 * QUARTILE) or float(np.std(all_y)) or 1.0)

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        theta, gamma = np.split(vector, [len(start)])
        try:
            with np.errstate(all="ignore"):
                z, others = _outward(transform, gamma, y, count, log_unit)
                value, by_theta, by_z = _loss(theta, z, X, count, start)
                by_gamma = []
                for step in DIFFERENCE * np.eye(len(gamma)):  # γ has at most two numbers
                    ends = [_outward(transform, gamma + move, y, count, log_unit) for move in (step, -step)]
                    by_gamma.append(
                        (by_z @ (ends[0][0] - ends[1][0]) + ends[0][1] - ends[1][1]) / 2 / DIFFERENCE
                    )
        except ValueError:  # A has no Cholesky factor
            return 1e10, np.zeros_like(vector)
        if not math.isfinite(value + others):
            return 1e10, np.zeros_like(vector)
        return (value + others) / count.sum(), np.concatenate([by_theta, by_gamma]) / count.sum()

    begin = np.concatenate([start, [] if transform is None else transform.raw])
    options = {"maxiter": STEPS}
    best = scipy.optimize.minimize(evaluate, begin, jac=True, method="L-BFGS-B", options=options).x
    theta, gamma = np.split(best, [len(start)])
    return transform if transform is None else _at(transform, gamma), theta


def _at(transform: AbstractTransform, gamma: np.ndarray) -> AbstractTransform:
    return transform.from_raw([float(v) for v in gamma]) if len(gamma) else transform


def _outward(
    transform: AbstractTransform | None, gamma: np.ndarray, y: np.ndarray, count: np.ndarray, log_unit: float
) -> tuple[np.ndarray, float]:
    """Return z = T(y), and the loss terms other than the density of z."""
    if transform is None:
        return y, 0.0
    T = _at(transform, gamma)
    slopes = T.log_slope(y)
    excess = np.maximum(slopes + log_unit - STEEPEST, 0.0)
    return T(y), float(PENALTY * count @ np.square(excess) - count @ slopes)


def _loss(
    theta: np.ndarray, z: np.ndarray, X: np.ndarray, count: np.ndarray, start: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return −log N(z; μ, K_θ + diag(σ²/ρ)) with the prior, and its gradients for θ and z."""
    gp, (factor, mean, _), n = _model(theta), _factored(theta, X, z, count), count.sum()
    at, noise = Data(X, z - mean, count), np.exp(theta[-1]) / count
    value, alpha = kernel.value_and_weights(factor, at, noise)
    with jax.enable_x64(True):
        slope = packed(kernel.gradient(gp, at, noise, factor, alpha))
    away = theta - start
    return n * value + float(away @ away) / (2 * SPREAD**2), n * slope + away / SPREAD**2, alpha


def _model(theta: np.ndarray) -> KernelGP:
    lengths: Any = theta[:-2] if len(theta) > 3 else theta[0]
    return KernelGP(Matern32(Positive(lengths), Positive(theta[-2])), ConstantNoise(Positive(theta[-1])))


def _factored(theta: np.ndarray, X: np.ndarray, z: np.ndarray, count: np.ndarray) -> tuple[Factor, Any, Any]:
    """Return the factor L of A = K + diag(σ²/ρ), the mean μ = 1ᵀA⁻¹z/1ᵀA⁻¹1, and L⁻¹(z − μ)."""
    factor = kernel.factorised(_model(theta).kernel, X, np.exp(theta[-1]) / count)
    ones, of_z = factor.half(np.column_stack([np.ones_like(z), z])).T
    mean = (ones @ of_z) / (ones @ ones)
    return factor, mean, of_z - mean * ones


def _held_out(
    found: tuple[Any, np.ndarray], X: np.ndarray, y: np.ndarray, count: np.ndarray,
    X_new: np.ndarray, y_new: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return log p(y) of each new row given the fitted rows, in the units of y."""
    T, theta = found
    of = T or (lambda y: y)
    factor, mean, half = _factored(theta, X, of(y), count)
    across = factor.half(dense.block(_model(theta).kernel, X, X_new))
    variance, noise = np.exp(theta[-2:])
    v = np.maximum(variance - np.sum(across**2, axis=0), 0) + noise
    found_log = -0.5 * np.log(2 * math.pi * v) - 0.5 * (of(y_new) - mean - across.T @ half) ** 2 / v
    return found_log if T is None else found_log + T.log_slope(y_new)
