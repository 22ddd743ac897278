"""What solvers and posteriors ask of A = K + Σ, wherever its rows lie."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from stochgp.kernels import AbstractKernel

BLOCK = 512  # rows of K at a time in products with all of A, and where kept rows are filled

Read = Callable[[PyTree], Float[Array, "T S"]]


def as_it_is(v: Any) -> Any:
    """v, for a step at which nothing is sent."""
    return v


def wide(v: Float[Array, "T S"]) -> Float[Array, "T S"]:
    """v in float64 where x64 is enabled: a float32 tile of K times this is summed in float64.

    The means of predictions are such sums. Where rows repeat, Σᵢ|k(x, xᵢ)αᵢ| may be 10⁵ times as large as the mean, and in float32 no more than two
    digits are left of it. K's own entries are rounded by chance: that costs the mean √N times less.

    Parameters
    ----------
    v : array [T, S]
        What a tile is multiplied by.
    """
    return v.astype(jax.dtypes.canonicalize_dtype(jnp.float64))


class AbstractOperator(eqx.Module):
    """A = K + Σ with K = k(X, X) [N, N] and Σ = diag(noise), noise a variance for every row.

    Right-hand sides V are [P, S]: N rows and P − N rows of zeros; `pad` and `unpad` go there and back. Arrays [P, ...] are read and
    changed in some of their rows by `slice`, `pick`, `add_slice` and `add` alone, because their rows may lie on several devices.
    """

    kernel: eqx.AbstractVar[AbstractKernel]
    centre: eqx.AbstractVar[Float[Array, " D"]]
    rows: eqx.AbstractVar[PyTree]  # what the kernel needs of X, [P, ...]; rows beyond N repeat the last one
    noise: eqx.AbstractVar[Float[Array, " P"]]  # 1 beyond N
    kept: eqx.AbstractVar[Float[Array, "C P"] | None]  # the first rows of K
    size: eqx.AbstractVar[int]
    tile: eqx.AbstractVar[int]
    keep_rows: eqx.AbstractVar[int]  # how many rows of K a solver may keep, in its own order
    inputs: eqx.AbstractVar[
        Float[Array, "N D"] | None
    ]  # X, for who wants features of the kernel; None once reordered

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

    # Where arrays lie, and their rows

    @abc.abstractmethod
    def pad(self, V: Float[Array, "N S"]) -> Float[Array, "P S"]:
        """V with rows of zeros up to P, where the operator's rows are."""

    @abc.abstractmethod
    def unpad(self, V: Float[Array, "P S"]) -> Float[Array, "N S"]:
        """The rows up to N."""

    @abc.abstractmethod
    def cleared(self, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
        """V with zeros in the rows beyond N."""

    @abc.abstractmethod
    def placed(self, array: Array, axis: int | None = 0) -> Array:
        """An array whose `axis` is P where the operator's rows are; whole on every device where `axis` is None."""

    @abc.abstractmethod
    def slice(self, tree: PyTree, start: Int[Array, ""] | int, n_rows: int) -> PyTree:
        """The rows start … start + n_rows − 1 of every array [P, ...]."""

    @abc.abstractmethod
    def pick(self, tree: PyTree, indices: Int[Array, " B"]) -> PyTree:
        """The rows of these indices of every array [P, ...]."""

    @abc.abstractmethod
    def add_slice(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], start: Int[Array, ""] | int
    ) -> Float[Array, "P S"]:
        """The array with `change` added to its rows start … start + B − 1."""

    @abc.abstractmethod
    def add(
        self, array: Float[Array, "P S"], change: Float[Array, "B S"], indices: Int[Array, " B"]
    ) -> Float[Array, "P S"]:
        """The array with `change` added to its rows of these indices; what comes twice is added twice."""

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
        """k(rows, X) V, tile by tile. V is [P, S], or a tree of such arrays of which `read` makes a tile's [T, S]."""

    @abc.abstractmethod
    def own_times(self, rows: PyTree, V: Float[Array, "P S"]) -> Float[Array, "S R"]:
        """k(rows_s, X) V_s for each s, `rows` [S R, ...] being R rows for the first column, then R for the second, and so on.

        Derivatives evaluate a tile again instead of keeping it.
        """

    @abc.abstractmethod
    def block_times(
        self, start: Int[Array, ""] | int, n_rows: int, V: PyTree, read: Read = as_it_is
    ) -> Float[Array, "B S"]:
        """(K V) of the rows start … start + n_rows − 1."""

    @abc.abstractmethod
    def rows_times(self, indices: Int[Array, " B"], V: PyTree, read: Read = as_it_is) -> Float[Array, "B S"]:
        """(K V) of any rows."""

    @abc.abstractmethod
    def matvec(
        self, V: Float[Array, "P S"], n_rows: int = BLOCK, read: Read = as_it_is
    ) -> Float[Array, "P S"]:
        """A V in V's dtype, in blocks of `n_rows` rows; rows beyond N are 0. `read` as in `times`."""

    @abc.abstractmethod
    def features_times(
        self, features: Callable[[Array], Float[Array, "N M"]], V: Float[Array, "P S"]
    ) -> Float[Array, "P S"]:
        """Φ Φᵀ V for Φ = features(X); rows beyond N are 0. Raises ValueError for an operator that does not know its inputs."""

    # Parts of the matrix

    @abc.abstractmethod
    def matrix_rows(self, indices: Int[Array, " B"]) -> Float[Array, "B P"]:
        """Rows of K; what is beyond N is anything."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Array, " N"]:
        """diag(A)."""

    @abc.abstractmethod
    def columns(self, indices: Int[Array, " B"]) -> Float[Array, "N B"]:
        """Columns of K, without Σ."""

    def dense(self) -> Float[Array, "N N"]:
        """A as a matrix: N² numbers, on request only."""
        here = self.block(0, self.size)
        return self.kernel.between(here, here) + jnp.diag(self.noise[: self.size])

    # The same operator otherwise

    @abc.abstractmethod
    def reordered(self, order: Int[Array, " N"]) -> "AbstractOperator":
        """The operator of the rows in another order, nothing kept: blocks of a random order are random sets of rows."""

    @abc.abstractmethod
    def keeping(self, n_rows: int | None = None) -> "AbstractOperator":
        """The same operator with the first `n_rows` rows of K (None = `keep_rows`; at most P) kept where it can keep any."""

    @abc.abstractmethod
    def astype(self, dtype: DTypeLike) -> "AbstractOperator":
        """The same numbers in another dtype, nothing kept."""


def filled(
    out: Float[Array, "P S"], size: int, n_rows: int, rows_from: Callable[[Array], Float[Array, "B S"]]
) -> Float[Array, "P S"]:
    """`out` with its first `size` rows from `rows_from(start)`, `n_rows` ≤ size at a time: the last ones overlap."""
    starts = jnp.minimum(jnp.arange(-(-size // n_rows)) * n_rows, size - n_rows)

    def fill(out: Array, start: Array) -> tuple[Array, None]:
        return jax.lax.dynamic_update_slice_in_dim(out, rows_from(start), start, 0), None

    return jax.lax.scan(fill, out, starts)[0]


def one_row(row: PyTree) -> PyTree:
    """A row of arrays [...] as rows [1, ...]."""
    return jax.tree.map(lambda leaf: leaf[None], row)
