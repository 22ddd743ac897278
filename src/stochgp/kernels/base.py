"""What a kernel is; sums and products of kernels; the fields that kernels have in common: columns, amplitude, lengths."""

import abc
from collections.abc import Iterable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from stochgp.parameters import AbstractParameter, Frozen, as_positive, times, value_of


class AbstractKernel(eqx.Module):
    """k(x, z): a symmetric, positive semi-definite function of two rows of D inputs.

    Written twice: for a block of pairs (by matrix products where possible) and for the diagonal; a test holds
    the two equal. Values have the dtype of the rows; parameters are read in it. Where a
    parameter is wanted, a number or an array is a `Positive` one, which trains. `kernel + kernel` and
    `kernel * kernel` are kernels.

    A block is made in two steps, so that who wants many blocks of the same rows pays for the rows once:

        k(X_i, Z_j) = between(prepare(X, c), prepare(Z, c))_ij   for any one point c.
    """

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        """k(x, z)."""
        return self.matrix(x[None], z[None])[0, 0]

    @abc.abstractmethod
    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        """What `between` needs of the rows, at the kernel's parameters.

        Each leaf has N as its first axis, one entry per row: gather, slice and stack with `jax.tree.map`.
        `centre` is a point near the rows. What is invariant to shifts subtracts it, because float32 says
        small numbers more accurately; no value depends on it otherwise.
        """

    @abc.abstractmethod
    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        """k(X_i, Z_j) for all pairs of rows of X and Z, prepared with the same centre and parameters."""

    @abc.abstractmethod
    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(X_i, X_i) for each row."""

    def times(self, factor: float) -> "AbstractKernel":
        """factor · k: a kernel of the same kind with another `variance`. Raises ValueError for a kernel that has none."""
        variance = getattr(self, "variance", None)
        if variance is None:
            raise ValueError(f"{type(self).__name__} has no variance that could be multiplied by {factor:g}")
        return eqx.tree_at(lambda kernel: kernel.variance, self, times(variance, factor))

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Rows as points: those nearest in Euclidean distance have the highest correlation, in one term of the kernel at least.

        Several sets of points where the kernel has several terms; none where it cannot tell rows apart. The inputs themselves unless
        a kernel knows better.
        """
        return (X,)

    @property
    def has_places(self) -> bool:
        """Whether `places` tells which rows correlate most. Otherwise all pairs are compared to find them."""
        return True

    @property
    def radial(self) -> Any:
        """The stationary kernel that `between` is, prepared rows being `Points`; None of other kernels."""
        return None

    @final
    def matrix(self, X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
        """k(X_i, Z_j) for all pairs of rows."""
        centre = centre_of(Z)
        rows = self.prepare(X, centre)
        return self.between(rows, rows if Z is X else self.prepare(Z, centre))

    def __add__(self, other: "AbstractKernel | Frozen") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "AbstractKernel | Frozen") -> "Product":
        return Product(self, other)


def centre_of(X: Float[Array, "N D"]) -> Float[Array, " D"]:
    """Their mean, as a constant."""
    return jax.lax.stop_gradient(jnp.mean(X, axis=0))


def as_kernel(kernel: Any) -> AbstractKernel | Frozen:
    """A kernel, or a frozen kernel, as it is. Raises TypeError for anything else."""
    if not isinstance(value_of(kernel), AbstractKernel):
        raise TypeError(f"a kernel was wanted here, but got {kernel!r}")
    return kernel


class AbstractPair(AbstractKernel):
    """A kernel of two others, functions of the same rows. Either may be `frozen`."""

    left: Any = eqx.field(converter=as_kernel)
    right: Any = eqx.field(converter=as_kernel)

    @abc.abstractmethod
    def combine(self, left: Array, right: Array) -> Array:
        """Of the values of both."""

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        return value_of(self.left).prepare(X, centre), value_of(self.right).prepare(X, centre)

    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        left = value_of(self.left).between(rows[0], columns[0])
        return self.combine(left, value_of(self.right).between(rows[1], columns[1]))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return self.combine(value_of(self.left).diag(X), value_of(self.right).diag(X))

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Of both."""
        return (*value_of(self.left).places(X), *value_of(self.right).places(X))

    @property
    def has_places(self) -> bool:
        """Whether both have."""
        return value_of(self.left).has_places and value_of(self.right).has_places


class Sum(AbstractPair):
    """k = left + right: the sum of two independent functions. Either may be `frozen`.

    Parameters
    ----------
    left, right : kernel
        The terms, functions of the same rows; `times` multiplies both.
    """

    def combine(self, left: Array, right: Array) -> Array:
        return left + right

    def times(self, factor: float) -> "Sum":
        """Both terms."""
        return Sum(value_of(self.left).times(factor), value_of(self.right).times(factor))


class Product(AbstractPair):
    """k = left · right, pair by pair. Either may be `frozen`.

    Parameters
    ----------
    left, right : kernel
        The factors, functions of the same rows; `times` multiplies the left one.
    """

    def combine(self, left: Array, right: Array) -> Array:
        return left * right

    def times(self, factor: float) -> "Product":
        """The left factor."""
        return Product(value_of(self.left).times(factor), self.right)


ActiveDims = tuple[int, ...] | None


def as_amplitude(variance: Any) -> AbstractParameter:
    """One positive number as a parameter. Raises ValueError for an array of them."""
    parameter = as_positive(variance)
    if parameter.shape != ():
        raise ValueError(f"a variance or an exponent is one number, but got shape {parameter.shape}")
    return parameter


def as_active_dims(dims: Iterable[int] | None) -> ActiveDims:
    """The columns that a kernel sees, as a tuple; None = all.

    Raises ValueError for negative, repeated or no columns.
    """
    if dims is None:
        return None
    columns = tuple(int(dim) for dim in dims)
    if len(columns) == 0 or min(columns) < 0 or len(set(columns)) < len(columns):
        raise ValueError(
            f"active_dims must be different column numbers from 0 up, at least one, but got {columns}"
        )
    return columns


def select(x: Float[Array, "... D"], dims: ActiveDims) -> Float[Array, "... A"]:
    """The active columns. Raises ValueError when the rows are not floating or lack one of the columns."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"a kernel takes rows of floating numbers, but got dtype {x.dtype}")
    if dims is None:
        return x
    if max(dims) >= x.shape[-1]:
        raise ValueError(
            f"active_dims {dims} need at least {max(dims) + 1} inputs, but the rows have {x.shape[-1]}"
        )
    return x[..., jnp.asarray(dims, dtype=jnp.int32)]


def per_input(name: str, parameter: Any, x: Float[Array, "... A"]) -> Float[Array, "... A"]:
    """The value of a parameter that is one number or one per active input, spread over x.

    Raises ValueError for other shapes.
    """
    value = value_of(parameter, x.dtype)
    if value.shape not in ((), (1,), x.shape[-1:]):
        raise ValueError(
            f"the {name} has shape {value.shape}, but the kernel sees rows of {x.shape[-1]} inputs"
        )
    return jnp.broadcast_to(value, x.shape)
