"""Models: a prior over functions and a noise, the θ that learners learn."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.features import AbstractFeatureMap
from stochgp.kernels.base import as_kernel
from stochgp.parameters import (
    AbstractParameter,
    Bounded,
    Frozen,
    Positive,
    as_positive,
    positive,
    trainable_mask,
    value_of,
)

NOISE_FLOOR = 1e-6
SMALLEST_WEIGHT = 1e-9  # a row of less weight counts as one of this


def _as_noise(value: object) -> AbstractParameter:
    return value if isinstance(value, AbstractParameter) else positive(value, lower=NOISE_FLOOR)  # pyright: ignore[reportArgumentType]


class FeatureGP(eqx.Module):
    """y = f(x) + ε, f(x) = √variance φ(x)ᵀw, w ~ N(0, I_M), ε ~ N(0, noise_variance / ρ) for a row of weight ρ.

    So k(x, z) = variance · φ(x)·φ(z). `variance` and `noise_variance` are variances; a number given for the latter becomes a parameter
    with the floor NOISE_FLOOR = 1e-6 (of targets with unit variance), the σ_min² of the papers.
    """

    features: AbstractFeatureMap
    noise_variance: AbstractParameter = eqx.field(converter=_as_noise, default=0.1)
    variance: AbstractParameter = eqx.field(converter=as_positive, default=1.0)

    @property
    def n_features(self) -> int:
        return self.features.n_features

    def scaled_features(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """φ̃ = √variance φ: k(x, z) = φ̃(x)·φ̃(z)."""
        return jnp.sqrt(value_of(self.variance, X.dtype)) * self.features(X)

    def with_variances(self, variance: float, noise_variance: float) -> "FeatureGP":
        """The same features with other values of the two variances; frozen ones keep theirs."""
        return FeatureGP(
            self.features, _revalued(self.noise_variance, noise_variance), _revalued(self.variance, variance)
        )


class KernelGP(eqx.Module):
    """y = f(x) + ε, f ~ GP(0, k), ε ~ N(0, noise_variance / ρ) for a row of weight ρ.

    `kernel` is any kernel, sums, products and warped ones included; what is frozen in it, or the whole of it, does not train.
    `noise_variance` is a variance; a number becomes a parameter with the floor NOISE_FLOOR = 1e-6 (of targets with unit variance).
    """

    kernel: Any = eqx.field(converter=as_kernel)
    noise_variance: AbstractParameter = eqx.field(converter=_as_noise, default=0.1)

    def covariance(self, X: Float[Array, "N D"], weight: Float[Array, " N"]) -> Float[Array, "N N"]:
        """k(X, X) + σ² diag(1/ρ): of the targets."""
        spread = 1 / jnp.maximum(weight, SMALLEST_WEIGHT)
        K = value_of(self.kernel).matrix(X, X)
        return K + jnp.diag(value_of(self.noise_variance, X.dtype) * spread)


def split(gp: FeatureGP, *, hold_variances: bool = False) -> tuple[FeatureGP, FeatureGP]:
    """(trainable, rest) of `partition`; `hold_variances` keeps the GP's own two variances in the rest."""
    mask = trainable_mask(gp)
    if hold_variances:
        held = jax.tree.map(lambda _: False, (gp.noise_variance, gp.variance))
        mask = eqx.tree_at(lambda g: (g.noise_variance, g.variance), mask, held)
    return eqx.partition(gp, mask)


def features_and_noise(trainable: FeatureGP, rest: FeatureGP, X: Array) -> tuple[Array, Array]:
    """(Φ̃ [N, M], σ²) of the model put together again: what the gradients of the learners go through."""
    gp = eqx.combine(trainable, rest)
    return gp.scaled_features(X), gp.noise_variance.value


def range_within(parameter: AbstractParameter, widest: tuple[float, float]) -> tuple[float, float]:
    """What `parameter` may be worth within `widest`: its own bounds where they are narrower; its value alone where it is frozen."""
    if isinstance(parameter, Frozen):
        return float(parameter), float(parameter)
    lower, upper = getattr(parameter, "lower", 0.0), getattr(parameter, "upper", math.inf)
    return max(lower, widest[0]), min(upper, widest[1])


def _revalued(parameter: AbstractParameter, value: float) -> AbstractParameter:
    """The parameter worth `value`, or just inside its bounds; a frozen one as it is."""
    if isinstance(parameter, Frozen):
        return parameter
    lower = float(getattr(parameter, "lower", 0.0))
    if isinstance(parameter, Positive):
        return Positive(jnp.asarray(math.log(max(value - lower, 1e-12)), parameter.dtype), lower)
    upper = float(getattr(parameter, "upper", math.inf))
    fraction = min(max((value - lower) / (upper - lower), 1e-6), 1 - 1e-6)
    return Bounded(jnp.asarray(math.log(fraction / (1 - fraction)), parameter.dtype), lower, upper)
