"""Blocks of K, and gradients of sums over them, in the memory of the host: for direct solves.

Everything is computed in tiles of 256 × 256 rows by two programs, which know nothing of how many rows there are: sets of any size share them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stochgp.kernels.base import AbstractKernel
from stochgp.numerics.arrays import filled_up
from stochgp.numerics.linalg import NEGLIGIBLE
from stochgp.parameters import Frozen, partition, value_of

TILE = 256  # rows: intermediate values of a tile stay in a core's cache

Kernel = AbstractKernel | Frozen
Matrix = Float[np.ndarray, "N D"]


def block(
    kernel: Kernel, X: Matrix, Z: Float[np.ndarray, "M D"], centre: Any = None
) -> Float[np.ndarray, "N M"]:
    """k(X, Z) in the dtype of X. `centre` [D] is where distances are measured from: None = the mean of Z."""
    centre = np.mean(Z, axis=0, dtype=np.float64).astype(X.dtype) if centre is None else centre
    K = np.empty((len(X), len(Z)), X.dtype)
    for i, x in _tiles(X):
        for j, z in _tiles(Z):
            height, width = K[i : i + TILE, j : j + TILE].shape
            K[i : i + TILE, j : j + TILE] = np.asarray(_tile(kernel, x, z, centre))[:height, :width]
    return K


def upper(kernel: Kernel, X: Matrix, dtype: DTypeLike) -> Float[np.ndarray, "N N"]:
    """k(X, X) on and right of its diagonal, evaluated in the dtype of X and stored in `dtype`.

    What is left of the tiles on the diagonal is not filled. In float32, negligible entries are 0.
    """
    N, centre, dtype = len(X), np.mean(X, axis=0), np.dtype(dtype)
    K, least = np.empty((N, N), dtype), 0.0
    tiles = list(_tiles(X))
    for i, x in tiles:
        for j, z in tiles[i // TILE :]:
            part = np.asarray(_tile(kernel, x, z, centre))[: N - i, : N - j]
            if dtype == np.float32:
                least = NEGLIGIBLE * float(np.abs(part).max()) if j == 0 else least
                part = np.where(np.abs(part) < least, 0, part)
            K[i : i + TILE, j : j + TILE] = part
    return K


def gradient(kernel: Kernel, X: Matrix, G: Float[np.ndarray, "N N"]) -> Any:
    """The gradient of Σ_ij G_ij k(x_i, x_j) by what trains in `kernel` (None elsewhere), in the dtype of X.

    G is symmetric; what is left of its diagonal is not read.
    """
    theta, rest = partition(kernel)
    centre = np.mean(X, axis=0)
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), theta)
    tiles = list(_tiles(X))
    for i, x in tiles:
        for j, z in tiles[i // TILE :]:
            part = G[i : i + TILE, j : j + TILE]
            weights = np.zeros((TILE, TILE), X.dtype)
            doubled = 2 * np.triu(part, 1) + np.diag(np.diagonal(part)) if i == j else 2 * part
            weights[: len(part), : part.shape[1]] = doubled
            total = _add_pull(theta, rest, x, z, centre, weights, total)
    return total


def slopes(
    kernel: Kernel, X: Matrix, Z: Float[np.ndarray, "M D"], alpha: Float[np.ndarray, " M"]
) -> Float[np.ndarray, "N D"]:
    """∂/∂x Σ_j α_j k(x, z_j) at each row of X, in its dtype: the slopes of a posterior mean. A kink of k at distance 0 counts as flat."""
    centre, found = np.mean(Z, axis=0), np.zeros(X.shape, X.dtype)
    for i, x in _tiles(X):
        for j, z in _tiles(Z):
            weights = np.zeros(TILE, X.dtype)
            weights[: len(alpha) - j] = alpha[j : j + TILE]
            found[i : i + TILE] += np.asarray(_slope(kernel, x, z, centre, weights))[: len(X) - i]
    return found


def _tiles(X: Matrix) -> Any:
    """(first row, rows filled up to TILE by repeating the last one) of each tile."""
    for start in range(0, len(X), TILE):
        yield start, filled_up(X[start : start + TILE], TILE)


@eqx.filter_jit
def _tile(kernel: Any, x: Any, z: Any, centre: Any) -> Array:
    plain = value_of(kernel)
    return plain.between(plain.prepare(x, centre), plain.prepare(z, centre))


@eqx.filter_jit
def _slope(kernel: Any, x: Any, z: Any, centre: Any, weights: Any) -> Array:
    return jax.grad(lambda x: jnp.sum(_tile(kernel, x, z, centre) * weights[None, :]))(x)


@eqx.filter_jit
def _add_pull(theta: Any, rest: Any, x: Any, z: Any, centre: Any, weights: Any, total: Any) -> Any:
    """The sums so far and this tile's."""
    by_theta = jax.grad(lambda t: jnp.sum(weights * _tile(eqx.combine(t, rest), x, z, centre)))(theta)
    return jax.tree.map(jnp.add, total, by_theta)
