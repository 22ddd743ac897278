"""K + Σ on one device, as products with blocks of its rows, tile by tile; never as a whole unless requested."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from stochgp.kernels import AbstractKernel
from stochgp.numerics.arrays import extended
from stochgp.numerics.precision import einsum, matmul
from stochgp.operators.base import BLOCK, AbstractOperator, Read, as_it_is, filled, following
from stochgp.parameters import Frozen, value_of

TILE = 2048  # most columns of a tile on a CPU: from 512 to 8,192 products in float32 take equally long
GPU_TILE = 131_072  # on a GPU: products of few inputs are 1.1 to 1.6 times as fast as with `TILE` on an H100


def default_tile() -> int:
    """The most columns of a tile on JAX's default device."""
    return TILE if jax.default_backend() == "cpu" else GPU_TILE


class KernelOperator(AbstractOperator):
    """A = K + Σ with all rows on one device; rows after N fill the last tile. Made by `KernelOperator.of`.

    Products take columns in P/T tiles of T, so that one tile is held beside V.

    Parameters
    ----------
    kernel, centre, rows : AbstractKernel, array [D], tree of arrays [P, ...]
        k, the mean of the rows, and X as `kernel.prepare` returns it; rows after N repeat the last one.
    noise, kept : array [P], array [C, P] or None
        diag(Σ), 1 after N, and the first rows of K, which products with blocks inside them read instead of evaluating the kernel.
    size, tile, keep_rows : int
        N; T, the columns of a tile, which divides P; how many rows of K a solver may keep, in its own order.
    inputs : array [N, D], optional
        X, for products with features of it; None once the rows are reordered.
    axis : str, optional
        Inside `jax.shard_map` the mesh axis along which sums vary: the operator is one device's share of the columns.
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
    ) -> "KernelOperator":
        """The operator of rows X; `noise_variance` is one variance or one per row [N], in the units of K.

        Raises ValueError for another shape of the noise, and for no rows.
        """
        N, noise = X.shape[0], jnp.asarray(noise_variance, X.dtype)
        if N == 0 or noise.shape not in ((), (N,)):
            raise ValueError(
                f"expected rows X [N, D] with N > 0 and one noise variance or [N] of them, got {X.shape} and {noise.shape}"
            )
        plain: AbstractKernel = value_of(kernel)
        centre, n_tiles = jnp.mean(X, axis=0), -(-N // tile)
        tile = -(-N // n_tiles)
        missing = n_tiles * tile - N
        rows = extended(plain.prepare(X, centre), missing)
        noise = jnp.pad(jnp.broadcast_to(noise, (N,)), (0, missing), constant_values=1)
        return cls(plain, centre, rows, noise, None, N, tile, keep_rows, X)

    @property
    def n_devices(self) -> int:
        return 1

    def placed(self, array: Array, axis: int | None = 0) -> Array:
        return array

    def _constrained(self, array: Array, spread: bool = True) -> Array:
        return array

    def pick(self, tree: PyTree, indices: Int[Array, " B"]) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[indices], tree)

    def slice(self, tree: PyTree, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, n_rows), tree)

    def add(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], indices: Int[Array, " B"]
    ) -> Float[Array, "P S"]:
        return array.at[indices].add(change)

    def add_slice(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], start: Int[Array, ""] | int
    ) -> Float[Array, "P S"]:
        changed = jax.lax.dynamic_slice_in_dim(array, start, change.shape[0]) + change
        return jax.lax.dynamic_update_slice_in_dim(array, changed, start, 0)

    def times(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """On a GPU in one pass if `fused` serves the kernel and its rows, otherwise by tiles."""
        return _fused_times(self, rows, read(V)) if self._is_fused(V, read) else self.by_tiles(rows, V, read)

    def by_tiles(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """`times` by tiles of K, one after the other."""
        tiles = self._tiles(V)
        product = lambda item: matmul(self.kernel.between(rows, item[0]), read(item[1]))
        first = jax.tree.map(lambda leaf: leaf[0], tiles)
        if self.tile == self.padded:
            return product(first)
        out = jax.eval_shape(product, first)
        add = lambda total, item: (total + product(item), None)
        return jax.lax.scan(add, self.zeros(out.shape, out.dtype), tiles)[0]

    def own_times(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "S R"]:
        S = V.shape[1]
        R = jax.tree.leaves(rows)[0].shape[0] // S

        @jax.checkpoint  # pyright: ignore[reportPrivateImportUsage]
        def add(total: Array, item: PyTree) -> tuple[Array, None]:
            columns, v = item
            K = self.kernel.between(rows, columns).reshape(S, R, self.tile)
            return total + einsum("srt,ts->sr", K, v), None

        return jax.lax.scan(add, self.zeros((S, R), self.dtype), self._tiles(V))[0]

    def _tiles(self, V: PyTree) -> PyTree:
        """The prepared rows and V with the axes [tiles, T] in the place of [P]."""
        shape = self.padded // self.tile, self.tile
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), (self.rows, V))

    def _is_fused(self, V: PyTree, read: Read) -> bool:
        """Whether `times` uses `fused`: not on several devices, and only if JAX can compile it."""
        if jax.default_backend() != "gpu" or self.axis is not None:
            return False
        try:
            from stochgp.operators import fused
        except ImportError:
            return False
        return fused.serves(self.kernel.radial, self.rows, jax.eval_shape(read, V))

    def block_times(
        self, start: Int[Array, ""] | int, n_rows: int, V: PyTree, read: Read = as_it_is
    ) -> Float[Array, "B S"]:
        """From the kept rows if the block is among them."""
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
        """From the kept rows if all are kept."""
        if self.kept is not None and self.kept.shape[0] >= self.size:
            return matmul(self.kept[indices], read(V))
        return self.times(self.take(indices), V, read)

    def matvec(
        self, V: Float[Array, "P S"], n_rows: int = BLOCK, read: Read = as_it_is
    ) -> Float[Array, "P S"]:
        """All rows at once if no block of K is written."""
        at_once = self.kept is None and self._is_fused(V, read)
        n_rows = self.size if at_once else min(n_rows, self.size)
        product = lambda start: self.block_times(start, n_rows, V, read).astype(V.dtype)
        return filled(jnp.zeros_like(V), self.size, n_rows, product) + self.noise[:, None] * V

    def matrix_rows(self, indices: Int[Array, " B"]) -> Float[Array, "B P"]:
        """From the kept ones if all are kept."""
        if self.kept is not None and self.kept.shape[0] >= self.size:
            return self.kept[indices]
        return self.kernel.between(self.take(indices), self.rows)

    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        return self.kernel.between(self.rows, self.take(indices))[: self.size]

    def diagonal(self) -> Float[Array, " N"]:
        return (self.variances() + self.noise)[: self.size]

    def variances(self) -> Float[Array, " P"]:
        """diag(K)."""

        def of_row(row: PyTree) -> Array:
            one = jax.tree.map(lambda leaf: leaf[None], row)
            return self.kernel.between(one, one)[0, 0]

        return jax.vmap(of_row)(self.rows)

    def keeping(self, n_rows: int | None = None) -> "KernelOperator":
        """n_rows · P numbers."""
        n_rows = min(self.keep_rows if n_rows is None else n_rows, self.padded)
        return dataclasses.replace(self, kept=_evaluate_rows(self, n_rows) if n_rows else None)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """The start of a sum of products."""
        zeros = jnp.zeros(shape, dtype)
        return zeros if self.axis is None else jax.lax.pcast(zeros, self.axis, to="varying")


@eqx.filter_custom_jvp
def _fused_times(operator: KernelOperator, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "B S"]:
    """k(rows, X) V by one program on a GPU, by tiles on other devices; its derivatives are by tiles."""
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
    """The first rows of K, filled in place block by block."""
    n_block = min(BLOCK, n_rows)
    rows = lambda start: operator.kernel.between(operator.block(start, n_block), operator.rows)
    return filled(jnp.zeros((n_rows, operator.padded), operator.dtype), n_rows, n_block, rows)
