"""Likelihoods of two classes (one latent function) and of C classes (C latent functions)."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float64, PRNGKeyArray
from scipy.special import log_ndtr as log_ndtr_on_host
from scipy.special import log_softmax, logsumexp, ndtri

from stochgp.distributions import Categorical
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, PerRow, Rows

EXPECTED, PREDICTED = 128, 1024  # points, each with its mirror image
SCRAMBLES = 8  # independent sets of EXPECTED points
NEAREST = 1e-12  # minimum distance of uniform points from 0 and 1
HELD = 1 << 22  # maximum number of values in memory per chunk of rows


class Bernoulli(AbstractLikelihood):
    """The probit likelihood P(y = 1 | f) = Φ(f) of the classes 0 and 1."""

    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return log Φ(f) for class 1 and log Φ(−f) for class 0."""
        return log_ndtr(jnp.where(y > 0.5, f[:, 0], -f[:, 0]))

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Categorical:
        """Return the probabilities E Φ(−f) and E Φ(f) = Φ(m/√(1 + v)) of the classes 0 and 1."""
        u = mean[:, 0] / np.hypot(1.0, np.sqrt(variance[:, 0]))
        return Categorical(log_ndtr_on_host(np.stack([-u, u], axis=1)))


class Softmax(AbstractLikelihood):
    """The softmax likelihood P(y = c | f) = exp f_c / Σ_k exp f_k of classes 0, …, C − 1.

    The f_c are independent. Expectations over f are averages over scrambled Sobol points (Owen 1995).
    Training steps shift the points randomly (Cranley and Patterson 1976), so gradients are unbiased.

    Parameters
    ----------
    n_classes : int
        The number of classes C, at least 2.
    """

    n_classes: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, but is {self.n_classes}")

    @property
    def n_latent(self) -> int:
        return self.n_classes

    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return f_y − log Σ_k exp f_k."""
        return _at(f, y) - jax.nn.logsumexp(f, axis=1)

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        z = np.stack([mirrored(ndtri(sobol(EXPECTED, self.n_classes, seed))) for seed in range(SCRAMBLES)])
        found = jax.lax.map(lambda z: _at_points(y, mean, variance, z), jnp.asarray(z, mean.dtype))
        return jnp.mean(found, axis=0)

    def drawn_log_density(
        self, y: PerRow, mean: Latent, variance: Latent, X: Rows, *, key: PRNGKeyArray
    ) -> PerRow:
        shift = jax.random.uniform(key, (self.n_classes,), mean.dtype)
        u = jnp.mod(jnp.asarray(sobol(EXPECTED, self.n_classes, 0), mean.dtype) + shift, 1)
        tiny = float(jnp.finfo(mean.dtype).eps) / 2
        z = jax.scipy.special.ndtri(jnp.clip(u, tiny, 1 - tiny))
        return _at_points(y, mean, variance, jnp.concatenate([z, -z]))

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Categorical:
        z, std = mirrored(ndtri(sobol(PREDICTED, self.n_classes, 0))), np.sqrt(variance)
        n, parts = max(1, HELD // z.size), [np.zeros((0, self.n_classes))]
        for i in range(0, len(mean), n):
            f = mean[i : i + n, None] + std[i : i + n, None] * z
            parts.append(logsumexp(log_softmax(f, axis=-1), axis=1) - np.log(len(z)))
        return Categorical(np.concatenate(parts))


@functools.cache
def sobol(n: int, dimension: int, seed: int) -> Float64[np.ndarray, "S C"]:
    """Return n scrambled points of Sobol's sequence, strictly between 0 and 1."""
    from scipy.stats.qmc import Sobol  # slow to import

    points = Sobol(dimension, scramble=True, seed=seed)
    return np.clip(points.random(n), NEAREST, 1 - NEAREST)


def mirrored(z: Float64[np.ndarray, "S C"]) -> Float64[np.ndarray, "P C"]:
    """Return the points and their mirror images."""
    return np.concatenate([z, -z])


def _at_points(y: Array, mean: Array, variance: Array, z: Array) -> Array:
    """Average f_y − log Σ_k exp f_k over f = m + √v z at the points z [S, C]."""
    f = mean[:, None, :] + jnp.sqrt(variance)[:, None, :] * z[None]
    return _at(mean, y) - jnp.mean(jax.nn.logsumexp(f, axis=-1), axis=1)


def _at(values: Array, y: Array) -> Array:
    return jnp.take_along_axis(values, y.astype(jnp.int32)[:, None], axis=1)[:, 0]
