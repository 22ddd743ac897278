"""Gradients by a kernel's parameters of sums over all pairs of rows, tile by tile: nothing of N² numbers is made.

    d/dθ Σ_ij G_ij k(x_i, x_j)

The chain goes through the prepared rows: cotangents of `between` are added up over the tiles on and right of the diagonal, which stand
for their mirror images too; those of `prepare` are taken once for all rows, so that a network in a kernel is differentiated once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from stochgp.kernels.base import AbstractKernel
from stochgp.numerics.arrays import extended
from stochgp.numerics.precision import matmul
from stochgp.parameters import Frozen, partition, value_of

TILE = 256  # rows: intermediate values of a tile stay in a core's cache

Kernel = AbstractKernel | Frozen


def quadratic_gradient(
    kernel: Kernel,
    X: Float[Array, "N D"],
    U: Float[Array, "N S"],
    V: Float[Array, "N S"],
    *,
    tile: int = TILE,
) -> Any:
    """The gradient of Σ_s u_sᵀ K v_s by what trains in `kernel` (None elsewhere): O(N² (D + S)) time, memory for a few tiles."""
    theta, rest = partition(kernel)
    return _quadratic_gradient(theta, rest, X, U, V, equal_tiles(X.shape[0], tile))


class Tiles(NamedTuple):
    """Prepared rows, the last one repeated until they fill tiles of T."""

    leaves: PyTree  # [P, ...]
    tile: int

    def part(self, i: Array | int) -> PyTree:
        """The rows of tile i."""
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, i * self.tile, self.tile), self.leaves
        )


class Cotangents(NamedTuple):
    """Sums so far."""

    theta: Any  # by the kernel's parameters, of `between`
    rows: PyTree  # by the prepared rows [P, ...]


def equal_tiles(n_rows: int, most: int = TILE) -> int:
    """The height of equal tiles of at most `most` rows."""
    return -(-n_rows // -(-n_rows // most))


def prepared(kernel: Kernel, X: Float[Array, "N D"], tile: int) -> Tiles:
    """The rows as the kernel's `between` wants them."""
    rows = value_of(kernel).prepare(X, jax.lax.stop_gradient(jnp.mean(X, axis=0)))
    return Tiles(extended(rows, -X.shape[0] % tile), tile)


@eqx.filter_jit
def _quadratic_gradient(theta: Any, rest: Any, X: Array, U: Array, V: Array, tile: int) -> Any:
    rows = prepared(eqx.combine(theta, rest), X, tile)
    U, V = (jnp.pad(W, ((0, -X.shape[0] % tile), (0, 0))) for W in (U, V))

    def add(carry: Cotangents, i: Array) -> tuple[Cotangents, None]:
        u, v = Tiles(U, tile).part(i), Tiles(V, tile).part(i)

        def weights(j: Array) -> Array:
            here = matmul(u, Tiles(V, tile).part(j).T)
            return jnp.where(i == j, here, here + matmul(v, Tiles(U, tile).part(j).T))

        return _add_row(theta, rest, rows, i, weights, carry), None

    carry = jax.lax.scan(add, _nothing(theta, rows), jnp.arange(U.shape[0] // tile))[0]
    return _through_rows(theta, rest, X, carry)


def _nothing(theta: Any, rows: Tiles) -> Cotangents:
    return jax.tree.map(jnp.zeros_like, Cotangents(theta, eqx.filter(rows.leaves, eqx.is_inexact_array)))


def _add_row(
    theta: Any, rest: Any, rows: Tiles, i: Array, weights: Callable[[Array], Array], carry: Cotangents
) -> Cotangents:
    """The sums after the tiles (i, i), (i, i + 1), …; `weights(j)` is what tile (i, j) of K is summed with."""
    left, n_tiles = rows.part(i), jax.tree.leaves(rows.leaves)[0].shape[0] // rows.tile

    def between(theta: Any, left: PyTree, right: PyTree, fixed: tuple[PyTree, PyTree]) -> Array:
        kernel = value_of(eqx.combine(theta, rest))
        return kernel.between(eqx.combine(left, fixed[0]), eqx.combine(right, fixed[1]))

    left, fixed_left = eqx.partition(left, eqx.is_inexact_array)

    def add(j: Array, sums: tuple[Cotangents, PyTree]) -> tuple[Cotangents, PyTree]:
        right, fixed_right = eqx.partition(rows.part(j), eqx.is_inexact_array)
        _, pull = jax.vjp(lambda t, a, b: between(t, a, b, (fixed_left, fixed_right)), theta, left, right)
        by_theta, by_left, by_right = pull(weights(j))
        total, at_left = sums
        total = Cotangents(_sum(total.theta, by_theta), _put(total.rows, by_right, j, rows.tile))
        return total, _sum(at_left, by_left)

    carry, at_left = jax.lax.fori_loop(i, n_tiles, add, (carry, jax.tree.map(jnp.zeros_like, left)))
    return Cotangents(carry.theta, _put(carry.rows, at_left, i, rows.tile))


def _through_rows(theta: Any, rest: Any, X: Array, carry: Cotangents) -> Any:
    """The whole gradient: that of `between`, and that of the rows through `prepare`."""

    def rows(theta: Any) -> PyTree:
        made = value_of(eqx.combine(theta, rest)).prepare(X, jax.lax.stop_gradient(jnp.mean(X, axis=0)))
        return eqx.filter(made, eqx.is_inexact_array)

    _, pull = jax.vjp(rows, theta)
    (by_theta,) = pull(jax.tree.map(lambda leaf: leaf[: X.shape[0]], carry.rows))
    return _sum(carry.theta, by_theta)


def _put(total: PyTree, more: PyTree, i: Array, tile: int) -> PyTree:
    """`more` added to tile i."""

    def add(whole: Array, part: Array) -> Array:
        here = jax.lax.dynamic_slice_in_dim(whole, i * tile, tile)
        return jax.lax.dynamic_update_slice_in_dim(whole, here + part, i * tile, 0)

    return jax.tree.map(add, total, more)


def _sum(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)
