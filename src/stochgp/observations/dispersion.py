"""Predictive variances that are multiplied by a function of the input, and the distribution of errors in units of them."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from stochgp.distributions import (
    AbstractCurve,
    AbstractDistribution,
    LocationScale,
    Normal,
    Recalibrated,
    Student,
)
from stochgp.likelihoods import AbstractNoise, TreeNoise
from stochgp.likelihoods.noise import known_noise, noise_variances, with_level
from stochgp.parameters import Frozen

OnHost = Float64[np.ndarray, " N"]


class Dispersion(eqx.Module):
    """An observation around its prediction m ± √V, V the variance of f and of the noise: y = m + √(c s(x) V) T, T Student-t or Gaussian of variance 1.

    `trees` are log s(x), None for 1; `df` the degrees of freedom of T, None for a Gaussian; `curve` corrects the probabilities of T.
    Where s hardly changes among the rows that matter for x, variances c s(x) var f and noise c s(x) σ² s₀(x) are those of the kernel
    c √(s(x) s(z)) k(x, z) and of that noise: one factor of both leaves every mean as it is.
    """

    factor: float  # c
    trees: Frozen | None = None
    df: float | None = None
    curve: AbstractCurve | None = None

    @property
    def is_scaling(self) -> bool:
        """Whether variances change."""
        return self.factor != 1.0 or self.trees is not None

    @property
    def is_gaussian(self) -> bool:
        return self.df is None and self.curve is None

    def multiplier(self, X: Float[np.ndarray, "N D"]) -> OnHost:
        """c s(x)."""
        return np.asarray(noise_variances(self._scale, X, np.ones(len(X))))

    def traced_multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """c s(x) in the dtype of the rows, inside of a program."""
        return self._scale.variance(X, jnp.ones(X.shape[0], X.dtype))

    def of_noise(self, noise: AbstractNoise) -> AbstractNoise:
        """The noise c s(x) σ² s₀(x), σ² s₀(x) the one given."""
        if not self.is_scaling:
            return noise
        level = float(self._scale.level) * float(noise.level)
        if self.trees is not None:
            return TreeNoise(known_noise(level).level, self.trees, noise)
        return with_level(noise, level)

    def observed(self, mean: OnHost, std: OnHost) -> AbstractDistribution:
        """Of observations with these means and standard deviations, noise included, before the curve corrects them."""
        return self._plain(mean, std) if self.curve is None else LocationScale(mean, std, self._unit)

    def corrected(self, std: OnHost) -> OnHost:
        """The standard deviations of `observed`."""
        return std if self.curve is None else std * self._unit.std[0]

    @property
    def _scale(self) -> AbstractNoise:
        """c s(x) as the variances of a noise."""
        scale = known_noise(self.factor)
        return scale if self.trees is None else TreeNoise(scale.level, self.trees)

    @property
    def _unit(self) -> AbstractDistribution:
        assert self.curve is not None
        return Recalibrated(self._plain(np.zeros(1), np.ones(1)), self.curve)

    def _plain(self, mean: OnHost, std: OnHost) -> AbstractDistribution:
        if self.df is None:
            return Normal(mean, std)
        return Student(mean, std * math.sqrt(1 - 2 / self.df), self.df)
