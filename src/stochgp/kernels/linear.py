"""Kernels of linear functions: slopes and an offset."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.kernels.base import AbstractKernel, ActiveDims, as_active_dims, as_amplitude, select
from stochgp.numerics.arrays import matmul
from stochgp.parameters import AbstractParameter, value_of


class Linear(AbstractKernel):
    """k = variance · x·z: functions wᵀx with w ~ N(0, variance I).

    There is no offset; add `Constant()` for one.

    Parameters
    ----------
    variance : number or parameter
        The variance of each weight: squared units of f per squared unit of the inputs.
    active_dims : iterable of int or None
        The columns that the kernel uses, A of them; None = all.
    """

    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)
    active_dims: ActiveDims = eqx.field(static=True, converter=as_active_dims, default=None)

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> Float[Array, "N A"]:
        """Return √variance · x, not centred: the kernel depends on the origin."""
        return jnp.sqrt(value_of(self.variance, X.dtype)) * select(X, self.active_dims)

    def between(self, rows: Float[Array, "N A"], columns: Float[Array, "P A"]) -> Float[Array, "N P"]:
        return matmul(rows, columns.T)

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return x/‖x‖: ‖x/‖x‖ − z/‖z‖‖² = 2 − 2 corr(x, z)."""
        rows = select(X, self.active_dims)
        norms = jnp.sqrt(jnp.sum(jnp.square(rows), axis=1, keepdims=True))
        return (rows / jnp.maximum(norms, jnp.finfo(X.dtype).tiny),)


class Constant(AbstractKernel):
    """k = variance: one random offset for all rows.

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
        """Return no points: all rows are alike."""
        return ()
