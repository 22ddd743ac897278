"""Kernels of linear functions: slopes and an offset."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.kernels.base import AbstractKernel
from stochgp.kernels.fields import ActiveDims, as_active_dims, as_amplitude, select
from stochgp.parameters import AbstractParameter, value_of
from stochgp.precision import matmul


class Linear(AbstractKernel):
    """k = variance · x·z: functions wᵀx with w ~ N(0, variance I).

    There is no offset; add `Constant()` for one.
    """

    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)
    active_dims: ActiveDims = eqx.field(static=True, converter=as_active_dims, default=None)

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        return value_of(self.variance, x.dtype) * jnp.sum(
            select(x, self.active_dims) * select(z, self.active_dims)
        )

    def matrix(self, X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
        return value_of(self.variance, X.dtype) * matmul(
            select(X, self.active_dims), select(Z, self.active_dims).T
        )

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return value_of(self.variance, X.dtype) * jnp.sum(jnp.square(select(X, self.active_dims)), axis=1)


class Constant(AbstractKernel):
    """k = variance: one random offset for all rows."""

    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        return value_of(self.variance, x.dtype)

    def matrix(self, X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
        return jnp.broadcast_to(value_of(self.variance, X.dtype), (X.shape[0], Z.shape[0]))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.broadcast_to(value_of(self.variance, X.dtype), X.shape[:1])
