"""Deep kernels: a kernel on a network's output."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from stochgp.kernels.base import AbstractKernel, as_kernel
from stochgp.parameters import value_of
from stochgp.precision import full_precision


class Warped(AbstractKernel):
    """k = kernel(g(x), g(z)), g any network or function of ONE row x [D] that returns z [P].

    Wilson et al. (2016). Kernel and network train together; either may be `frozen`. `features.Network` is the same model with a
    linear kernel as a map.
    """

    kernel: Any = eqx.field(converter=as_kernel)
    network: Callable[[Array], Array]

    def rows(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """g of each row."""
        with full_precision():
            return jax.vmap(self.network)(X)

    def __call__(self, x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        with full_precision():
            return value_of(self.kernel)(self.network(x), self.network(z))

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        """The inner kernel's, of the network's output around g(centre)."""
        warped_centre = jax.lax.stop_gradient(self.rows(centre[None, :])[0])
        known = jnp.isfinite(warped_centre)  # g need not be defined between the rows
        warped_centre = jnp.where(known, warped_centre, jnp.zeros_like(warped_centre))
        return value_of(self.kernel).prepare(self.rows(X), warped_centre)

    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        return value_of(self.kernel).between(rows, columns)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return value_of(self.kernel).diag(self.rows(X))
