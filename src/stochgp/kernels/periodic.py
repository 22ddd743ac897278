"""The periodic kernel."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.kernels.base import (
    AbstractKernel,
    ActiveDims,
    Points,
    as_active_dims,
    as_amplitude,
    per_input,
    points,
    select,
    squared_distances,
)
from stochgp.parameters import AbstractParameter, as_positive, value_of


class Periodic(AbstractKernel):
    """The periodic kernel k = variance · exp(−2 Σ_d sin²(π (x_d − z_d) / p_d) / ℓ_d²).

    For one input, k is the RBF kernel applied to u(x) = [cos(2πx/p), sin(2πx/p)] / ℓ, a point on a circle
    (MacKay 1998). The squared distance ‖u(x) − u(z)‖² is 4 sin²(π (x − z)/p) / ℓ².

    Parameters
    ----------
    lengthscale : number, array [A] or parameter
        The dimensionless lengthscale ℓ: one number for all active inputs, or one per input.
    variance : number or parameter
        The variance k(x, x).
    period : number, array [A] or parameter
        The period p in the units of the inputs: one number for all active inputs, or one per input.
    active_dims : iterable of int or None
        The A columns that the kernel uses; None = all columns.
    """

    lengthscale: AbstractParameter = eqx.field(converter=as_positive, default=1.0)
    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)
    period: AbstractParameter = eqx.field(converter=as_positive, default=1.0)
    active_dims: ActiveDims = eqx.field(static=True, converter=as_active_dims, default=None)

    def circles(self, x: Float[Array, "... D"]) -> Float[Array, "... C"]:
        """Return the points u(x) on circles."""
        x = select(x, self.active_dims)
        lengthscale = per_input("lengthscale", self.lengthscale, x)
        angle = 2 * jnp.pi * (x / per_input("period", self.period, x))
        return jnp.concatenate([jnp.cos(angle) / lengthscale, jnp.sin(angle) / lengthscale], axis=-1)

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> Points:
        return points(self.circles(X) - jax.lax.stop_gradient(self.circles(centre))[None, :])

    def between(self, rows: Points, columns: Points) -> Float[Array, "N P"]:
        variance = value_of(self.variance, rows.norms.dtype)
        return variance * jnp.exp(-squared_distances(rows, columns) / 2)

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return u(x), because k decreases with the distance between these points."""
        return (self.circles(X),)
