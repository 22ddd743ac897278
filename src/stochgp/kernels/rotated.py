"""Stationary kernels with lengthscales along directions instead of inputs: a full metric."""

import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stochgp.kernels.stationary import AbstractStationary
from stochgp.kernels.warped import Warped
from stochgp.networks import Dense
from stochgp.numerics.arrays import on_device
from stochgp.numerics.precision import matmul
from stochgp.parameters import Frozen, Positive, frozen, positive, value_of


class Metric(NamedTuple):
    """The stationary kernel variance · f(‖(x − z) W / ℓ‖²) of u = xW, ℓ per column of W."""

    kernel: AbstractStationary
    directions: Float[Array, "D A"]  # W

    @classmethod
    def of(cls, kernel: Any) -> Optional["Metric"]:
        """Return the metric of a trainable ARD kernel, also behind a frozen linear map, or None."""
        kernel, W = value_of(kernel), None
        if isinstance(kernel, Warped) and isinstance(kernel.network, Frozen):
            network, kernel = value_of(kernel.network), value_of(kernel.kernel)
            W = network.weight if isinstance(network, Dense) else None
            if W is None:
                return None
        if not isinstance(kernel, AbstractStationary) or kernel.active_dims is not None:
            return None
        lengthscale = kernel.lengthscale
        if not isinstance(lengthscale, Positive) or len(lengthscale.shape) != 1 or lengthscale.shape[0] < 2:
            return None
        if W is None:
            W = on_device(np.eye(lengthscale.shape[0]), lengthscale.dtype)
        return cls(kernel, W)

    def rows(self, X: Float[Array, "N D"]) -> Float[Array, "N A"]:
        """Return u = xW of each row."""
        return matmul(X, self.directions.astype(X.dtype))

    def lengthscale(self, dtype: DTypeLike) -> Float[Array, " A"]:
        return value_of(self.kernel.lengthscale, dtype)

    def turned(self, V: Float[np.ndarray, "A A"]) -> Warped:
        """Return the kernel along the orthogonal columns of V: u' = xW', W' = W diag(1/ℓ) V ℓ'."""
        lengthscale = np.asarray(self.kernel.lengthscale, np.float64)
        dtype = self.kernel.lengthscale.dtype
        W = (np.asarray(self.directions, np.float64) / lengthscale) @ V
        along = 1 / np.linalg.norm(W, axis=0)
        network = Dense(on_device(W * along, dtype), on_device(np.zeros(W.shape[1]), dtype))
        kernel = dataclasses.replace(self.kernel, lengthscale=positive(along, dtype=dtype))
        return Warped(kernel, frozen(network))

    def of_inputs(self) -> AbstractStationary:
        """Return the kernel of the inputs that is equal if one input changes: ℓ_d = 1/‖e_d W/ℓ‖."""
        scaled = np.asarray(self.directions, np.float64) / np.asarray(self.kernel.lengthscale, np.float64)
        lengthscale = 1 / np.linalg.norm(scaled, axis=1)
        return dataclasses.replace(
            self.kernel, lengthscale=positive(lengthscale, dtype=self.kernel.lengthscale.dtype)
        )


def along_inputs(kernel: Any) -> AbstractStationary | None:
    """Return a stationary kernel, a rotated one as `Metric.of_inputs`, others as None."""
    kernel = value_of(kernel)
    if isinstance(kernel, AbstractStationary):
        return kernel
    metric = Metric.of(kernel)
    return None if metric is None else metric.of_inputs()
