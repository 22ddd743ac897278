"""Gaussian noise, constant or of whatever variance a noise model says."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.distributions import Normal
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, Rows
from stochgp.likelihoods.noise import AbstractNoise, as_noise, row_variances, wide_variances

LOG_2PI = math.log(2 * math.pi)


class Gaussian(AbstractLikelihood):
    """y = f(x) + ε, ε ~ N(0, σ² s(x)).

    Parameters
    ----------
    noise : noise model, number or parameter
        σ² s(x), or the variance σ² of constant noise; a number is where its training starts, and it stays above 1e-6.
    """

    noise: AbstractNoise = eqx.field(converter=as_noise, default=0.1)

    @property
    def n_latent(self) -> int:
        return 1

    def log_density(self, y: Float[Array, " N"], f: Latent, X: Rows) -> Float[Array, " N"]:
        """−½ log 2πσ² − (y − f)²/(2σ²)."""
        return self._normal(y, jnp.square(y - f[:, 0]), X)

    def expected_log_density(
        self, y: Float[Array, " N"], mean: Latent, variance: Latent, X: Rows
    ) -> Float[Array, " N"]:
        """−½ log 2πσ² − ((y − m)² + v)/(2σ²)."""
        return self._normal(y, jnp.square(y - mean[:, 0]) + variance[:, 0], X)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Normal:
        """N(m, v + σ²)."""
        return Normal(mean[:, 0], np.sqrt(variance[:, 0] + wide_variances(self.noise, X)))

    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> Float[Array, " N"]:
        std = jnp.sqrt(row_variances(self.noise, X, f.dtype))
        return f[:, 0] + std * jax.random.normal(key, f.shape[:1], f.dtype)

    def _normal(self, y: Array, squares: Array, X: Rows) -> Array:
        s2 = row_variances(self.noise, X, y.dtype)
        return -0.5 * (LOG_2PI + jnp.log(s2) + squares / s2)
