"""A posterior whose variances are multiplied by a function of the input."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from stochgp.distributions import (
    AbstractCurve,
    AbstractDistribution,
    LocationScale,
    Normal,
    Recalibrated,
    Student,
)
from stochgp.likelihoods import AbstractNoise, TreeNoise
from stochgp.parameters import Frozen
from stochgp.posteriors.base import (
    AbstractFunctions,
    AbstractPosterior,
    PerRow,
    Request,
    Rows,
    known_noise,
    noise_variances,
    with_level,
)

OnHost = Float64[np.ndarray, " N"]


class Dispersion(eqx.Module):
    """The law of an observation around its prediction m ± √V: y = m + √(c s(x) V) T, T a Student-t of variance 1, or Gaussian.

    `trees` are log s(x), None for 1; `df` the degrees of freedom of T, None for a Gaussian; `curve` corrects the probabilities of T.
    """

    factor: float  # c
    trees: Frozen | None = None
    df: float | None = None
    curve: AbstractCurve | None = None

    def of(self, posterior: AbstractPosterior) -> AbstractPosterior:
        """The posterior with variances and noise of this law."""
        if self.factor == 1.0 and self.trees is None:
            return posterior
        scale = known_noise(self.factor)
        if self.trees is not None:
            scale = TreeNoise(scale.level, self.trees)
        return DispersedPosterior(base=posterior, scale=scale)  # pyright: ignore[reportCallIssue]

    def observed(self, mean: OnHost, std: OnHost) -> AbstractDistribution:
        """Of observations with these means and standard deviations, noise included, before the curve corrects them."""
        return self._plain(mean, std) if self.curve is None else LocationScale(mean, std, self._unit)

    def corrected(self, std: OnHost) -> OnHost:
        """The standard deviations of `observed`."""
        return std if self.curve is None else std * self._unit.std[0]

    @property
    def is_gaussian(self) -> bool:
        return self.df is None and self.curve is None

    @property
    def _unit(self) -> AbstractDistribution:
        assert self.curve is not None
        return Recalibrated(self._plain(np.zeros(1), np.ones(1)), self.curve)

    def _plain(self, mean: OnHost, std: OnHost) -> AbstractDistribution:
        if self.df is None:
            return Normal(mean, std)
        return Student(mean, std * math.sqrt(1 - 2 / self.df), self.df)


class DispersedPosterior(AbstractPosterior):
    """The mean of `base`, and √(c s(x)) times its deviations and its noise:

        var f(x) = c s(x) var₀ f(x),   cov(f(x), f(z)) = c √(s(x) s(z)) cov₀(f(x), f(z)),   noise variance c s(x) σ² s₀(x),

    σ² s₀(x) that of `base`. Where s hardly changes among the rows that matter for x, this is the posterior of the kernel c √(s(x) s(z)) k(x, z)
    and of that noise: one factor of both leaves every mean as it is. c s(x) are the variances of `scale`.
    """

    base: AbstractPosterior
    scale: AbstractNoise

    @property
    def noise(self) -> AbstractNoise:  # pyright: ignore[reportIncompatibleVariableOverride]
        level = float(self.scale.level) * float(self.base.noise.level)
        if isinstance(self.scale, TreeNoise):
            return TreeNoise(known_noise(level).level, self.scale.trees, self.base.noise)
        return with_level(self.base.noise, level)

    @property
    def block_rows(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.block_rows

    @property
    def dtype(self) -> str | None:
        return self.base.dtype

    def mean(self, X: Rows) -> PerRow:
        return self.base.mean(X)

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        mean, variance = self.base.mean_and_variance(X)
        return mean, np.asarray(variance) * self.multiplier(X)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        return self._times(self.base.covariance(X), X)

    def covariance_within(self, X: Rows, free: int) -> Float[np.ndarray, "N N"]:
        return self._times(self.base.covariance_within(X, free), X)

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> "DispersedFunctions":
        drawn = self.base.functions(n_samples, key=key)
        return DispersedFunctions(self.base, self.scale, drawn)

    def need_bytes(self, request: Request) -> int:
        return self.base.need_bytes(request) + 8 * request.n_rows

    def multiplier(self, X: Rows) -> Float[np.ndarray, " N"]:
        """c s(x)."""
        return np.asarray(noise_variances(self.scale, X, np.ones(len(X))))

    def _times(self, covariance: Any, X: Rows) -> Float[np.ndarray, "N N"]:
        root = np.sqrt(self.multiplier(X))
        return root[:, None] * np.asarray(covariance) * root


class DispersedFunctions(AbstractFunctions):
    """m(x) + √(c s(x)) (f_s(x) − m(x)) for functions f_s of the posterior whose mean is m."""

    base: AbstractPosterior
    scale: AbstractNoise
    functions: AbstractFunctions

    @property
    def n_samples(self) -> int:
        return self.functions.n_samples

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        mean = jnp.asarray(self.base.mean(X), X.dtype)[:, None]
        root = jnp.sqrt(self.scale.variance(X, jnp.ones(X.shape[0], X.dtype)))[:, None]
        return mean + root * (self.functions(X) - mean)
