"""A small system A α = b, A = K + Σ with a noise variance per row, as NumPy and as stochgp see it."""

import jax
import jax.numpy as jnp
import numpy as np

from stochgp import kernels
from stochgp.operators import KernelOperator

N, D, S, TILE = 40, 2, 2, 14  # three tiles, the last one padded by two rows
LENGTHSCALE, VARIANCE = 0.8, 1.3
_generator = np.random.default_rng(0)
X = _generator.uniform(0, 12, size=(N, D))
B = np.stack([np.sin(X[:, 0]), _generator.normal(size=N)], axis=1)
NOISE = _generator.uniform(0.2, 0.6, size=N)
with jax.enable_x64(True):  # parameters given as numbers would be rounded to float32
    KERNEL = kernels.Matern32(lengthscale=jnp.asarray(LENGTHSCALE), variance=jnp.asarray(VARIANCE))


def matern32(rows=X, columns=X):
    """k(x, z) = v (1 + √3 r) exp(−√3 r), r = ‖x − z‖/ℓ, one pair after the other."""
    K = np.empty((len(rows), len(columns)))
    for i, x in enumerate(rows):
        for j, z in enumerate(columns):
            a = np.sqrt(3 * np.sum((x - z) ** 2)) / LENGTHSCALE
            K[i, j] = VARIANCE * (1 + a) * np.exp(-a)
    return K


K = matern32()
A = K + np.diag(NOISE)
EXACT = np.linalg.solve(A, B)


def operator(dtype=jnp.float32, rows=X, noise=NOISE, tile=TILE, **settings):
    with jax.enable_x64(True):
        return KernelOperator.of(
            KERNEL, jnp.asarray(rows, dtype), jnp.asarray(noise, dtype), tile=tile, **settings
        )


def cancelling(size=1e6):
    """(Rows that come twice, values [N, 3] of them in float32 that are opposite but for 1 in `size`): products are 1/size of the sum of their terms."""
    opposite = size * _generator.normal(size=(N // 2, 3))
    values = np.concatenate([opposite, -opposite]) + _generator.normal(size=(N, 3))
    return np.concatenate([X[::2], X[::2]]), values.astype(np.float32)


def residuals(alpha, b=B, A=A):
    """‖b − Aα‖ / ‖b‖ of each column, in float64."""
    return np.linalg.norm(b - A @ np.asarray(alpha, np.float64), axis=0) / np.linalg.norm(b, axis=0)
