"""Kernels of linear functions and of a constant offset."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.kernels.base import AbstractKernel, ActiveDims, as_active_dims, as_amplitude, select
from stochgp.numerics.arrays import matmul
from stochgp.parameters import AbstractParameter, value_of


class Linear(AbstractKernel):
    """The linear kernel k(x, z) = variance · xᵀz.

    Functions wᵀx with w ~ N(0, variance I) have the covariance k. Add `Constant()` for an offset.

    Parameters
    ----------
    variance : number or parameter
        The variance of each weight, in squared units of f per squared unit of the inputs.
    active_dims : iterable of int or None
        The A columns that the kernel uses; None = all columns.
    """

    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)
    active_dims: ActiveDims = eqx.field(static=True, converter=as_active_dims, default=None)

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> Float[Array, "N A"]:
        """Return √variance · x. `centre` is unused, because the kernel is not shift-invariant."""
        return jnp.sqrt(value_of(self.variance, X.dtype)) * select(X, self.active_dims)

    def between(self, rows: Float[Array, "N A"], columns: Float[Array, "P A"]) -> Float[Array, "N P"]:
        return matmul(rows, columns.T)

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return unit vectors x/‖x‖, whose squared distances are 2 − 2 corr(x, z)."""
        rows = select(X, self.active_dims)
        norms = jnp.sqrt(jnp.sum(jnp.square(rows), axis=1, keepdims=True))
        return (rows / jnp.maximum(norms, jnp.finfo(X.dtype).tiny),)


class Constant(AbstractKernel):
    """The constant kernel k = variance, for a random offset that all rows share.

    Parameters
    ----------
    variance : number or parameter
        The variance of the offset.
    """

    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> Float[Array, "N 0"]:
        return X[:, :0]

    def between(self, rows: Float[Array, "N 0"], columns: Float[Array, "P 0"]) -> Float[Array, "N P"]:
        return jnp.broadcast_to(value_of(self.variance, rows.dtype), (rows.shape[0], columns.shape[0]))

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return no points, because all rows have correlation 1."""
        return ()
