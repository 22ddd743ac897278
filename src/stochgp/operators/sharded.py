"""K + Σ with its rows, and those of all vectors, spread over G devices.

A product with all of A sends (G − 1)/G of N (D + 1 + S) numbers to a device.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, PyTree

from stochgp.devices import AXIS, Devices
from stochgp.kernels import AbstractKernel
from stochgp.numerics.arrays import extended
from stochgp.operators.base import BLOCK, AbstractOperator, Read, as_it_is, filled
from stochgp.operators.kernel import TILE, KernelOperator
from stochgp.parameters import Frozen

SPREAD, WHOLE = P(AXIS), P()


class ShardedOperator(AbstractOperator):
    """A = K + Σ with P/G rows on each of G devices, P the least multiple of G tiles that is at least N. Made by `ShardedOperator.of`.

    Vectors [P, S] lie as the rows do. In a product with B rows every device computes the part of its own columns, and the parts are added up: B S numbers
    are sent. `slice` and `pick` add up the devices' parts of the rows; `add_slice` and `add` send nothing. The compiler divides elementwise operations and
    sums over rows.

    Parameters
    ----------
    kernel, centre, rows, noise, kept, size, tile, keep_rows : as of `KernelOperator`
        The first two on every device, the next two spread; no rows of K are kept, and `tile` divides P/G.
    inputs : array [P, D], optional
        X and repetitions of its last row, spread over the devices; None once the rows are reordered.
    devices : Devices
        The G devices, with their mesh.
    """

    kernel: AbstractKernel
    centre: Float[Array, " D"]
    rows: PyTree
    noise: Float[Array, " P"]
    kept: None
    size: int = eqx.field(static=True)
    tile: int = eqx.field(static=True)
    keep_rows: int = eqx.field(static=True)
    inputs: Float[Array, "P D"] | None
    devices: Devices = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        kernel: AbstractKernel | Frozen,
        X: Float[Array, "N D"],
        noise_variance: Float[Array, "..."] | float,
        devices: Devices,
        *,
        tile: int = TILE,
        keep_rows: int = 0,
    ) -> "ShardedOperator":
        """As `KernelOperator.of`, spread over these devices. Raises ValueError as that does, and for `Devices()`, which have no mesh."""
        if devices.mesh is None:
            raise ValueError(
                "devices have no mesh; give Devices.of(a number or a list), or use KernelOperator"
            )
        N = X.shape[0]
        plain = KernelOperator.of(kernel, X, noise_variance, tile=max(N, 1), keep_rows=keep_rows)
        each = -(-N // devices.count)
        n_tiles = -(-each // tile)
        tile = -(-each // n_tiles)
        missing = devices.count * n_tiles * tile - N
        rows, inputs = devices.place(extended((plain.rows, X), missing))
        noise = devices.place(jnp.pad(plain.noise, (0, missing), constant_values=1))
        alike, centre = devices.replicate((plain.kernel, plain.centre))
        return cls(alike, centre, rows, noise, None, N, tile, keep_rows, inputs, devices)

    @property
    def n_devices(self) -> int:
        return self.devices.count

    def placed(self, array: Array, axis: int | None = 0) -> Array:
        return self.devices.replicate(array) if axis is None else self.devices.place(array, axis)

    def _constrained(self, array: Array, spread: bool = True) -> Array:
        mesh: Any = self.devices.mesh
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, SPREAD if spread else WHOLE))

    def pick(self, tree: PyTree, indices: Int[Array, " B"]) -> PyTree:
        def of_shard(tree: PyTree, indices: Array) -> PyTree:
            return jax.tree.map(lambda leaf: jax.lax.psum(_own_rows(leaf, indices), AXIS), tree)

        return self._mapped(of_shard, (SPREAD, WHOLE), WHOLE)(tree, indices)

    def add(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], indices: Int[Array, " B"]
    ) -> Float[Array, "P S"]:
        def to_shard(array: Array, change: Array, indices: Array) -> Array:
            place, mine = _places(array.shape[0], indices)
            return array.at[jnp.where(mine, place, array.shape[0])].add(change, mode="drop")

        return self._mapped(to_shard, (SPREAD, WHOLE, WHOLE), SPREAD)(array, change, indices)

    def times(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        part = lambda shard, rows, V: jax.lax.psum(shard.times(rows, V, read), AXIS)
        return self._on_shards(part, (WHOLE, SPREAD), WHOLE)(rows, V)

    def own_times(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "S R"]:
        part = lambda shard, rows, V: jax.lax.psum(shard.own_times(rows, V), AXIS)
        return self._on_shards(part, (WHOLE, SPREAD), WHOLE)(rows, V)

    def matvec(
        self, V: Float[Array, "P S"], n_rows: int = BLOCK, read: Read = as_it_is
    ) -> Float[Array, "P S"]:
        def own_rows(shard: KernelOperator, own: Array) -> Array:
            columns, V = jax.lax.all_gather((shard.rows, own), AXIS, tiled=True)
            KV = _by_blocks(shard, columns, V, n_rows, read).astype(own.dtype)
            each = own.shape[0]
            inside = jax.lax.axis_index(AXIS) * each + jnp.arange(each) < self.size  # no padding
            return jnp.where(inside[:, None], KV, jnp.zeros_like(KV)) + shard.noise[:, None] * own

        return self._on_shards(own_rows, (SPREAD,), SPREAD)(V)

    def matrix_rows(self, indices: Int[Array, " B"]) -> Float[Array, "B P"]:
        """Spread by columns."""
        part = lambda shard, rows: shard.kernel.between(rows, shard.rows)
        return self._on_shards(part, (WHOLE,), P(None, AXIS))(self.take(indices))

    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        part = lambda shard, rows: shard.kernel.between(shard.rows, rows)
        return self._on_shards(part, (WHOLE,), SPREAD)(self.take(indices))[: self.size]

    def diagonal(self) -> Float[Array, " N"]:
        return (self._on_shards(lambda shard: shard.variances(), (), SPREAD)() + self.noise)[: self.size]

    def keeping(self, n_rows: int | None = None) -> "ShardedOperator":
        """Itself: it keeps none."""
        return self

    def _mapped(self, function: Callable, taken: tuple, given: P) -> Callable:
        return jax.shard_map(function, mesh=self.devices.mesh, in_specs=taken, out_specs=given)

    def _on_shards(self, function: Callable, taken: tuple, given: P) -> Callable:
        """function(shard, *arguments) on every device, with its own part of the operator."""
        numbers, rest = eqx.partition(self.kernel, eqx.is_array)

        def on_shard(numbers: Any, centre: Array, rows: PyTree, noise: Array, *arguments: Any) -> Any:
            kernel, each = eqx.combine(numbers, rest), noise.shape[0]
            shard = KernelOperator(kernel, centre, rows, noise, None, each, self.tile, axis=AXIS)
            return function(shard, *arguments)

        mapped = self._mapped(on_shard, (WHOLE, WHOLE, SPREAD, SPREAD, *taken), given)
        return lambda *arguments: mapped(numbers, self.centre, self.rows, self.noise, *arguments)


def _by_blocks(
    shard: KernelOperator, columns: PyTree, V: Float[Array, "C S"], n_rows: int, read: Read
) -> Float[Array, "R S"]:
    """k(rows of the shard, columns) read(V), `n_rows` rows at a time."""
    R, C = (jax.tree.leaves(tree)[0].shape[0] for tree in (shard.rows, columns))
    n_rows = min(n_rows, R)
    by_columns = dataclasses.replace(shard, rows=columns, noise=jnp.ones(C, shard.dtype), size=C)
    product = lambda start: by_columns.times(shard.block(start, n_rows), V, read)
    return filled(shard.zeros((R, V.shape[1]), jax.eval_shape(read, V).dtype), R, n_rows, product)


def _places(each: int, indices: Int[Array, " B"]) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
    """(Positions of these rows in a shard of `each` rows, whether they are there)."""
    place = indices - jax.lax.axis_index(AXIS) * each
    return place, (place >= 0) & (place < each)


def _own_rows(leaf: Array, indices: Int[Array, " B"]) -> Array:
    """The rows of these indices that this device has, 0 for the others."""
    place, mine = _places(leaf.shape[0], indices)
    rows = leaf[jnp.clip(place, 0, leaf.shape[0] - 1)]
    return jnp.where(mine.reshape(-1, *[1] * (leaf.ndim - 1)), rows, jnp.zeros_like(rows))
