"""Several classes, a latent function for each."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy.special import log_softmax, logsumexp, ndtri

from stochgp.distributions import Categorical
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, Rows
from stochgp.likelihoods.targets import AbstractTargets, Classes

EXPECTED, PREDICTED = 128, 1024  # points, each with its mirror image beside it
HELD = 1 << 22  # numbers of one evaluation on the host


class Softmax(AbstractLikelihood):
    """P(y = c | f) = exp f_c / Σ_k exp f_k for the classes 0, …, C − 1, f = (f_0, …, f_(C−1)) independent.

    E log P = m_y − E log Σ exp f_k, the second term averaged over 256 fixed points like N(m, diag v), half of them mirror images of the others:
    exact where the term is linear, else an error of some 0.01 nats for variances of 1. Predictions average P over 2,048 such points.
    """

    n_classes: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.n_classes < 2:
            raise ValueError(f"n_classes is {self.n_classes}; it must be at least 2")

    @property
    def targets(self) -> AbstractTargets:
        return Classes(self.n_classes)

    @property
    def n_latent(self) -> int:
        return self.n_classes

    def log_density(self, y: Float[Array, " N"], f: Latent, X: Rows) -> Float[Array, " N"]:
        """f_y − log Σ_k exp f_k."""
        return _at(f, y) - jax.nn.logsumexp(f, axis=1)

    def expected_log_density(
        self, y: Float[Array, " N"], mean: Latent, variance: Latent, X: Rows
    ) -> Float[Array, " N"]:
        z = jnp.asarray(points_like_normal(EXPECTED, self.n_classes), mean.dtype)  # [S, C]
        f = mean[:, None, :] + jnp.sqrt(variance)[:, None, :] * z[None]
        return _at(mean, y) - jnp.mean(jax.nn.logsumexp(f, axis=-1), axis=1)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Categorical:
        z, std = points_like_normal(PREDICTED, self.n_classes), np.sqrt(variance)
        n, parts = max(1, HELD // z.size), [np.zeros((0, self.n_classes))]
        for i in range(0, len(mean), n):
            f = mean[i : i + n, None] + std[i : i + n, None] * z
            parts.append(logsumexp(log_softmax(f, axis=-1), axis=1) - np.log(len(z)))
        return Categorical(np.concatenate(parts))

    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> Float[Array, " N"]:
        return jax.random.categorical(key, f, axis=1).astype(f.dtype)


@functools.cache
def points_like_normal(n: int, dimension: int) -> Float64[np.ndarray, "S C"]:
    """2n points like N(0, I): Φ⁻¹ of Sobol's points, in the middle of their cells and scaled to variance 1, and their mirror images."""
    from scipy.stats.qmc import Sobol  # takes a while to load

    z = ndtri(Sobol(dimension, scramble=False).random(n) + 0.5 / n)
    z /= np.sqrt(np.mean(z**2, axis=0))
    return np.concatenate([z, -z])


def _at(values: Array, y: Array) -> Array:
    """values[i, y_i]."""
    return jnp.take_along_axis(values, y.astype(jnp.int32)[:, None], axis=1)[:, 0]
