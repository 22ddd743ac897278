"""K + Σ as products with blocks of its rows, tile by tile; a full matrix only on request.

The rows may be spread over the G devices of a mesh. A product with all of A then sends (G − 1)/G of N (D + 1 + S) numbers to a device. A product
with B rows adds up the devices' parts of B S numbers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from stochgp.devices import AXIS, SPREAD, TILE, WHOLE, on_all, spread
from stochgp.kernels import AbstractKernel
from stochgp.numerics.arrays import extended
from stochgp.numerics.precision import einsum, matmul
from stochgp.operators.blocks import BLOCK, Read, as_it_is, filled, following
from stochgp.parameters import Frozen, cast, value_of


class KernelOperator(eqx.Module):
    """The matrix A = K + Σ with K = k(X, X) [N, N] and Σ = diag(noise). Made by `of`.

    Right-hand sides V are [P, S]: N rows and P − N rows of zeros; `pad` and `unpad` convert. Arrays [P, ...] are placed like the rows: read and change
    some of their rows only by `slice`, `pick`, `add_slice` and `add`. In products V may be a tree of arrays [P, ...], from which `read` makes [T, S].
    Products take columns in tiles of T, so that one tile is in memory beside V.

    Parameters
    ----------
    kernel, centre, rows : AbstractKernel, array [D], tree of arrays [P, ...]
        k, the mean of the rows, and X as `kernel.prepare` returns it; rows after N repeat the last one.
    noise, kept : array [P], array [C, P] or None
        diag(Σ), 1 after N, and the first rows of K, which products with blocks inside them read instead of evaluating the kernel.
    size, tile, keep_rows : int
        N; T, which divides the columns of each device; the number of rows of K that a solver may keep, in its own order.
    inputs : array [N, D], optional
        X, for products with features of it, [P, D] on a mesh; None once the rows are reordered.
    mesh, axis : Mesh, str, optional
        The devices over which the rows are spread in equal parts, None = one device; inside `jax.shard_map` the mesh axis along which sums vary, where
        the operator is one device's share of the columns.
    """

    kernel: AbstractKernel
    centre: Float[Array, " D"]
    rows: PyTree
    noise: Float[Array, " P"]
    kept: Float[Array, "C P"] | None
    size: int = eqx.field(static=True)
    tile: int = eqx.field(static=True)
    keep_rows: int = eqx.field(static=True, default=0)
    inputs: Float[Array, "N D"] | None = None
    mesh: Mesh | None = eqx.field(static=True, default=None)
    axis: str | None = eqx.field(static=True, default=None)

    @classmethod
    def of(
        cls,
        kernel: AbstractKernel | Frozen,
        X: Float[Array, "N D"],
        noise_variance: Float[Array, "..."] | float,
        *,
        tile: int = TILE,
        keep_rows: int = 0,
        mesh: Mesh | None = None,
    ) -> "KernelOperator":
        """Return the operator of rows X; `noise_variance` is one variance or one per row [N].

        Raises ValueError for another shape of the noise, and for no rows.
        """
        N, noise = X.shape[0], jnp.asarray(noise_variance, X.dtype)
        if N == 0 or noise.shape not in ((), (N,)):
            raise ValueError(
                f"expected rows X [N, D] with N > 0 and one noise variance or [N] of them, got {X.shape} and {noise.shape}"
            )
        plain: AbstractKernel = value_of(kernel)
        n_parts, centre = 1 if mesh is None else mesh.size, jnp.mean(X, axis=0)
        each = -(-N // n_parts)
        n_tiles = -(-each // tile)
        tile = -(-each // n_tiles)
        missing = n_parts * n_tiles * tile - N
        rows = extended(plain.prepare(X, centre), missing)
        noise = jnp.pad(jnp.broadcast_to(noise, (N,)), (0, missing), constant_values=1)
        if mesh is not None:
            rows, noise, X = spread((rows, noise, extended(X, missing)), mesh)
            plain, centre = on_all((plain, centre), mesh)
        return cls(plain, centre, rows, noise, None, N, tile, keep_rows, X, mesh)

    @property
    def padded(self) -> int:
        """P."""
        return self.noise.shape[0]

    @property
    def dtype(self) -> Any:
        return self.noise.dtype

    # Placement and rows of arrays

    def placed(self, array: Array, axis: int | None = 0) -> Array:
        """Place an array with P at `axis` like the operator's rows; None = whole on every device."""
        if self.mesh is None:
            return array
        return on_all(array, self.mesh) if axis is None else spread(array, self.mesh, axis)

    def _constrained(self, array: Array, spec: P = SPREAD) -> Array:
        """Constrain the placement in traced code: rows spread like the operator's, or whole."""
        if self.mesh is None:
            return array
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))

    def pad(self, V: Float[Array, "N S"]) -> Float[Array, "P S"]:
        """Return V with rows of zeros up to P, placed like the operator's rows."""
        return self._constrained(jnp.pad(V, ((0, self.padded - self.size), (0, 0))))

    def unpad(self, V: Float[Array, "P S"]) -> Float[Array, "N S"]:
        """Return the rows up to N, on every device."""
        return self._constrained(V, WHOLE)[: self.size]

    def cleared(self, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
        """Return V with zeros in the rows after N."""
        return jnp.where(jnp.arange(self.padded)[:, None] < self.size, V, jnp.zeros_like(V))

    def pick(self, tree: PyTree, indices: Int[Array, " B"]) -> PyTree:
        """Return the rows of these indices of every array [P, ...]."""
        if self.mesh is None:
            return jax.tree.map(lambda leaf: leaf[indices], tree)

        def of_shard(own: KernelOperator, tree: PyTree, indices: Array) -> PyTree:
            place, mine = own.places(indices)
            rows = jax.tree.map(lambda leaf: leaf[jnp.clip(place, 0, own.padded - 1)], tree)
            is_mine = lambda leaf: mine.reshape(-1, *[1] * (leaf.ndim - 1))
            return own.total(jax.tree.map(lambda leaf: jnp.where(is_mine(leaf), leaf, 0), rows))

        return self.on_shards(of_shard, (SPREAD, WHOLE), WHOLE, tree, indices)

    def add(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], indices: Int[Array, " B"]
    ) -> Float[Array, "P S"]:
        """Return the array with `change` added to these rows; repeated indices add up."""
        if self.mesh is None:
            return array.at[indices].add(change)

        def to_shard(own: KernelOperator, array: Array, change: Array, indices: Array) -> Array:
            place, mine = own.places(indices)
            return array.at[jnp.where(mine, place, own.padded)].add(change, mode="drop")

        return self.on_shards(to_shard, (SPREAD, WHOLE, WHOLE), SPREAD, array, change, indices)

    def slice(self, tree: PyTree, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        """Return the rows start … start + n_rows − 1 of every array [P, ...]."""
        if self.mesh is None:
            return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, n_rows), tree)
        return self.pick(tree, following(start, n_rows))

    def add_slice(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], start: Int[Array, ""] | int
    ) -> Float[Array, "P S"]:
        """Return the array with `change` added to its rows start … start + B − 1."""
        if self.mesh is not None:
            return self.add(array, change, following(start, change.shape[0]))
        changed = jax.lax.dynamic_slice_in_dim(array, start, change.shape[0]) + change
        return jax.lax.dynamic_update_slice_in_dim(array, changed, start, 0)

    def block(self, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        """Return the prepared rows start … start + n_rows − 1."""
        return self.slice(self.rows, start, n_rows)

    def take(self, indices: Int[Array, " B"]) -> PyTree:
        """Return the prepared rows of these indices."""
        return self.pick(self.rows, indices)

    def prepare(self, Z: Float[Array, "M D"]) -> PyTree:
        """Prepare other rows for products with these."""
        return self.kernel.prepare(Z, self.centre)

    # Products

    def times(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """Return k(rows, X) V, in one pass on a GPU if `fused` supports it, or tile by tile."""
        part = lambda own, rows, V: own.total(own.part_times(rows, V, read))
        return self.on_shards(part, (WHOLE, SPREAD), WHOLE, rows, V)

    def part_times(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """Return `times` for the columns of this device alone."""
        return _fused_times(self, rows, read(V)) if self._is_fused(V, read) else self.by_tiles(rows, V, read)

    def by_tiles(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """Return `part_times` by tiles of K, one after the other."""
        tiles = self._tiles(V)
        product = lambda item: matmul(self.kernel.between(rows, item[0]), read(item[1]))
        first = jax.tree.map(lambda leaf: leaf[0], tiles)
        if self.tile == self.padded:
            return product(first)
        out = jax.eval_shape(product, first)
        add = lambda total, item: (total + product(item), None)
        return jax.lax.scan(add, self.zeros(out.shape, out.dtype), tiles)[0]

    def own_times(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "S R"]:
        """Return k(rows_s, X) V_s for each s, with R rows of `rows` [S R, ...] per column in turn.

        Derivatives evaluate a tile again instead of keeping it.
        """
        S = V.shape[1]
        R = jax.tree.leaves(rows)[0].shape[0] // S

        def part(own: KernelOperator, rows: PyTree, V: Array) -> Array:
            @jax.checkpoint  # pyright: ignore[reportPrivateImportUsage]
            def add(total: Array, item: PyTree) -> tuple[Array, None]:
                columns, v = item
                K = own.kernel.between(rows, columns).reshape(S, R, own.tile)
                return total + einsum("srt,ts->sr", K, v), None

            return own.total(jax.lax.scan(add, own.zeros((S, R), own.dtype), own._tiles(V))[0])

        return self.on_shards(part, (WHOLE, SPREAD), WHOLE, rows, V)

    def _tiles(self, V: PyTree) -> PyTree:
        """Return the prepared rows and V with the axes [tiles, T] instead of [P]."""
        shape = self.padded // self.tile, self.tile
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), (self.rows, V))

    def _is_fused(self, V: PyTree, read: Read) -> bool:
        """Return True if products use `fused`: not on a mesh, and if JAX can compile it."""
        if jax.default_backend() != "gpu" or self.axis is not None or self.mesh is not None:
            return False
        try:
            from stochgp.operators import fused
        except ImportError:
            return False
        return fused.serves(self.kernel.radial, self.rows, jax.eval_shape(read, V))

    def block_times(
        self, start: Int[Array, ""] | int, n_rows: int, V: PyTree, read: Read = as_it_is
    ) -> Float[Array, "B S"]:
        """Return K V for the rows start … start + n_rows − 1, from the kept rows if possible."""
        evaluate = lambda: self.times(self.block(start, n_rows), V, read)
        kept = self.kept
        if kept is None or kept.shape[0] < n_rows:
            return evaluate()
        # gathered: XLA copies a slice on one thread
        look_up = lambda: matmul(kept[following(start, n_rows)], read(V))
        if kept.shape[0] == self.padded:
            return look_up()
        return jax.lax.cond(jnp.asarray(start) + n_rows <= kept.shape[0], look_up, evaluate)

    def rows_times(self, indices: Int[Array, " B"], V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """Return K V for any rows; from the kept rows if all are kept."""
        if self.kept is not None and self.kept.shape[0] >= self.size:
            return matmul(self.kept[indices], read(V))
        return self.times(self.take(indices), V, read)

    def matvec(
        self, V: Float[Array, "P S"], n_rows: int = BLOCK, read: Read = as_it_is
    ) -> Float[Array, "P S"]:
        """Return A V in V's dtype, in blocks of `n_rows` rows or at once; rows after N are 0."""
        if self.mesh is not None:
            own = lambda shard, V: _own_rows(shard, V, n_rows, read)
            KV = self.cleared(self.on_shards(own, (SPREAD,), SPREAD, V))
            return KV + self.noise[:, None] * V
        at_once = self.kept is None and self._is_fused(V, read)
        n_rows = self.size if at_once else min(n_rows, self.size)
        product = lambda start: self.block_times(start, n_rows, V, read).astype(V.dtype)
        return filled(jnp.zeros_like(V), self.size, n_rows, product) + self.noise[:, None] * V

    def features_times(
        self, features: Callable[[Array], Float[Array, "N M"]], V: Float[Array, "P S"]
    ) -> Float[Array, "P S"]:
        """Return Φ Φᵀ V for Φ = features(X). Raises ValueError for an operator without inputs."""
        if self.inputs is None:
            raise ValueError("features need an operator that knows its inputs")
        Phi = features(self.inputs)
        Phi = self.pad(Phi) if len(Phi) == self.size else self.cleared(self._constrained(Phi))
        return self._constrained(matmul(Phi, matmul(Phi.T, V)))

    # Parts of the matrix

    def matrix_rows(self, indices: Int[Array, " B"]) -> Float[Array, "B P"]:
        """Return rows of K, spread by columns; entries after N are arbitrary."""
        if self.kept is not None and self.kept.shape[0] >= self.size:
            return self.kept[indices]
        part = lambda own, rows: own.kernel.between(rows, own.rows)
        return self.on_shards(part, (WHOLE,), P(None, AXIS), self.take(indices))

    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        """Return columns of K, without Σ."""
        part = lambda own, rows: own.kernel.between(own.rows, rows)
        return self.on_shards(part, (WHOLE,), SPREAD, self.take(indices))[: self.size]

    def diagonal(self) -> Float[Array, " N"]:
        """Return diag(A)."""

        def of_row(kernel: AbstractKernel, row: PyTree) -> Array:
            one = jax.tree.map(lambda leaf: leaf[None], row)
            return kernel.between(one, one)[0, 0]

        part = lambda own: jax.vmap(lambda row: of_row(own.kernel, row))(own.rows)
        return (self.on_shards(part, (), SPREAD) + self.noise)[: self.size]

    def dense(self) -> Float[Array, "N N"]:
        """Return A as a matrix of N² numbers."""
        here = self.block(0, self.size)
        return self.kernel.between(here, here) + jnp.diag(self.noise[: self.size])

    # Other forms of the same operator

    def reordered(self, order: Int[Array, " N"]) -> "KernelOperator":
        """Return the operator with rows in another order, without kept rows."""
        order = extended(order, self.padded - self.size)
        rows, noise = jax.tree.map(lambda leaf: self._constrained(leaf[order]), (self.rows, self.noise))
        noise = jnp.where(jnp.arange(self.padded) < self.size, noise, jnp.ones_like(noise))
        return dataclasses.replace(self, rows=rows, noise=noise, kept=None, inputs=None)

    def keeping(self, n_rows: int | None = None) -> "KernelOperator":
        """Return the operator with the first rows of K kept, n_rows · P numbers; none on a mesh.

        n_rows None = `keep_rows`; at most P.
        """
        n_rows = min(self.keep_rows if n_rows is None else n_rows, self.padded)
        kept = _evaluate_rows(self, n_rows) if n_rows and self.mesh is None else None
        return dataclasses.replace(self, kept=kept)

    def astype(self, dtype: DTypeLike) -> "KernelOperator":
        """Return the same numbers in another dtype, without kept rows."""
        return cast(self.keeping(0), dtype)

    # On a mesh

    def on_shards(self, function: Callable, taken: tuple[P, ...], given: P, *arguments: Any) -> Any:
        """Call function(own, *arguments) on every device, `own` its part of the operator.

        `taken` and `given` specify if arguments and results are spread over devices or whole. One device has the whole operator.
        """
        if self.mesh is None:
            return function(self, *arguments)
        numbers, rest = eqx.partition(self.kernel, eqx.is_array)

        def on_shard(numbers: Any, centre: Array, rows: PyTree, noise: Array, *arguments: Any) -> Any:
            kernel, each = eqx.combine(numbers, rest), noise.shape[0]
            own = KernelOperator(kernel, centre, rows, noise, None, each, self.tile, axis=AXIS)
            return function(own, *arguments)

        specs = (WHOLE, WHOLE, SPREAD, SPREAD, *taken)
        mapped = jax.shard_map(on_shard, mesh=self.mesh, in_specs=specs, out_specs=given)
        return mapped(numbers, self.centre, self.rows, self.noise, *arguments)

    def total(self, part: PyTree) -> PyTree:
        """Return the sum of all parts."""
        return part if self.axis is None else jax.lax.psum(part, self.axis)

    def places(self, indices: Int[Array, " B"]) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
        """Return the rows' positions in this device's part of an array, and a mask of its rows."""
        place = indices - jax.lax.axis_index(AXIS) * self.padded
        return place, (place >= 0) & (place < self.padded)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return zeros, the start of a sum of products."""
        zeros = jnp.zeros(shape, dtype)
        return zeros if self.axis is None else jax.lax.pcast(zeros, self.axis, to="varying")


def _own_rows(own: KernelOperator, V: Float[Array, "R S"], n_rows: int, read: Read) -> Float[Array, "R S"]:
    """Return this device's rows of K V, `n_rows` at a time, after gathering all rows and V."""
    columns, wanted = jax.lax.all_gather((own.rows, V), AXIS, tiled=True)
    C, R = wanted.shape[0], V.shape[0]
    n_rows = min(n_rows, R)
    by_columns = dataclasses.replace(own, rows=columns, noise=jnp.ones(C, own.dtype), size=C)
    product = lambda start: by_columns.part_times(own.block(start, n_rows), wanted, read)
    out = own.zeros(V.shape, jax.eval_shape(read, wanted).dtype)
    return filled(out, R, n_rows, product).astype(V.dtype)


@eqx.filter_custom_jvp
def _fused_times(operator: KernelOperator, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "B S"]:
    """Return k(rows, X) V by one program on a GPU, else by tiles; derivatives are by tiles."""
    from stochgp.operators import fused

    kernel, columns = operator.kernel.radial, operator.rows
    fused_ = lambda rows, V: fused.product(kernel, rows, columns, V)
    by_tiles = lambda rows, V: operator.by_tiles(rows, V)  # a method of traced arrays has no hash
    return jax.lax.platform_dependent(rows, V, cuda=fused_, default=by_tiles)


@_fused_times.def_jvp
def _fused_times_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    by_tiles = lambda operator, rows, V: operator.by_tiles(rows, V)
    return eqx.filter_jvp(by_tiles, primals, tangents)


@eqx.filter_jit
def _evaluate_rows(operator: KernelOperator, n_rows: int) -> Float[Array, "C P"]:
    """Return the first rows of K, filled in place block by block."""
    n_block = min(BLOCK, n_rows)
    rows = lambda start: operator.kernel.between(operator.block(start, n_block), operator.rows)
    return filled(jnp.zeros((n_rows, operator.padded), operator.dtype), n_rows, n_block, rows)
