"""Three ways to multiply by K where its rows and those of V are spread over G devices. Each sends (G − 1)/G of N (D + 1 + S) numbers to a device."""

import abc
import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from stochgp.devices import AXIS
from stochgp.operators.base import filled
from stochgp.operators.kernel import KernelOperator


class AbstractProduct(eqx.Module):
    """How the rows of K V that a device has are computed."""

    @abc.abstractmethod
    def __call__(
        self, shard: KernelOperator, V: Float[Array, "R S"], n_rows: int, n_devices: int
    ) -> Float[Array, "R S"]:
        """Inside `jax.shard_map`: `shard` and V are the device's own R rows. The kernel is evaluated for `n_rows` rows at a time."""


class Gather(AbstractProduct):
    """All rows and all of V come to every device first: the fewest messages, and memory for N (D + 1 + S) numbers."""

    def __call__(
        self, shard: KernelOperator, V: Float[Array, "R S"], n_rows: int, n_devices: int
    ) -> Float[Array, "R S"]:
        columns, V = jax.lax.all_gather((shard.rows, V), AXIS, tiled=True)
        return _by_blocks(shard, shard.rows, columns, V, n_rows)


class Ring(AbstractProduct):
    """Rows and V travel from device to device, while those that came last are multiplied: memory for two shards of them."""

    def __call__(
        self, shard: KernelOperator, V: Float[Array, "R S"], n_rows: int, n_devices: int
    ) -> Float[Array, "R S"]:
        onward = [(i, (i + 1) % n_devices) for i in range(n_devices)]

        def turn(carry: tuple[PyTree, Array, Array], _: None) -> tuple[tuple[PyTree, Array, Array], None]:
            columns, V, total = carry
            arriving = jax.lax.ppermute((columns, V), AXIS, onward)
            return (*arriving, total + _by_blocks(shard, shard.rows, columns, V, n_rows)), None

        first = (shard.rows, V, shard.zeros(V.shape, V.dtype))
        (columns, V, total), _ = jax.lax.scan(turn, first, None, length=n_devices - 1)
        return total + _by_blocks(shard, shard.rows, columns, V, n_rows)


class Scatter(AbstractProduct):
    """All rows come to every device, which multiplies those by its own part of V; the parts are added up where they belong."""

    def __call__(
        self, shard: KernelOperator, V: Float[Array, "R S"], n_rows: int, n_devices: int
    ) -> Float[Array, "R S"]:
        rows = jax.lax.all_gather(shard.rows, AXIS, tiled=True)
        parts = _by_blocks(shard, rows, shard.rows, V, n_rows)
        return jax.lax.psum_scatter(parts, AXIS, scatter_dimension=0, tiled=True)


def _by_blocks(
    shard: KernelOperator, rows: PyTree, columns: PyTree, V: Float[Array, "C S"], n_rows: int
) -> Float[Array, "R S"]:
    """k(rows, columns) V, `n_rows` rows at a time."""
    R, C = (jax.tree.leaves(tree)[0].shape[0] for tree in (rows, columns))
    n_rows = min(n_rows, R)
    noise = jnp.ones(C, shard.dtype)
    by_columns = dataclasses.replace(shard, rows=columns, noise=noise, size=C)
    product = lambda start: by_columns.times(shard.slice(rows, start, n_rows), V)
    return filled(shard.zeros((R, V.shape[1]), V.dtype), R, n_rows, product)
