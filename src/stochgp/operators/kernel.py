"""K + Σ as products with blocks of its rows, tile by tile; never as a whole unless asked for."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from stochgp.kernels import AbstractKernel
from stochgp.numerics.arrays import extended
from stochgp.numerics.precision import einsum, matmul
from stochgp.operators.base import BLOCK, AbstractOperator, Read, as_it_is, filled, one_row
from stochgp.parameters import Frozen, cast, value_of

TILE = 2048  # most columns of a tile on a processor: from 512 to 8,192 products in float32 take as long, and sums in float64 up to twice as long from 8,192
GPU_TILE = 131_072  # on a GPU: products of few inputs are 1.1 to 1.6 times as fast as by `TILE` on an H100, of 26 inputs 0.9 to 1.1 times


class KernelOperator(AbstractOperator):
    """A = K + Σ with all rows on one device; rows beyond N fill the last tile. Made by `KernelOperator.of`.

    Products take columns in P/T tiles of T, so that what is held beside V is one tile.

    Parameters
    ----------
    kernel : AbstractKernel
        k, with its hyperparameters.
    centre : array [D]
        The mean of the rows, by which the kernel prepares them.
    rows : tree of arrays [P, ...]
        What the kernel needs of X (`kernel.prepare`); rows beyond N repeat the last one.
    noise : array [P]
        diag(Σ), a variance for every row, in the units of K; 1 beyond N.
    kept : array [C, P], optional
        The first rows of K where memory allows them to be kept: products with blocks inside them read instead of evaluating the kernel. None = no rows.
    size : int
        N.
    tile : int
        T, the columns of a tile; it divides P.
    keep_rows : int
        How many rows of K a solver may keep, in its own order.
    inputs : array [N, D], optional
        X, for products with features of it; None once the rows are reordered.
    axis : str, optional
        Of a mesh, inside `jax.shard_map`: the operator is one device's share of the columns, whose sums vary along this axis. None elsewhere.
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
        N = X.shape[0]
        noise = jnp.asarray(noise_variance, X.dtype)
        if N == 0 or noise.shape not in ((), (N,)):
            raise ValueError(
                f"expected rows X [N, D] with N > 0 and one noise variance or [N] of them, got {X.shape} and {noise.shape}"
            )
        plain: AbstractKernel = value_of(kernel)
        centre = jnp.mean(X, axis=0)
        n_tiles = -(-N // tile)
        tile = -(-N // n_tiles)
        missing = n_tiles * tile - N
        rows = extended(plain.prepare(X, centre), missing)
        noise = jnp.pad(jnp.broadcast_to(noise, (N,)), (0, missing), constant_values=1)
        return cls(plain, centre, rows, noise, None, N, tile, keep_rows, X)

    @property
    def n_devices(self) -> int:
        return 1

    def pad(self, V: Float[Array, "N S"]) -> Float[Array, "P S"]:
        return jnp.pad(V, ((0, self.padded - self.size), (0, 0)))

    def unpad(self, V: Float[Array, "P S"]) -> Float[Array, "N S"]:
        return V[: self.size]

    def cleared(self, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
        return self.pad(self.unpad(V))

    def placed(self, array: Array, axis: int | None = 0) -> Array:
        return array

    def slice(self, tree: PyTree, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, n_rows), tree)

    def pick(self, tree: PyTree, indices: Int[Array, " B"]) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[indices], tree)

    def add_slice(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], start: Int[Array, ""] | int
    ) -> Float[Array, "P S"]:
        changed = jax.lax.dynamic_slice_in_dim(array, start, change.shape[0]) + change
        return jax.lax.dynamic_update_slice_in_dim(array, changed, start, 0)

    def add(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], indices: Int[Array, " B"]
    ) -> Float[Array, "P S"]:
        return array.at[indices].add(change)

    def times(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """On a GPU in one pass where that is for the kernel and its rows, by tiles elsewhere."""
        if self._is_fused(V, read):
            return _fused_times(self, rows, read(V))
        return self.by_tiles(rows, V, read)

    def by_tiles(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """`times` by tiles of K, one after the other."""
        n_tiles = self.padded // self.tile
        tiles = jax.tree.map(lambda leaf: leaf.reshape(n_tiles, self.tile, *leaf.shape[1:]), (self.rows, V))

        def add(total: Array, item: PyTree) -> tuple[Array, None]:
            columns, v = item
            return total + matmul(self.kernel.between(rows, columns), read(v)), None

        first = jax.tree.map(lambda leaf: leaf[0], tiles)
        if n_tiles == 1:
            return matmul(self.kernel.between(rows, first[0]), read(first[1]))
        out = jax.eval_shape(lambda item: matmul(self.kernel.between(rows, item[0]), read(item[1])), first)
        return jax.lax.scan(add, self.zeros(out.shape, out.dtype), tiles)[0]

    def _is_fused(self, V: PyTree, read: Read) -> bool:
        """Whether `times` is by `fused`, which is not written for several devices, and which a later JAX may not compile."""
        if jax.default_backend() != "gpu" or self.axis is not None:
            return False
        try:
            from stochgp.operators import fused
        except ImportError:
            return False
        return fused.serves(self.kernel.radial, self.rows, jax.eval_shape(read, V))

    def own_times(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "S R"]:
        S, n_tiles = V.shape[1], self.padded // self.tile
        tiles = jax.tree.map(lambda x: x.reshape(n_tiles, self.tile, *x.shape[1:]), (self.rows, V))
        R = jax.tree.leaves(rows)[0].shape[0] // S

        @jax.checkpoint  # pyright: ignore[reportPrivateImportUsage]
        def add(total: Array, item: PyTree) -> tuple[Array, None]:
            columns, v = item
            K = self.kernel.between(rows, columns).reshape(S, R, self.tile)
            return total + einsum("srt,ts->sr", K, v), None

        return jax.lax.scan(add, self.zeros((S, R), self.dtype), tiles)[0]

    def block_times(
        self, start: Int[Array, ""] | int, n_rows: int, V: PyTree, read: Read = as_it_is
    ) -> Float[Array, "B S"]:
        """From the kept rows where the block is among them."""

        def evaluate() -> Array:
            return self.times(self.block(start, n_rows), V, read)

        if self.kept is None or self.kept.shape[0] < n_rows:
            return evaluate()
        kept = self.kept

        def look_up() -> Array:
            rows = jnp.asarray(start, jnp.int32) + jnp.arange(n_rows, dtype=jnp.int32)
            return matmul(kept[rows], read(V))  # gathered: XLA copies a slice on one thread

        if kept.shape[0] == self.padded:
            return look_up()
        return jax.lax.cond(jnp.asarray(start) + n_rows <= kept.shape[0], look_up, evaluate)

    def rows_times(self, indices: Int[Array, " B"], V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """From the kept rows where all are kept."""
        if self.kept is not None and self.kept.shape[0] >= self.size:
            return matmul(self.kept[indices], read(V))
        return self.times(self.take(indices), V, read)

    def matvec(
        self, V: Float[Array, "P S"], n_rows: int = BLOCK, read: Read = as_it_is
    ) -> Float[Array, "P S"]:
        """All rows at once where no block of K is written."""
        at_once = self.kept is None and self._is_fused(V, read)
        n_rows = self.size if at_once else min(n_rows, self.size)
        product = lambda start: self.block_times(start, n_rows, V, read).astype(V.dtype)
        KV = filled(jnp.zeros_like(V), self.size, n_rows, product)
        return KV + self.noise[:, None] * V

    def features_times(
        self, features: Callable[[Array], Float[Array, "N M"]], V: Float[Array, "P S"]
    ) -> Float[Array, "P S"]:
        if self.inputs is None:
            raise ValueError("features need an operator that knows its inputs")
        Phi = features(self.inputs)
        return self.pad(matmul(Phi, matmul(Phi.T, self.unpad(V))))

    def matrix_rows(self, indices: Int[Array, " B"]) -> Float[Array, "B P"]:
        """From the kept ones where all are kept."""
        if self.kept is not None and self.kept.shape[0] >= self.size:
            return self.kept[indices]
        return self.kernel.between(self.take(indices), self.rows)

    def diagonal(self) -> Float[Array, " N"]:
        k = jax.vmap(lambda row: self.kernel.between(one_row(row), one_row(row))[0, 0])(self.rows)
        return (k + self.noise)[: self.size]

    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        return self.kernel.between(self.rows, self.take(indices))[: self.size]

    def reordered(self, order: Int[Array, " N"]) -> "KernelOperator":
        missing = self.padded - self.size
        rows = extended(jax.tree.map(lambda leaf: leaf[order], self.rows), missing)
        noise = self.noise.at[: self.size].set(self.noise[order])
        return KernelOperator(
            self.kernel, self.centre, rows, noise, None, self.size, self.tile, self.keep_rows
        )

    def keeping(self, n_rows: int | None = None) -> "KernelOperator":
        """n_rows · P numbers."""
        n_rows = min(self.keep_rows if n_rows is None else n_rows, self.padded)
        if n_rows == 0:
            return eqx.tree_at(lambda op: op.kept, self, None, is_leaf=lambda leaf: leaf is None)
        kept = _evaluate_rows(self, n_rows)
        return eqx.tree_at(lambda op: op.kept, self, kept, is_leaf=lambda leaf: leaf is None)

    def astype(self, dtype: DTypeLike) -> "KernelOperator":
        return cast(eqx.tree_at(lambda op: op.kept, self, None, is_leaf=lambda leaf: leaf is None), dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """To which products are added."""
        zeros = jnp.zeros(shape, dtype)
        return zeros if self.axis is None else jax.lax.pcast(zeros, self.axis, to="varying")


@eqx.filter_custom_jvp
def _fused_times(operator: KernelOperator, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "B S"]:
    """`KernelOperator.times` by `fused` on an NVIDIA GPU, by tiles on other devices; its derivatives are by tiles."""
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
