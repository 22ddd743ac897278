"""Gaussian noise whose log variance is a latent function of its own."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.distributions import ScaleMixture
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, Rows, safe_exp
from stochgp.parameters import AbstractParameter, as_positive, value_of

LOG_2PI = math.log(2 * math.pi)
FAR, STEP = 8.0, 0.25  # standard deviations of the trapezoid rule over the log variance


class LatentNoiseGaussian(AbstractLikelihood):
    """y = f(x) + ε, ε ~ N(0, σ² e^(g(x))): f is the first latent function and g, the log of the noise's variance, the second.

    Lázaro-Gredilla and Titsias (2011), Saul et al. (2016).

    Parameters
    ----------
    level : number or parameter
        σ², a variance: the noise where g is 0. A number is where its training starts.
    """

    level: AbstractParameter = eqx.field(converter=as_positive, default=0.1)

    @property
    def n_latent(self) -> int:
        return 2

    def log_density(self, y: Float[Array, " N"], f: Latent, X: Rows) -> Float[Array, " N"]:
        """−½ log 2π − ½ h − ½ e^(−h) (y − f)², h = g + log σ²."""
        return self._normal(f[:, 1], -f[:, 1], jnp.square(y - f[:, 0]))

    def expected_log_density(
        self, y: Float[Array, " N"], mean: Latent, variance: Latent, X: Rows
    ) -> Float[Array, " N"]:
        """−½ log 2π − ½ m_h − ½ e^(−m_h + v_g/2) [(y − m_f)² + v_f], m_h = m_g + log σ²."""
        squares = jnp.square(y - mean[:, 0]) + variance[:, 0]
        return self._normal(mean[:, 1], -mean[:, 1] + variance[:, 1] / 2, squares)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> ScaleMixture:
        """Σ_k w_k N(m_f, v_f + σ² e^(m_g + √v_g z_k)); its variance is v_f + σ² e^(m_g + v_g/2)."""
        z = np.arange(-FAR, FAR + STEP / 2, STEP)
        log_w = -0.5 * z**2
        multipliers = np.exp(np.sqrt(variance[:, [1]]) * z)
        noise = float(self.level) * np.exp(mean[:, 1])
        return ScaleMixture(
            mean[:, 0], variance[:, 0], noise, multipliers, log_w - np.log(np.sum(np.exp(log_w)))
        )

    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> Float[Array, " N"]:
        std = jnp.sqrt(value_of(self.level, f.dtype) * jnp.exp(f[:, 1]))
        return f[:, 0] + std * jax.random.normal(key, f.shape[:1], f.dtype)

    def _normal(self, log_noise: Array, log_precision: Array, squares: Array) -> Array:
        log_s2 = jnp.log(value_of(self.level, squares.dtype))
        return -0.5 * (LOG_2PI + log_noise + log_s2 + safe_exp(log_precision - log_s2) * squares)
