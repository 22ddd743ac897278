"""The matrix K + Σ as products with blocks of its rows, computed tile by tile.

With a mesh, arrays [P, ...] are divided by rows.
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
from jaxtyping import Array, Float, Int, PyTree

from stochgp.kernels import AbstractKernel
from stochgp.numerics.arrays import einsum, extended, matmul
from stochgp.parameters import Frozen, cast, value_of
from stochgp.sharding import AXIS, SPREAD, TILE, WHOLE, on_all, spread

BLOCK = 512  # rows of K per block in products, and when K is stored


class KernelOperator(eqx.Module):
    """The matrix A = K + Σ with K = k(X, X) [N, N] and Σ = diag(noise). `of` creates A.

    Right-hand sides V [P, S] have N rows of numbers and P − N rows of zeros. `pad` adds the rows of zeros,
    and `unpad` removes these rows. During a product, one tile of T columns of K is in memory. With
    `wide=True`, products are summed in float64.

    Parameters
    ----------
    kernel, centre, rows
        The kernel k, the mean of X, and X after `kernel.prepare`, followed by P − N copies of the last row.
    noise, kept
        `noise` is the diagonal of Σ, padded with ones. `kept` is the stored K, or None to evaluate K again.
    size, tile, keep
        `size` is N, `tile` is the number T of columns, and `keep` is True if a solver may store K.
    inputs : array [N, D], optional
        The rows X.
    mesh : Mesh, optional
        The devices, each with an equal part of the rows. None means one device.
    """

    kernel: AbstractKernel
    centre: Float[Array, " D"]
    rows: PyTree
    noise: Float[Array, " P"]
    kept: Float[Array, "P P"] | None
    size: int = eqx.field(static=True)
    tile: int = eqx.field(static=True)
    keep: bool = eqx.field(static=True, default=False)
    inputs: Float[Array, "N D"] | None = None
    mesh: Mesh | None = eqx.field(static=True, default=None)

    @classmethod
    def of(
        cls,
        kernel: AbstractKernel | Frozen,
        X: Float[Array, "N D"],
        noise_variance: Float[Array, "..."] | float,
        *,
        tile: int = TILE,
        keep: bool = False,
        mesh: Mesh | None = None,
    ) -> "KernelOperator":
        """Return the operator of rows X; `noise_variance` is one variance or one per row [N].

        Raises ValueError if the noise has another shape, or if X has no rows.
        """
        N, noise = X.shape[0], jnp.asarray(noise_variance, X.dtype)
        if N == 0 or noise.shape not in ((), (N,)):
            raise ValueError(
                f"X must have at least one row, and noise_variance must be one number or one number per row, but their shapes are {X.shape} and {noise.shape}"
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
            rows, noise = spread((rows, noise), mesh)
            plain, centre, X = on_all((plain, centre, X), mesh)
        return cls(plain, centre, rows, noise, None, N, tile, keep, X, mesh)

    @property
    def padded(self) -> int:
        """The number P of rows, including padding."""
        return self.noise.shape[0]

    @property
    def dtype(self) -> Any:
        return self.noise.dtype

    # Placement and rows of arrays

    def placed(self, array: Array, axis: int | None = 0) -> Array:
        """Divide an array along `axis` like the rows; None puts a copy on every device."""
        if self.mesh is None:
            return array
        return on_all(array, self.mesh) if axis is None else spread(array, self.mesh, axis)

    def _constrained(self, array: Array, spec: P = SPREAD) -> Array:
        """Constrain the placement of an array in traced code."""
        if self.mesh is None:
            return array
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))

    def pad(self, V: Float[Array, "N S"]) -> Float[Array, "P S"]:
        """Append rows of zeros to V, up to P rows, and divide them like the rows of K."""
        return self._constrained(jnp.pad(V, ((0, self.padded - self.size), (0, 0))))

    def unpad(self, V: Float[Array, "P S"]) -> Float[Array, "N S"]:
        """Return the first N rows, on every device."""
        return self._constrained(V, WHOLE)[: self.size]

    def take(self, indices: Int[Array, " B"]) -> PyTree:
        """Return the prepared rows at these indices."""
        return jax.tree.map(lambda leaf: self._constrained(leaf[indices], WHOLE), self.rows)

    def prepare(self, Z: Float[Array, "M D"]) -> PyTree:
        """Prepare other rows for products with the rows of this operator."""
        return self.kernel.prepare(Z, self.centre)

    # Products

    def times(self, rows: PyTree, V: Float[Array, "P S"], *, wide: bool = False) -> Float[Array, "B S"]:
        """Return k(rows, X) V, with the fused GPU program if it applies, or tile by tile."""
        V = in_float64(V) if wide else V
        if self.mesh is None:
            return _fused_times(self, rows, V) if self._is_fused(V) else self.by_tiles(rows, V)
        numbers, rest = eqx.partition(self.kernel, eqx.is_array)

        def part(numbers: Any, rows: PyTree, columns: PyTree, V: Array) -> Array:
            own = dataclasses.replace(self, kernel=eqx.combine(numbers, rest), rows=columns)
            return jax.lax.psum(own.by_tiles(rows, V), AXIS)

        specs = (WHOLE, WHOLE, SPREAD, SPREAD)
        return jax.shard_map(part, mesh=self.mesh, in_specs=specs, out_specs=WHOLE)(
            numbers, rows, self.rows, V
        )

    def by_tiles(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "B S"]:
        """Return k(rows, X) V tile by tile. In `jax.shard_map`, X has the rows of one device."""
        tiles = self._tiles(V)
        product = lambda item: matmul(self.kernel.between(rows, item[0]), item[1])
        first = jax.tree.map(lambda leaf: leaf[0], tiles)
        if len(V) == self.tile:
            return product(first)
        out = jax.eval_shape(product, first)
        zeros = jnp.zeros(out.shape, out.dtype)
        zeros = zeros if self.mesh is None else jax.lax.pcast(zeros, AXIS, to="varying")
        return jax.lax.scan(lambda total, item: (total + product(item), None), zeros, tiles)[0]

    def own_times(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "S R"]:
        """Return k(rows_s, X) V_s for each column s of V, with R of the rows per column.

        Derivatives evaluate tiles again instead of storing them. A mesh is not supported.
        """
        S = V.shape[1]
        R = jax.tree.leaves(rows)[0].shape[0] // S

        @jax.checkpoint
        def add(total: Array, item: PyTree) -> tuple[Array, None]:
            columns, v = item
            K = self.kernel.between(rows, columns).reshape(S, R, self.tile)
            return total + einsum("srt,ts->sr", K, v), None

        return jax.lax.scan(add, jnp.zeros((S, R), self.dtype), self._tiles(V))[0]

    def _tiles(self, V: Float[Array, "P S"]) -> PyTree:
        """Return the prepared rows and V, with axes [tiles, T] instead of [P]."""
        shape = len(V) // self.tile, self.tile
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), (self.rows, V))

    def _is_fused(self, V: Float[Array, "P S"]) -> bool:
        """Return True if products use the fused program: on one GPU, if JAX can compile it."""
        if jax.default_backend() != "gpu" or self.mesh is not None:
            return False
        try:
            from stochgp.operators import fused
        except ImportError:
            return False
        return fused.serves(self.kernel.radial, self.rows, V)

    def rows_times(
        self, indices: Int[Array, " B"], V: Float[Array, "P S"], *, wide: bool = False
    ) -> Float[Array, "B S"]:
        """Return these rows of K V, from the stored K if there is one."""
        if self.kept is None:
            return self.times(self.take(indices), V, wide=wide)
        # not a slice, even for consecutive rows: XLA copies slices on one thread
        return matmul(self.kept[indices], in_float64(V) if wide else V)

    def matvec(
        self, V: Float[Array, "P S"], n_rows: int = BLOCK, *, wide: bool = False
    ) -> Float[Array, "P S"]:
        """Return A V in the dtype of V, computed in blocks of `n_rows` rows."""
        at_once = self.kept is None and self._is_fused(in_float64(V) if wide else V)
        n_rows = self.size if at_once else min(n_rows, self.size)
        product = lambda rows: self.rows_times(rows, V, wide=wide).astype(V.dtype)
        KV = filled(self._constrained(jnp.zeros_like(V), WHOLE), self.size, n_rows, product)
        return self._constrained(KV) + self.noise[:, None] * V

    # Parts of the matrix

    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        """Return columns of K, without Σ."""
        return self._constrained(self.kernel.between(self.rows, self.take(indices)), WHOLE)[: self.size]

    def diagonal(self) -> Float[Array, " N"]:
        """Return diag(A)."""

        def of_row(row: PyTree) -> Array:
            one = jax.tree.map(lambda leaf: leaf[None], row)
            return self.kernel.between(one, one)[0, 0]

        return self._constrained(jax.vmap(of_row)(self.rows) + self.noise, WHOLE)[: self.size]

    def dense(self) -> Float[Array, "N N"]:
        """Return A as a dense matrix."""
        here = self.take(jnp.arange(self.size))
        return self.kernel.between(here, here) + jnp.diag(self.noise[: self.size])

    # Other forms of the same operator

    def keeping(self, keep: bool | None = None) -> "KernelOperator":
        """Return the operator with or without a stored K; None means the field `keep`."""
        keeps = (self.keep if keep is None else keep) and self.mesh is None
        return dataclasses.replace(self, kept=_evaluate(self) if keeps else None)

    def astype(self, dtype: DTypeLike) -> "KernelOperator":
        """Return the operator in another dtype, without a stored K."""
        return cast(self.keeping(False), dtype)


def in_float64(V: Float[Array, "T S"]) -> Float[Array, "T S"]:
    """Return V in float64 if x64 is enabled, so that products with K are summed in float64.

    Terms of a predictive mean may be 10⁵ times as large as the mean. Float32 sums would keep two digits.
    """
    return V.astype(jax.dtypes.canonicalize_dtype(jnp.float64))


def filled(
    out: Float[Array, "P S"], size: int, n_rows: int, product: Callable[[Array], Float[Array, "B S"]]
) -> Float[Array, "P S"]:
    """Fill the first `size` rows of `out` with `product(indices)`, in blocks of `n_rows`."""
    starts = jnp.minimum(jnp.arange(-(-size // n_rows)) * n_rows, size - n_rows).astype(jnp.int32)

    def fill(out: Array, start: Array) -> tuple[Array, None]:
        rows = start + jnp.arange(n_rows, dtype=jnp.int32)
        return jax.lax.dynamic_update_slice_in_dim(out, product(rows), start, 0), None

    return jax.lax.scan(fill, out, starts)[0]


@eqx.filter_custom_jvp
def _fused_times(operator: KernelOperator, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "B S"]:
    """Return k(rows, X) V with one GPU program, or with tiles. Derivatives use tiles."""
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
def _evaluate(operator: KernelOperator) -> Float[Array, "P P"]:
    """Return K, computed in blocks of rows."""
    P = operator.padded
    rows = lambda indices: operator.kernel.between(operator.take(indices), operator.rows)
    return filled(jnp.zeros((P, P), operator.dtype), P, min(BLOCK, P), rows)
