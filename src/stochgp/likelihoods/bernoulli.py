"""Two classes."""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy.special import log_expit, logsumexp
from scipy.special import log_ndtr as log_ndtr_on_host

from stochgp.distributions import Categorical
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, Rows

REACH, STEP = 9.0, 0.1  # standard deviations of the trapezoid rule over f
ROWS = 1 << 13  # of one of its evaluations


class AbstractLink(eqx.Module):
    """A symmetric distribution function F, F(−f) = 1 − F(f): P(y = 1) = F(f)."""

    @abc.abstractmethod
    def log_cdf(self, f: Array) -> Array:
        """log F(f)."""

    @abc.abstractmethod
    def log_expected(self, mean: Float64[np.ndarray, " N"], std: Float64[np.ndarray, " N"]) -> np.ndarray:
        """log E F(f), f ~ N(mean, std²), on the host."""


class Probit(AbstractLink):
    """F = Φ: the only link for which E F(f) = Φ(m/√(1 + v)) is known in closed form."""

    def log_cdf(self, f: Array) -> Array:
        return log_ndtr(f)

    def log_expected(self, mean: Float64[np.ndarray, " N"], std: Float64[np.ndarray, " N"]) -> np.ndarray:
        return log_ndtr_on_host(mean / np.hypot(1.0, std))


class Logit(AbstractLink):
    """F(f) = 1/(1 + e^(−f)); E F(f) by the trapezoid rule, whose error is below 10⁻⁸ for standard deviations up to 10."""

    def log_cdf(self, f: Array) -> Array:
        return jax.nn.log_sigmoid(f)

    def log_expected(self, mean: Float64[np.ndarray, " N"], std: Float64[np.ndarray, " N"]) -> np.ndarray:
        z = np.arange(-REACH, REACH + STEP / 2, STEP)
        log_w = -0.5 * z**2 + math.log(STEP) - 0.5 * math.log(2 * math.pi)
        parts = [
            logsumexp(log_expit(mean[i : i + ROWS, None] + std[i : i + ROWS, None] * z) + log_w, axis=1)
            for i in range(0, len(mean), ROWS)
        ]
        return np.concatenate([*parts, np.zeros(0)])


class Bernoulli(AbstractLikelihood):
    """P(y = 1 | f) = F(f) for the classes 0 and 1.

    Parameters
    ----------
    link : `AbstractLink`
        F: `Probit()`, whose predictions are in closed form, or `Logit()`.
    """

    link: AbstractLink = Probit()

    @property
    def n_latent(self) -> int:
        return 1

    def log_density(self, y: Float[Array, " N"], f: Latent, X: Rows) -> Float[Array, " N"]:
        """log F(±f), + for class 1."""
        return self.link.log_cdf(jnp.where(y > 0.5, f[:, 0], -f[:, 0]))

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Categorical:
        """(E F(−f), E F(f))."""
        m, std = mean[:, 0], np.sqrt(variance[:, 0])
        return Categorical(
            np.stack([self.link.log_expected(-m, std), self.link.log_expected(m, std)], axis=1)
        )

    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> Float[Array, " N"]:
        p = jnp.exp(self.link.log_cdf(f[:, 0]))
        return jax.random.bernoulli(key, p).astype(f.dtype)
