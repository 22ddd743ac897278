"""K + Σ as products with blocks of its rows, tile by tile; never as a whole unless asked for."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from stochgp.kernels import AbstractKernel
from stochgp.numerics.precision import matmul
from stochgp.parameters import Frozen, cast, value_of

TILE = 8192  # most columns of a tile: with 512 rows it is 16 MB of float32


class KernelOperator(eqx.Module):
    """A = K + Σ with K = k(X, X) [N, N] and Σ = diag(noise), noise a variance for every row.

    Right-hand sides V are [P, S]: N rows and P − N rows of zeros that fill the last tile; `pad` and `unpad` go there and back.
    Products take columns in P/T tiles of T, so that what is held beside V is one tile. `kept` are the first rows of K where memory
    allows them to be kept: products with blocks inside them read instead of evaluating the kernel.
    """

    kernel: AbstractKernel
    centre: Float[Array, " D"]
    rows: PyTree  # what the kernel needs of X, [P, ...]; rows beyond N repeat the last one
    noise: Float[Array, " P"]  # 1 beyond N
    kept: Float[Array, "C P"] | None
    size: int = eqx.field(static=True)
    tile: int = eqx.field(static=True)
    keep_rows: int = eqx.field(
        static=True, default=0
    )  # how many rows of K a solver may keep, in its own order
    inputs: Float[Array, "N D"] | None = None  # X, for who wants features of the kernel; None once reordered

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
        rows = _extended(plain.prepare(X, centre), missing)
        noise = jnp.pad(jnp.broadcast_to(noise, (N,)), (0, missing), constant_values=1)
        return cls(plain, centre, rows, noise, None, N, tile, keep_rows, X)

    @property
    def padded(self) -> int:
        """P."""
        return self.noise.shape[0]

    @property
    def dtype(self) -> Any:
        return self.noise.dtype

    def pad(self, V: Float[Array, "N S"]) -> Float[Array, "P S"]:
        """V with rows of zeros up to P."""
        return jnp.pad(V, ((0, self.padded - self.size), (0, 0)))

    def unpad(self, V: Float[Array, "P S"]) -> Float[Array, "N S"]:
        return V[: self.size]

    def block(self, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        """The prepared rows start … start + n_rows − 1."""
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, n_rows), self.rows)

    def take(self, indices: Int[Array, " B"]) -> PyTree:
        """The prepared rows of these indices."""
        return jax.tree.map(lambda leaf: leaf[indices], self.rows)

    def prepare(self, Z: Float[Array, "M D"]) -> PyTree:
        """Other rows, prepared for products with these."""
        return self.kernel.prepare(Z, self.centre)

    def times(
        self, rows: PyTree, V: PyTree, read: Callable[[PyTree], Float[Array, "T S"]] = lambda v: v
    ) -> Float[Array, "B S"]:
        """k(rows, X) V, tile by tile. V is [P, S], or a tree of such arrays of which `read` makes a tile's [T, S]."""
        n_tiles = self.padded // self.tile
        tiles = jax.tree.map(lambda leaf: leaf.reshape(n_tiles, self.tile, *leaf.shape[1:]), (self.rows, V))

        def add(total: Array, item: PyTree) -> tuple[Array, None]:
            columns, v = item
            return total + matmul(self.kernel.between(rows, columns), read(v)), None

        first = jax.tree.map(lambda leaf: leaf[0], tiles)
        if n_tiles == 1:
            return matmul(self.kernel.between(rows, first[0]), read(first[1]))
        out = jax.eval_shape(lambda item: matmul(self.kernel.between(rows, item[0]), read(item[1])), first)
        return jax.lax.scan(add, jnp.zeros(out.shape, out.dtype), tiles)[0]

    def block_times(
        self,
        start: Int[Array, ""] | int,
        n_rows: int,
        V: PyTree,
        read: Callable[[PyTree], Float[Array, "T S"]] = lambda v: v,
    ) -> Float[Array, "B S"]:
        """(K V) of the rows start … start + n_rows − 1, from the kept rows where they are among them."""

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

    def rows_times(
        self,
        indices: Int[Array, " B"],
        V: PyTree,
        read: Callable[[PyTree], Float[Array, "T S"]] = lambda v: v,
    ) -> Float[Array, "B S"]:
        """(K V) of any rows, from the kept ones where all are kept."""
        if self.kept is not None and self.kept.shape[0] >= self.size:
            return matmul(self.kept[indices], read(V))
        return self.times(self.take(indices), V, read)

    def matvec(self, V: Float[Array, "P S"], n_rows: int = 512) -> Float[Array, "P S"]:
        """A V, in blocks of `n_rows` rows; rows beyond N are 0."""
        n_rows = min(n_rows, self.size)
        n_blocks = -(-self.size // n_rows)
        starts = jnp.minimum(jnp.arange(n_blocks) * n_rows, self.size - n_rows)

        def fill(out: Array, start: Array) -> tuple[Array, None]:
            return jax.lax.dynamic_update_slice_in_dim(
                out, self.block_times(start, n_rows, V), start, 0
            ), None

        KV = jax.lax.scan(fill, jnp.zeros_like(V), starts)[0]
        return KV + self.noise[:, None] * V

    def diagonal(self) -> Float[Array, " N"]:
        """diag(A)."""
        k = jax.vmap(lambda row: self.kernel.between(_one(row), _one(row))[0, 0])(self.rows)
        return (k + self.noise)[: self.size]

    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        """Columns of K, without Σ."""
        return self.kernel.between(self.rows, self.take(indices))[: self.size]

    def dense(self) -> Float[Array, "N N"]:
        """A as a matrix: N² numbers, on request only."""
        here = self.block(0, self.size)
        return self.kernel.between(here, here) + jnp.diag(self.noise[: self.size])

    def reordered(self, order: Int[Array, " N"]) -> "KernelOperator":
        """The operator of the rows in another order, nothing kept: blocks of a random order are random sets of rows."""
        missing = self.padded - self.size
        rows = _extended(jax.tree.map(lambda leaf: leaf[order], self.rows), missing)
        noise = self.noise.at[: self.size].set(self.noise[order])
        return KernelOperator(
            self.kernel, self.centre, rows, noise, None, self.size, self.tile, self.keep_rows
        )

    def keeping(self, n_rows: int | None = None) -> "KernelOperator":
        """The same operator with the first `n_rows` rows of K (None = `keep_rows`; at most P) kept: n_rows · P numbers."""
        n_rows = min(self.keep_rows if n_rows is None else n_rows, self.padded)
        if n_rows == 0:
            return eqx.tree_at(lambda op: op.kept, self, None, is_leaf=lambda leaf: leaf is None)
        kept = _evaluate_rows(self, n_rows)
        return eqx.tree_at(lambda op: op.kept, self, kept, is_leaf=lambda leaf: leaf is None)

    def astype(self, dtype: DTypeLike) -> "KernelOperator":
        """The same numbers in another dtype, nothing kept."""
        return cast(eqx.tree_at(lambda op: op.kept, self, None, is_leaf=lambda leaf: leaf is None), dtype)


@eqx.filter_jit
def _evaluate_rows(operator: KernelOperator, n_rows: int, n_block: int = 512) -> Float[Array, "C P"]:
    """The first rows of K, filled in place block by block."""
    n_block = min(n_block, n_rows)
    starts = jnp.minimum(jnp.arange(-(-n_rows // n_block)) * n_block, n_rows - n_block)

    def fill(K: Array, start: Array) -> tuple[Array, None]:
        block = operator.kernel.between(operator.block(start, n_block), operator.rows)
        return jax.lax.dynamic_update_slice_in_dim(K, block, start, 0), None

    return jax.lax.scan(fill, jnp.zeros((n_rows, operator.padded), operator.dtype), starts)[0]


def _extended(rows: PyTree, missing: int) -> PyTree:
    """Each leaf with its last row repeated `missing` times more."""
    return jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, missing),) + ((0, 0),) * (leaf.ndim - 1), mode="edge"), rows
    )


def _one(row: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None], row)
