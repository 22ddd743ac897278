"""K + Σ as products with blocks of its rows: what solvers and posteriors need of it, wherever its rows lie."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from stochgp.kernels import AbstractKernel
from stochgp.numerics.arrays import extended
from stochgp.numerics.precision import matmul
from stochgp.parameters import cast

BLOCK = 512  # rows of K at a time in products with all of A, and where kept rows are filled

Read = Callable[[PyTree], Float[Array, "T S"]]


def as_it_is(v: Any) -> Any:
    """v, for a product that reads its right-hand side unchanged."""
    return v


def wide(v: Float[Array, "T S"]) -> Float[Array, "T S"]:
    """v in float64 if x64 is enabled: a float32 tile of K times this is summed in float64.

    Means of predictions are such sums. If rows repeat, Σᵢ|k(x, xᵢ)αᵢ| may be 10⁵ times as large as the mean, of which float32 keeps two digits.

    Parameters
    ----------
    v : array [T, S]
        The right-hand side of a product with a tile.
    """
    return v.astype(jax.dtypes.canonicalize_dtype(jnp.float64))


class AbstractOperator(eqx.Module):
    """A = K + Σ with K = k(X, X) [N, N] and Σ = diag(noise), noise a variance for every row.

    Right-hand sides V are [P, S]: N rows and P − N rows of zeros; `pad` and `unpad` convert. Arrays [P, ...] may lie on several devices: read and change
    some of their rows by `slice`, `pick`, `add_slice` and `add` alone. In products V may be a tree of arrays [P, ...], from which `read` makes [T, S].
    """

    kernel: eqx.AbstractVar[AbstractKernel]
    centre: eqx.AbstractVar[Float[Array, " D"]]
    rows: eqx.AbstractVar[
        PyTree
    ]  # the rows as the kernel prepares them, [P, ...]; those after N repeat the last one
    noise: eqx.AbstractVar[Float[Array, " P"]]  # 1 after N
    kept: eqx.AbstractVar[Float[Array, "C P"] | None]  # the first rows of K
    size: eqx.AbstractVar[int]
    tile: eqx.AbstractVar[int]
    keep_rows: eqx.AbstractVar[int]  # how many rows of K a solver may keep, in its own order
    inputs: eqx.AbstractVar[Float[Array, "N D"] | None]  # X, for features of the kernel; None once reordered

    @property
    def padded(self) -> int:
        """P."""
        return self.noise.shape[0]

    @property
    def dtype(self) -> Any:
        return self.noise.dtype

    @property
    @abc.abstractmethod
    def n_devices(self) -> int:
        """Over how many devices the rows are divided."""

    # Placement and rows of arrays

    @abc.abstractmethod
    def placed(self, array: Array, axis: int | None = 0) -> Array:
        """An array whose `axis` is P, placed like the operator's rows; whole on every device if `axis` is None."""

    @abc.abstractmethod
    def _constrained(self, array: Array, spread: bool = True) -> Array:
        """As `placed`, in traced code: rows spread like the operator's, or whole."""

    def pad(self, V: Float[Array, "N S"]) -> Float[Array, "P S"]:
        """V with rows of zeros up to P, placed like the operator's rows."""
        return self._constrained(jnp.pad(V, ((0, self.padded - self.size), (0, 0))))

    def unpad(self, V: Float[Array, "P S"]) -> Float[Array, "N S"]:
        """The rows up to N, on every device."""
        return self._constrained(V, False)[: self.size]

    def cleared(self, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
        """V with zeros in the rows after N."""
        return jnp.where(jnp.arange(self.padded)[:, None] < self.size, V, jnp.zeros_like(V))

    @abc.abstractmethod
    def pick(self, tree: PyTree, indices: Int[Array, " B"]) -> PyTree:
        """The rows of these indices of every array [P, ...]."""

    @abc.abstractmethod
    def add(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], indices: Int[Array, " B"]
    ) -> Float[Array, "P S"]:
        """The array with `change` added to its rows of these indices; repeated indices add up."""

    def slice(self, tree: PyTree, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        """The rows start … start + n_rows − 1 of every array [P, ...]."""
        return self.pick(tree, following(start, n_rows))

    def add_slice(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], start: Int[Array, ""] | int
    ) -> Float[Array, "P S"]:
        """The array with `change` added to its rows start … start + B − 1."""
        return self.add(array, change, following(start, change.shape[0]))

    def block(self, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        """The prepared rows start … start + n_rows − 1."""
        return self.slice(self.rows, start, n_rows)

    def take(self, indices: Int[Array, " B"]) -> PyTree:
        """The prepared rows of these indices."""
        return self.pick(self.rows, indices)

    def prepare(self, Z: Float[Array, "M D"]) -> PyTree:
        """Other rows, prepared for products with these."""
        return self.kernel.prepare(Z, self.centre)

    # Products

    @abc.abstractmethod
    def times(self, rows: PyTree, V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """k(rows, X) V, tile by tile."""

    @abc.abstractmethod
    def own_times(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "S R"]:
        """k(rows_s, X) V_s for each s; `rows` [S R, ...] has R rows for the first column, then R for the second, and so on.

        Derivatives evaluate a tile again instead of keeping it.
        """

    def block_times(
        self, start: Int[Array, ""] | int, n_rows: int, V: PyTree, read: Read = as_it_is
    ) -> Float[Array, "B S"]:
        """(K V) of the rows start … start + n_rows − 1."""
        return self.times(self.block(start, n_rows), V, read)

    def rows_times(self, indices: Int[Array, " B"], V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """(K V) of any rows."""
        return self.times(self.take(indices), V, read)

    @abc.abstractmethod
    def matvec(
        self, V: Float[Array, "P S"], n_rows: int = BLOCK, read: Read = as_it_is
    ) -> Float[Array, "P S"]:
        """A V in V's dtype, in blocks of `n_rows` rows; rows after N are 0."""

    def features_times(
        self, features: Callable[[Array], Float[Array, "N M"]], V: Float[Array, "P S"]
    ) -> Float[Array, "P S"]:
        """Φ Φᵀ V for Φ = features(X); rows after N are 0. Raises ValueError for an operator without its inputs."""
        if self.inputs is None:
            raise ValueError("features need an operator that knows its inputs")
        Phi = features(self.inputs)
        Phi = self.pad(Phi) if len(Phi) == self.size else self.cleared(self._constrained(Phi))
        return self._constrained(matmul(Phi, matmul(Phi.T, V)))

    # Parts of the matrix

    @abc.abstractmethod
    def matrix_rows(self, indices: Int[Array, " B"]) -> Float[Array, "B P"]:
        """Rows of K; entries after N are arbitrary."""

    @abc.abstractmethod
    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        """Columns of K, without Σ."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Array, " N"]:
        """diag(A)."""

    def dense(self) -> Float[Array, "N N"]:
        """A as a matrix of N² numbers."""
        here = self.block(0, self.size)
        return self.kernel.between(here, here) + jnp.diag(self.noise[: self.size])

    # Other forms of the same operator

    def reordered(self, order: Int[Array, " N"]) -> "AbstractOperator":
        """The operator of the rows in another order, without kept rows: blocks of a random order are random sets of rows."""
        order = extended(order, self.padded - self.size)
        rows, noise = jax.tree.map(lambda leaf: self._constrained(leaf[order]), (self.rows, self.noise))
        noise = jnp.where(jnp.arange(self.padded) < self.size, noise, jnp.ones_like(noise))
        return dataclasses.replace(self, rows=rows, noise=noise, kept=None, inputs=None)

    @abc.abstractmethod
    def keeping(self, n_rows: int | None = None) -> Self:
        """The same operator with the first `n_rows` rows of K (None = `keep_rows`; at most P) kept, if it can keep any."""

    def astype(self, dtype: DTypeLike) -> Self:
        """The same numbers in another dtype, without kept rows."""
        return cast(self.keeping(0), dtype)


def filled(
    out: Float[Array, "P S"], size: int, n_rows: int, rows_from: Callable[[Array], Float[Array, "B S"]]
) -> Float[Array, "P S"]:
    """`out` with its first `size` rows from `rows_from(start)`, `n_rows` ≤ size at a time: the last ones overlap."""
    starts = jnp.minimum(jnp.arange(-(-size // n_rows)) * n_rows, size - n_rows)

    def fill(out: Array, start: Array) -> tuple[Array, None]:
        return jax.lax.dynamic_update_slice_in_dim(out, rows_from(start), start, 0), None

    return jax.lax.scan(fill, out, starts)[0]


def following(start: Int[Array, ""] | int, n_rows: int) -> Int[Array, " B"]:
    """start … start + n_rows − 1."""
    return jnp.asarray(start, jnp.int32) + jnp.arange(n_rows, dtype=jnp.int32)
