"""Choice of a transform of the targets, with a small exact GP scored on other rows.

On up to FIT_ROWS random rows the parameters γ of T and the hyperparameters θ of a Matérn-3/2 kernel with noise minimise together
    −log N(T(y); μ, K_θ + σ²I) − Σ_i log T'(y_i),

with a weak prior of θ. log T' is held below log 50 (in units of the targets' spread), since it is unbounded at repeated targets. ρ is a frequency
weight. A transform is preferred if the ρ-weighted mean of log p(y) over other rows gains more than 2 standard errors and 0.01 nats. The standard
error uses sums over clusters of near rows, or over groups.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int32

from stochgp.choosing import Preference, prefer
from stochgp.kernels import Matern32
from stochgp.numerics.arrays import on_device
from stochgp.numerics.clustered import clusters
from stochgp.parameters import Positive
from stochgp.transforms import QUARTILE, AbstractTransform, anchored

FIT_ROWS, HELD_ROWS = 300, 1000
STEPS = 60
STEEPEST = math.log(50.0)
PENALTY = 10.0  # nats per row and squared excess of log T'
SPREAD = 1.0  # of the prior on the logarithms of θ
MAX_LENGTHS = 20  # inputs up to which each has its own lengthscale


def fit_transforms(
    transforms: Mapping[str, AbstractTransform],
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " N"],
    *,
    seed: Any,
    group: Int32[np.ndarray, " N"] | None = None,
    weight: Float[np.ndarray, " N"] | None = None,
) -> tuple[AbstractTransform, Preference]:
    """Return the fitted preferred transform, or else the first, and the preference.

    All are fitted to the same standardised rows and compared on other rows; no group is on both sides.
    """
    fit, held = _sides(len(y), seed, group)
    count = np.ones(len(y)) if weight is None else weight

    def scored(T: AbstractTransform | None) -> tuple[Any, Float[np.ndarray, " V"]]:
        found = _fitted(T, X[fit], y[fit], count[fit], y)
        return found[0], _held_out(found, X[fit], y[fit], count[fit], X[held], y[held])

    tried = {name: scored(anchored(T, y)) for name, T in transforms.items()}
    fitted = {name: T for name, (T, _) in tried.items()}
    if len(held) < 2:
        return next(iter(fitted.values())), Preference(None, {}, "there are too few")
    cell = clusters(X[held], None if group is None else group[held])
    scores = {name: score for name, (_, score) in tried.items()}
    found = prefer(scored(None)[1], scores, cell, count[held])
    return fitted[found.name or next(iter(fitted))], found


def _sides(n: int, seed: Any, group: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to fit to and the rows to compare on, as whole groups."""
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
    """Return the transform and θ, log lengthscales, variance and noise, at the minimum."""
    D = X.shape[1]
    n_lengths = D if D <= MAX_LENGTHS else 1
    spread = float(np.var(all_y if transform is None else transform(all_y))) or 1.0
    start = np.concatenate([np.full(n_lengths, 0.5 * math.log(D)), np.log([spread, 0.2 * spread])])
    raw = [] if transform is None else transform.raw
    low, high = np.quantile(all_y, [0.25, 0.75])
    log_unit = math.log(float(high - low) / (2 * QUARTILE) or float(np.std(all_y)) or 1.0)
    with jax.enable_x64(True):
        data = tuple(on_device(part, np.float64) for part in (X, count, start))
        targets, n = on_device(y, np.float64), float(np.sum(count))
        outward = jax.jit(lambda gamma: _outward(transform, gamma, targets, data[1], log_unit))

        def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
            z, jacobian, others, others_slope = outward(vector[len(start) :])
            value, (of_theta, of_z) = _density_and_slopes(vector[: len(start)], z, *data)
            of_gamma = np.asarray(of_z) @ np.asarray(jacobian) + others_slope
            slope = np.concatenate([of_theta, of_gamma]) / n
            value = (float(value) + float(others)) / n
            return (value, slope) if math.isfinite(value) else (1e10, np.zeros_like(slope))

        options = {"maxiter": STEPS}
        begin = np.concatenate([start, raw])
        best = scipy.optimize.minimize(evaluate, begin, jac=True, method="L-BFGS-B", options=options).x
    gamma = [float(v) for v in best[len(start) :]]
    fitted = transform if transform is None or not raw else transform.from_raw(gamma)
    return fitted, best[: len(start)]


def _outward(
    transform: AbstractTransform | None, gamma: Array, y: Array, count: Array, log_unit: float
) -> tuple[Array, Array, Array, Array]:
    """Return z = T(y), ∂z/∂γ, the loss terms beside the density of z, and their derivatives."""

    def others(gamma: Array) -> tuple[Array, Array]:
        if transform is None:
            return y, jnp.zeros((), y.dtype)
        T = transform.from_raw(gamma) if transform.raw else transform
        slopes = T.log_slope(y)
        excess = jnp.maximum(slopes + log_unit - STEEPEST, 0.0)
        beyond = PENALTY * jnp.sum(count * jnp.square(excess))
        return T(y), beyond - jnp.sum(count * slopes)

    z, value = others(gamma)
    if len(gamma) == 0:
        return z, jnp.zeros((len(z), 0), y.dtype), value, jnp.zeros(0, y.dtype)
    jacobian, slope = jax.jacfwd(others)(gamma)
    return z, jacobian, value, slope


def _negative_density(theta: Array, z: Array, X: Array, count: Array, start: Array) -> Array:
    """Return −log density of Σρ observations z, N(μ, K_θ + diag(σ²/ρ)), plus prior, in nats."""
    L, _, half = _factored(theta, X, z, count)
    repeats = jnp.sum((count - 1) * (math.log(2 * math.pi) + theta[-1]) + jnp.log(count)) / 2
    log_density = -0.5 * half @ half - jnp.sum(jnp.log(jnp.diag(L))) - 0.5 * len(z) * math.log(2 * math.pi)
    return jnp.sum((theta - start) ** 2) / (2 * SPREAD**2) - (log_density - repeats)


_density_and_slopes = jax.jit(jax.value_and_grad(_negative_density, argnums=(0, 1)))


def _factored(theta: Array, X: Array, z: Array, count: Array) -> tuple[Array, Array, Array]:
    """Return L of A = K + diag(σ²/ρ), the mean μ = 1ᵀA⁻¹z/1ᵀA⁻¹1, and L⁻¹(z − μ)."""
    kernel = _kernel(theta)
    A = kernel.matrix(X, X) + jnp.exp(theta[-1]) * jnp.diag(1 / count)
    A = A + 1e-8 * jnp.exp(theta[-2]) * jnp.eye(len(z), dtype=X.dtype)
    L = jnp.linalg.cholesky(A)
    ones, of_z = (solve_triangular(L, v, lower=True) for v in (jnp.ones_like(z), z))
    mean = (ones @ of_z) / (ones @ ones)
    return L, mean, of_z - mean * ones


def _kernel(theta: Array) -> Matern32:
    return Matern32(Positive(theta[:-2]) if len(theta) > 3 else Positive(theta[0]), Positive(theta[-2]))


def _held_out(
    found: tuple[Any, np.ndarray],
    X: np.ndarray,
    y: np.ndarray,
    count: np.ndarray,
    X_new: np.ndarray,
    y_new: np.ndarray,
) -> np.ndarray:
    """Return log p(y_i) of each new row given the others, in the units of y."""
    T, theta = found
    of = T or (lambda y: y)
    with jax.enable_x64(True):
        z = on_device(of(y), np.float64)
        mean, variance = _predicted(*(on_device(part, np.float64) for part in (theta, X, z, count, X_new)))
    m, v = np.asarray(mean), np.asarray(variance)
    found_log = -0.5 * np.log(2 * math.pi * v) - 0.5 * (of(y_new) - m) ** 2 / v
    return found_log if T is None else found_log + T.log_slope(y_new)


@jax.jit
def _predicted(theta: Array, X: Array, z: Array, count: Array, X_new: Array) -> tuple[Array, Array]:
    """Return the mean and variance of one observation at new rows."""
    L, mean, half = _factored(theta, X, z, count)
    kernel = _kernel(theta)
    across = solve_triangular(L, kernel.matrix(X, X_new), lower=True)
    variance = jnp.exp(theta[-2]) - jnp.sum(across**2, axis=0) + jnp.exp(theta[-1])
    return mean + across.T @ half, jnp.maximum(variance, jnp.exp(theta[-1]))
