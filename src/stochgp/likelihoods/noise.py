"""Noise models: the variance of observations given f(x), constant or a function of x."""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stochgp.numerics.arrays import unpacked_alike
from stochgp.parameters import AbstractParameter, cast, frozen, partition, positive, slope_of, value_of

NOISE_FLOOR = 1e-6
SMALLEST_COUNT = 1e-9  # lower bound of the weight ρ


class AbstractNoise(eqx.Module):
    """The noise model y = f(x) + ε, with ε ~ N(0, σ² s(x) / ρ) for a row with weight ρ.

    `level` is the variance σ², `multiplier` returns s(x) > 0, and `count` is the frequency weight ρ.
    """

    level: eqx.AbstractVar[AbstractParameter]

    @abc.abstractmethod
    def multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Return s(x) of each row."""

    def variance(self, X: Float[Array, "N D"], count: Float[Any, " N"]) -> Float[Array, " N"]:
        """Return σ² s(x) / ρ, the noise variance of each row."""
        level = value_of(self.level, X.dtype)
        return level * self.multiplier(X) / jnp.maximum(jnp.asarray(count, X.dtype), SMALLEST_COUNT)


class ConstantNoise(AbstractNoise):
    """The noise model with s(x) = 1: the variance σ² is constant. See `constant_noise`.

    Parameters
    ----------
    level : parameter
        The variance σ².
    """

    level: AbstractParameter

    def multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.ones(X.shape[0], X.dtype)


def constant_noise(
    variance: Any, lower: float = NOISE_FLOOR, dtype: DTypeLike | None = None
) -> ConstantNoise:
    """Return constant noise; a number as `variance` becomes a parameter that is ≥ `lower`.

    Parameters
    ----------
    variance : number or parameter
        The variance σ² in squared target units.
    lower, dtype
        If `variance` is a number, the lower bound and the dtype of the parameter.
    """
    is_parameter = isinstance(variance, AbstractParameter)
    return ConstantNoise(variance if is_parameter else positive(variance, lower=lower, dtype=dtype))


def as_noise(value: Any) -> AbstractNoise:
    """Return a noise model unchanged; a parameter or a number becomes constant noise."""
    return value if isinstance(value, AbstractNoise) else constant_noise(value)


def known_noise(variance: float) -> AbstractNoise:
    """Return constant noise with a fixed variance that is not trained."""
    with jax.enable_x64(True):
        return constant_noise(frozen(np.float64(variance)))


def with_level(noise: AbstractNoise, variance: float) -> AbstractNoise:
    """Return the noise model with a fixed σ² that is not trained, and the same s(x)."""
    with jax.enable_x64(True):
        return dataclasses.replace(noise, level=frozen(np.float64(variance)))


@eqx.filter_jit
def noise_variances(
    noise: AbstractNoise, X: Float[Any, "N D"], count: Float[Any, " N"]
) -> Float[Array, " N"]:
    """Return σ² s(x)/ρ of each row in float64, with the weights ρ = `count`."""
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    return cast(noise, wide).variance(jnp.asarray(X, wide), count)


def row_variances(noise: AbstractNoise, X: Float[Any, "N D"], dtype: DTypeLike) -> Float[Array, " N"]:
    """Return σ² s(x) of each row in `dtype`."""
    return noise.variance(jnp.asarray(X, dtype), jnp.ones(X.shape[0], dtype))


def noise_of_rows(
    noise: AbstractNoise, X: Float[np.ndarray, "N D"], count: Float[np.ndarray, " N"] | None = None
) -> Float[np.ndarray, " N"]:
    """Return σ² s(x) / ρ of each row on the host, with the weights ρ = `count` or 1."""
    count = np.ones(len(X)) if count is None else count
    if isinstance(noise, ConstantNoise):  # avoids compiling for each number of rows
        return np.asarray(float(noise.level) / count)
    with jax.enable_x64(True):
        return np.asarray(noise_variances(noise, np.asarray(X, np.float64), count))


def multipliers_of_rows(noise: AbstractNoise, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
    """Return s(x) of each row on the host."""
    if isinstance(noise, ConstantNoise):
        return np.ones(len(X))
    return noise_of_rows(noise, X) / float(noise.level)


def gradient_of_noise(
    noise: AbstractNoise, X: Float[np.ndarray, "N D"], count: np.ndarray, weights: np.ndarray
) -> Any:
    """Return the gradient of Σ_i w_i · variance_i with respect to the parameters of `noise`."""
    slope = slope_of(noise.level) if isinstance(noise, ConstantNoise) else None
    if slope is None:
        return _gradient(noise, X, count, weights)
    return unpacked_alike(slope * np.sum(weights / count), partition(noise)[0])  # avoids compiling


@eqx.filter_jit
def _gradient(noise: AbstractNoise, X: Any, count: Any, weights: Any) -> Any:
    theta, rest = partition(noise)
    return jax.grad(lambda t: jnp.sum(weights * eqx.combine(t, rest).variance(jnp.asarray(X), count)))(theta)
