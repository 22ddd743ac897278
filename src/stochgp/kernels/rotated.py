"""Stationary kernels with lengthscales along directions instead of inputs: a full metric."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from stochgp.kernels.stationary import AbstractStationary
from stochgp.kernels.warped import Warped
from stochgp.networks import Dense
from stochgp.numerics.arrays import on_device
from stochgp.parameters import Frozen, Positive, frozen, positive, value_of


def kernel_and_directions(kernel: Any) -> tuple[AbstractStationary, Float[np.ndarray, "D A"]] | None:
    """Return k and W of variance · f(‖(x − z) W / ℓ‖²), a trainable ARD kernel k of u = xW.

    W is the identity, or a frozen linear map. None for other kernels.
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
    """Return the kernel along the orthogonal columns of V: u' = xW', W' = W diag(1/ℓ) V ℓ'."""
    dtype = kernel.lengthscale.dtype
    W = (W / np.asarray(kernel.lengthscale, np.float64)) @ V
    along = 1 / np.linalg.norm(W, axis=0)
    network = Dense(on_device(W * along, dtype), on_device(np.zeros(W.shape[1]), dtype))
    return Warped(dataclasses.replace(kernel, lengthscale=positive(along, dtype=dtype)), frozen(network))


def along_inputs(kernel: Any) -> AbstractStationary | None:
    """Return a stationary kernel, a rotated one with ℓ_d = 1/‖e_d W/ℓ‖, others as None.

    The kernel of the inputs is equal to a rotated one if one input changes.
    """
    if isinstance(value_of(kernel), AbstractStationary):
        return value_of(kernel)
    if (found := kernel_and_directions(kernel)) is None:
        return None
    own, W = found
    lengthscale = 1 / np.linalg.norm(W / np.asarray(own.lengthscale, np.float64), axis=1)
    return dataclasses.replace(own, lengthscale=positive(lengthscale, dtype=own.lengthscale.dtype))
