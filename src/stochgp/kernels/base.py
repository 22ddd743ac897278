"""The base class of kernels, sums and products, their common fields, and distances of rows."""

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

    A kernel defines a block of pairs, k(X_i, Z_j) = between(prepare(X, c), prepare(Z, c))_ij for any one point c, and maybe a faster diagonal. Values have the dtype
    of the rows, to which parameters are cast. A number or an array given as a parameter becomes a trainable `Positive` parameter. `kernel + kernel`
    and `kernel * kernel` are kernels.
    """

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        """Return k(x, z)."""
        return self.matrix(x[None], z[None])[0, 0]

    @abc.abstractmethod
    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        """Return a pytree with the rows' data for `between`, one entry per row in each leaf.

        Shift-invariant kernels subtract `centre`, a point near the rows, because float32 represents small numbers more accurately.
        """

    @abc.abstractmethod
    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        """Return k(X_i, Z_j) for all pairs of rows, prepared with the same centre and parameters."""

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Return k(X_i, X_i) for each row."""
        return jax.vmap(lambda x: self(x, x))(X)

    def times(self, factor: float) -> "AbstractKernel":
        """Return factor · k, with another `variance`. Raises ValueError if the kernel has none."""
        variance = getattr(self, "variance", None)
        if variance is None:
            raise ValueError(f"{type(self).__name__} has no variance that could be multiplied by {factor:g}")
        return eqx.tree_at(lambda kernel: kernel.variance, self, times(variance, factor))

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return for each term points whose nearest pairs have the highest correlation."""
        return (X,)

    @property
    def has_places(self) -> bool:
        """True if `places` finds the most correlated rows; otherwise all pairs are compared."""
        return True

    @property
    def radial(self) -> Any:
        """The stationary kernel that `between` evaluates on prepared `Points`, or None."""
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
    """Return their mean, as a constant."""
    return jax.lax.stop_gradient(jnp.mean(X, axis=0))


def as_kernel(kernel: Any) -> AbstractKernel | Frozen:
    """Return a kernel or frozen kernel unchanged. Raises TypeError for anything else."""
    if not isinstance(value_of(kernel), AbstractKernel):
        raise TypeError(f"a kernel was wanted here, but got {kernel!r}")
    return kernel


class AbstractPair(AbstractKernel):
    """A kernel of two kernels, which are functions of the same rows. Either may be `frozen`."""

    left: Any = eqx.field(converter=as_kernel)
    right: Any = eqx.field(converter=as_kernel)

    @abc.abstractmethod
    def combine(self, left: Array, right: Array) -> Array:
        """Combine the values of both kernels."""

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        return value_of(self.left).prepare(X, centre), value_of(self.right).prepare(X, centre)

    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        left = value_of(self.left).between(rows[0], columns[0])
        return self.combine(left, value_of(self.right).between(rows[1], columns[1]))

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return the places of both kernels."""
        return (*value_of(self.left).places(X), *value_of(self.right).places(X))

    @property
    def has_places(self) -> bool:
        """True if both kernels have places."""
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
        """Multiply both terms."""
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
        """Multiply the left factor."""
        return Product(value_of(self.left).times(factor), self.right)


ActiveDims = tuple[int, ...] | None


def as_amplitude(variance: Any) -> AbstractParameter:
    """Return one positive number as a parameter. Raises ValueError for an array."""
    parameter = as_positive(variance)
    if parameter.shape != ():
        raise ValueError(f"a variance or an exponent is one number, but got shape {parameter.shape}")
    return parameter


def as_active_dims(dims: Iterable[int] | None) -> ActiveDims:
    """Return the kernel's columns as a tuple; None = all. ValueError if negative, repeated or none."""
    if dims is None:
        return None
    columns = tuple(int(dim) for dim in dims)
    if len(columns) == 0 or min(columns) < 0 or len(set(columns)) < len(columns):
        wanted = "different column numbers from 0 up, at least one"
        raise ValueError(f"active_dims must be {wanted}, but got {columns}")
    return columns


def select(x: Float[Array, "... D"], dims: ActiveDims) -> Float[Array, "... A"]:
    """Return the active columns. Raises ValueError if rows are not floating or lack a column."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"a kernel takes rows of floating numbers, but got dtype {x.dtype}")
    if dims is None:
        return x
    if max(dims) >= (D := x.shape[-1]):
        raise ValueError(f"active_dims {dims} need at least {max(dims) + 1} inputs, but the rows have {D}")
    return x[..., jnp.asarray(dims, dtype=jnp.int32)]


def per_input(name: str, parameter: Any, x: Float[Array, "... A"]) -> Float[Array, "... A"]:
    """Return a parameter's value, one number or one per active input, broadcast to x, or ValueError."""
    value = value_of(parameter, x.dtype)
    if value.shape not in ((), (1,), x.shape[-1:]):
        seen = f"the kernel sees rows of {x.shape[-1]} inputs"
        raise ValueError(f"the {name} has shape {value.shape}, but {seen}")
    return jnp.broadcast_to(value, x.shape)


class Points(NamedTuple):
    """Rows prepared for blocks of distances: separate coordinates, others, and their norms."""

    coordinates: Float[Array, "N A"]
    norms: Float[Array, " N"]  # ‖x‖² of the coordinates
    apart: tuple[Float[Array, " N"], ...]  # differences taken coordinate by coordinate; contiguous columns


def points(coordinates: Float[Array, "N A"], n_apart: int = 0) -> Points:
    """Prepare rows with `n_apart` separate coordinates. Centred rows are more accurate."""
    apart = tuple(coordinates[:, q] for q in range(min(n_apart, coordinates.shape[1])))
    rest = coordinates[:, n_apart:]
    return Points(rest, jnp.sum(jnp.square(rest), axis=1), apart)


def squared_distances(X: Points, Z: Points) -> Float[Array, "N P"]:
    """Return ‖X_i − Z_j‖² by a matrix product, but the separate coordinates q directly.

    It is Σ_q (x_iq − z_jq)² + ‖X_i‖² + ‖Z_j‖² − 2 X_i·Z_j. The last three terms cancel for close rows, to an error of eps (‖X_i‖² + ‖Z_j‖²).
    Results below 4 of these are set to zero, so that repeated rows have distance 0 and k(x, x) the exact variance. Derivatives follow the formula.
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
    """Return the squares, 0 if within the rounding error 4 eps norms; the derivative is 1."""
    within = squares <= 4 * float(jnp.finfo(squares.dtype).eps) * norms
    return squares - jax.lax.stop_gradient(jnp.where(within, squares, jnp.zeros_like(squares)))
