"""The base class of kernels, sums and products, and distances between rows."""

import abc
from collections.abc import Iterable
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from stochgp.numerics.arrays import matmul
from stochgp.parameters import AbstractParameter, Frozen, as_positive, times, value_of


class AbstractKernel(eqx.Module):
    """A symmetric, positive semi-definite function k(x, z) of two rows of D inputs.

    A subclass implements `prepare` and `between`: element (i, j) of between(prepare(X, c), prepare(Z, c)) is
    k(X_i, Z_j) for any point c. Kernel values have the dtype of the rows. A number or an array passed as a
    parameter becomes a trainable `Positive` parameter. `kernel + kernel` and `kernel * kernel` are kernels.
    """

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        """Return k(x, z)."""
        return self.matrix(x[None], z[None])[0, 0]

    @abc.abstractmethod
    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        """Return a pytree of data for `between`; each leaf has one entry per row.

        Shift-invariant kernels subtract `centre`, a point near the rows, to reduce rounding errors.
        """

    @abc.abstractmethod
    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        """Return k(X_i, Z_j) for all pairs of rows that were prepared with the same centre."""

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Return k(X_i, X_i) for each row."""
        return jax.vmap(lambda x: self(x, x))(X)

    def times(self, factor: float) -> "AbstractKernel":
        """Return the kernel times `factor`. Raises ValueError if the kernel has no `variance`."""
        variance = getattr(self, "variance", None)
        if variance is None:
            raise ValueError(f"cannot multiply {type(self).__name__} by {factor:g}: it has no variance")
        return eqx.tree_at(lambda kernel: kernel.variance, self, times(variance, factor))

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return points for each term of the kernel; rows with nearer points correlate more."""
        return (X,)

    @property
    def has_places(self) -> bool:
        """True if distances between the points of `places` rank rows by correlation."""
        return True

    @property
    def radial(self) -> Any:
        """The stationary kernel that `between` applies to prepared `Points`, or None."""
        return None

    @final
    def matrix(self, X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
        """Return k(X_i, Z_j) for all pairs of rows."""
        centre = centre_of(Z)
        rows = self.prepare(X, centre)
        return self.between(rows, rows if Z is X else self.prepare(Z, centre))

    def __add__(self, other: "AbstractKernel | Frozen") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "AbstractKernel | Frozen") -> "Product":
        return Product(self, other)


def centre_of(X: Float[Array, "N D"]) -> Float[Array, " D"]:
    """Return the mean of the rows, without a gradient."""
    return jax.lax.stop_gradient(jnp.mean(X, axis=0))


def as_kernel(kernel: Any) -> AbstractKernel | Frozen:
    """Return a kernel or frozen kernel unchanged. Raises TypeError for anything else."""
    if not isinstance(value_of(kernel), AbstractKernel):
        raise TypeError(f"expected a kernel, but got {kernel!r}")
    return kernel


class AbstractPair(AbstractKernel):
    """A kernel that combines two kernels of the same rows. Either may be `frozen`."""

    left: Any = eqx.field(converter=as_kernel)
    right: Any = eqx.field(converter=as_kernel)

    @abc.abstractmethod
    def combine(self, left: Array, right: Array) -> Array:
        """Return the combined values of both kernels."""

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        return value_of(self.left).prepare(X, centre), value_of(self.right).prepare(X, centre)

    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        left = value_of(self.left).between(rows[0], columns[0])
        return self.combine(left, value_of(self.right).between(rows[1], columns[1]))

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        return (*value_of(self.left).places(X), *value_of(self.right).places(X))

    @property
    def has_places(self) -> bool:
        return value_of(self.left).has_places and value_of(self.right).has_places


class Sum(AbstractPair):
    """The kernel k(x, z) = left(x, z) + right(x, z).

    Parameters
    ----------
    left, right : kernel
        Two kernels of the same rows; either may be `frozen`. `times` multiplies both.
    """

    def combine(self, left: Array, right: Array) -> Array:
        return left + right

    def times(self, factor: float) -> "Sum":
        return Sum(value_of(self.left).times(factor), value_of(self.right).times(factor))


class Product(AbstractPair):
    """The kernel k(x, z) = left(x, z) · right(x, z).

    Parameters
    ----------
    left, right : kernel
        Two kernels of the same rows; either may be `frozen`. `times` multiplies `left`.
    """

    def combine(self, left: Array, right: Array) -> Array:
        return left * right

    def times(self, factor: float) -> "Product":
        return Product(value_of(self.left).times(factor), self.right)


ActiveDims = tuple[int, ...] | None


def as_amplitude(variance: Any) -> AbstractParameter:
    """Return a positive number as a parameter. Raises ValueError for an array."""
    parameter = as_positive(variance)
    if parameter.shape != ():
        raise ValueError(f"a variance or exponent must be one number, but has shape {parameter.shape}")
    return parameter


def as_active_dims(dims: Iterable[int] | None) -> ActiveDims:
    """Return the columns as a tuple. Raises ValueError if it is empty or has invalid numbers."""
    if dims is None:
        return None
    columns = tuple(int(dim) for dim in dims)
    if len(columns) == 0 or min(columns) < 0 or len(set(columns)) < len(columns):
        wanted = "one or more distinct column numbers, counted from 0"
        raise ValueError(f"active_dims must be {wanted}, but is {columns}")
    return columns


def select(x: Float[Array, "... D"], dims: ActiveDims) -> Float[Array, "... A"]:
    """Return the active columns. Raises ValueError for integer rows or too few columns."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"a kernel needs rows of a floating-point dtype, but got {x.dtype}")
    if dims is None:
        return x
    if max(dims) >= (D := x.shape[-1]):
        raise ValueError(f"active_dims {dims} needs at least {max(dims) + 1} inputs, but the rows have {D}")
    return x[..., jnp.asarray(dims, dtype=jnp.int32)]


def per_input(name: str, parameter: Any, x: Float[Array, "... A"]) -> Float[Array, "... A"]:
    """Return a parameter, broadcast to x. Raises ValueError if its shape does not fit."""
    value = value_of(parameter, x.dtype)
    if value.shape not in ((), (1,), x.shape[-1:]):
        seen = f"the kernel uses {x.shape[-1]} inputs"
        raise ValueError(f"the {name} has shape {value.shape}, but {seen}")
    return jnp.broadcast_to(value, x.shape)


class Points(NamedTuple):
    """Rows that are prepared for the computation of squared distances."""

    coordinates: Float[Array, "N A"]
    norms: Float[Array, " N"]  # squared norms of `coordinates`
    apart: tuple[Float[Array, " N"], ...]  # coordinates whose differences are squared directly


def points(coordinates: Float[Array, "N A"], n_apart: int = 0) -> Points:
    """Prepare rows for distances, and keep the first `n_apart` coordinates apart."""
    apart = tuple(coordinates[:, q] for q in range(min(n_apart, coordinates.shape[1])))
    rest = coordinates[:, n_apart:]
    return Points(rest, jnp.sum(jnp.square(rest), axis=1), apart)


def squared_distances(X: Points, Z: Points) -> Float[Array, "N P"]:
    """Return ‖X_i − Z_j‖² from a matrix product, except for coordinates kept apart.

    The product form ‖X_i‖² + ‖Z_j‖² − 2 X_i·Z_j has rounding errors of about eps (‖X_i‖² + ‖Z_j‖²). Values
    of at most 4 times this error are set to 0, so that equal rows have distance 0. Derivatives are unchanged.
    """
    squares = jnp.zeros((X.norms.shape[0], Z.norms.shape[0]), X.norms.dtype)
    if X.coordinates.shape[1] > 0:
        norms = X.norms[:, None] + Z.norms[None, :]
        product = norms - 2 * matmul(X.coordinates, Z.coordinates.T)
        squares = above(product, norms)
    for x, z in zip(X.apart, Z.apart, strict=True):
        squares = squares + jnp.square(x[:, None] - z[None, :])
    return squares


def above(squares: Array, norms: Array) -> Array:
    """Return squares, with 0 for values of at most 4 eps · norms. The derivative is 1."""
    within = squares <= 4 * float(jnp.finfo(squares.dtype).eps) * norms
    return squares - jax.lax.stop_gradient(jnp.where(within, squares, jnp.zeros_like(squares)))
