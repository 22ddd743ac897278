"""The interface of likelihoods: targets given latent functions."""

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from stochgp.distributions import AbstractDistribution
from stochgp.transforms import AbstractTransform

LARGEST_EXPONENT = 40.0  # above it exponentials continue linearly
NODES = 32  # of Gauss–Hermite quadrature for one latent function

Rows = Float[Any, "N D"]
PerRow = Float[Array, " N"]
Latent = Float[Array, "N L"]
HostLatent = Float64[np.ndarray, "N L"]


class AbstractLikelihood(eqx.Module):
    """The density p(y | f(x), x) of one target y given L latent functions f = (f_1, …, f_L).

    The values of N rows are [N, L]. Targets are floats, also for classes 0, …, C − 1. Callers multiply the log density of a row by its weight ρ. X [N, D] are
    the model's rows, for input-dependent noise. Every floating array that is not frozen trains.
    """

    is_of_counts: ClassVar[bool] = False  # targets are not standardised; f is the logarithm of their mean

    @property
    def n_latent(self) -> int:
        """L."""
        return 1

    @property
    def mean_transform(self) -> AbstractTransform | None:
        """The transform T with E(y | f) = T⁻¹(f); None if the mean is f itself, or does not exist."""
        return None

    @abc.abstractmethod
    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return log p(y_i | f_i) of each row, for counts and classes the log probability."""

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        """Return ∫ log p(y_i | f) N(f; mean_i, diag variance_i) df, for L = 1 by quadrature."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        nodes, weights = (jnp.asarray(part, mean.dtype) for part in (nodes, weights / math.sqrt(2 * math.pi)))
        std = jnp.sqrt(variance)
        values = jax.vmap(lambda z: self.log_density(y, mean + z * std, X))(nodes)  # [K, N]
        return jnp.tensordot(weights, values, 1)

    def drawn_log_density(
        self, y: PerRow, mean: Latent, variance: Latent, X: Rows, *, key: PRNGKeyArray
    ) -> PerRow:
        """Return an unbiased estimate of `expected_log_density` by few draws, if it needs draws."""
        return self.expected_log_density(y, mean, variance, X)

    @abc.abstractmethod
    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> AbstractDistribution:
        """Return the distribution of an observation at each row, given f ~ N(mean, diag variance)."""

    @abc.abstractmethod
    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> PerRow:
        """Draw one observation of each row given its latent values."""


def safe_exp(x: Array) -> Array:
    """Return e^x up to x = 40, then its tangent: its square and slope are finite in float32."""
    beyond = jnp.maximum(x - LARGEST_EXPONENT, 0.0)
    return jnp.exp(jnp.minimum(x, LARGEST_EXPONENT)) * (1 + beyond)
