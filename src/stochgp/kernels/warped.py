"""Deep kernels of a network's output, and stationary kernels of rotated inputs."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from stochgp.kernels.base import AbstractKernel, as_kernel
from stochgp.kernels.stationary import AbstractStationary
from stochgp.networks import Dense
from stochgp.numerics.arrays import full_precision, on_device
from stochgp.parameters import Frozen, Positive, frozen, partition, positive, value_of

T = TypeVar("T")


class Warped(AbstractKernel):
    """A deep kernel k(x, z) = kernel(g(x), g(z)) with a network or function g.

    The map g turns a row of D inputs into P numbers (Wilson et al. 2016). Both the kernel and g are learned,
    unless they are `frozen`. A GP with a linear kernel of g(x) equals a feature GP with the features
    `features.Network(g)`.

    Parameters
    ----------
    kernel : kernel
        A kernel of the outputs of g; its lengthscales have the units of these outputs.
    network : callable
        The map g: a function, or an Equinox module, whose floating-point arrays are learned.
    """

    kernel: Any = eqx.field(converter=as_kernel)
    network: Callable[[Array], Array]

    def rows(self, X: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """Return g(x) for each row x."""
        with full_precision():
            return jax.vmap(self.network)(X)

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> PyTree:
        """Prepare the outputs of the network for the inner kernel, with g(centre) as centre."""
        warped_centre = jax.lax.stop_gradient(self.rows(centre[None, :])[0])
        known = jnp.isfinite(warped_centre)  # g may be undefined at the centre
        warped_centre = jnp.where(known, warped_centre, jnp.zeros_like(warped_centre))
        return value_of(self.kernel).prepare(self.rows(X), warped_centre)

    def between(self, rows: PyTree, columns: PyTree) -> Float[Array, "N P"]:
        return value_of(self.kernel).between(rows, columns)

    @property
    def radial(self) -> Any:
        return value_of(self.kernel).radial

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return value_of(self.kernel).diag(self.rows(X))

    def times(self, factor: float) -> "Warped":
        return Warped(value_of(self.kernel).times(factor), self.network)

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        return value_of(self.kernel).places(self.rows(X))

    @property
    def has_places(self) -> bool:
        return value_of(self.kernel).has_places


def networks_held(model: T) -> T:
    """Return the kernel or model with the network of every `Warped` kernel frozen."""

    def hold(node: Any) -> Any:
        return Warped(networks_held(node.kernel), frozen(node.network)) if _is_warped(node) else node

    return jax.tree.map(hold, model, is_leaf=_is_warped)


def is_deep(model: Any) -> bool:
    """Return True if the kernel or model has a network that trains."""
    networks = [node for node in jax.tree.leaves(model, is_leaf=_stops) if isinstance(node, Warped)]
    return any(jax.tree.leaves(partition(node.network)[0]) or is_deep(node.kernel) for node in networks)


def _is_warped(node: Any) -> bool:
    return isinstance(node, Warped)


def _stops(node: Any) -> bool:
    return isinstance(node, Warped | Frozen)


def kernel_and_directions(kernel: Any) -> tuple[AbstractStationary, Float[np.ndarray, "D A"]] | None:
    """Return an ARD kernel k and the matrix W, if the kernel is k of inputs xW.

    W is the identity or a frozen linear map. Return None for other kernels.
    """
    kernel, W = value_of(kernel), None
    if isinstance(kernel, Warped) and isinstance(kernel.network, Frozen):
        network, kernel = value_of(kernel.network), value_of(kernel.kernel)
        if not isinstance(network, Dense):
            return None
        W = np.asarray(network.weight, np.float64)
    if not isinstance(kernel, AbstractStationary) or kernel.active_dims is not None:
        return None
    lengthscale = kernel.lengthscale
    if not isinstance(lengthscale, Positive) or len(lengthscale.shape) != 1 or lengthscale.shape[0] < 2:
        return None
    return kernel, np.eye(lengthscale.shape[0]) if W is None else W


def turned(kernel: AbstractStationary, W: Float[np.ndarray, "D A"], V: Float[np.ndarray, "A A"]) -> Warped:
    """Return the kernel of xW' with W' = W diag(1/ℓ) V diag(ℓ') and unit columns of W'."""
    dtype = kernel.lengthscale.dtype
    W = (W / np.asarray(kernel.lengthscale, np.float64)) @ V
    along = 1 / np.linalg.norm(W, axis=0)
    network = Dense(on_device(W * along, dtype), on_device(np.zeros(W.shape[1]), dtype))
    return Warped(dataclasses.replace(kernel, lengthscale=positive(along, dtype=dtype)), frozen(network))


def along_inputs(kernel: Any) -> AbstractStationary | None:
    """Return a stationary kernel of the inputs, or None if there is none.

    A rotated kernel gets ℓ_d = 1/‖row d of W/ℓ‖; the kernels are equal if only input d changes.
    """
    if isinstance(value_of(kernel), AbstractStationary):
        return value_of(kernel)
    if (found := kernel_and_directions(kernel)) is None:
        return None
    own, W = found
    lengthscale = 1 / np.linalg.norm(W / np.asarray(own.lengthscale, np.float64), axis=1)
    return dataclasses.replace(own, lengthscale=positive(lengthscale, dtype=own.lengthscale.dtype))
