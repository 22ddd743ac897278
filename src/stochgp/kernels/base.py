"""What a kernel is; sums and products of kernels."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from stochgp.parameters import Frozen, value_of


class AbstractKernel(eqx.Module):
    """k(x, z): a symmetric, positive semi-definite function of two rows of D inputs.

    Written three times: for one pair, for a block of pairs (by matrix products where possible) and for the
    diagonal; a test holds the three equal. Values have the dtype of the rows; parameters are read in it.
    `kernel + kernel` and `kernel * kernel` are kernels.
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        """k(x, z)."""

    @abc.abstractmethod
    def matrix(self, X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
        """k(X_i, Z_j) for all pairs of rows."""

    @abc.abstractmethod
    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(X_i, X_i) for each row."""

    def __add__(self, other: "AbstractKernel | Frozen") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "AbstractKernel | Frozen") -> "Product":
        return Product(self, other)


def as_kernel(kernel: Any) -> AbstractKernel | Frozen:
    """A kernel, or a frozen kernel, as it is. Raises TypeError for anything else."""
    if not isinstance(value_of(kernel), AbstractKernel):
        raise TypeError(f"a kernel was wanted here, but got {kernel!r}")
    return kernel


class Sum(AbstractKernel):
    """k = left + right: the sum of two independent functions. Either may be `frozen`."""

    left: Any = eqx.field(converter=as_kernel)
    right: Any = eqx.field(converter=as_kernel)

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        return value_of(self.left)(x, z) + value_of(self.right)(x, z)

    def matrix(self, X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
        return value_of(self.left).matrix(X, Z) + value_of(self.right).matrix(X, Z)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return value_of(self.left).diag(X) + value_of(self.right).diag(X)


class Product(AbstractKernel):
    """k = left · right, pair by pair. Either may be `frozen`."""

    left: Any = eqx.field(converter=as_kernel)
    right: Any = eqx.field(converter=as_kernel)

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        return value_of(self.left)(x, z) * value_of(self.right)(x, z)

    def matrix(self, X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
        return value_of(self.left).matrix(X, Z) * value_of(self.right).matrix(X, Z)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return value_of(self.left).diag(X) * value_of(self.right).diag(X)
