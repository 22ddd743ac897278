"""What is not known beyond the range of the rows."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp import kernels
from stochgp.features.base import AbstractFeatureMap, check_rows
from stochgp.features.fourier import RandomFourier
from stochgp.numerics.arrays import on_device
from stochgp.parameters import Frozen, frozen, value_of

N_BEYOND = 128


class Beyond(AbstractFeatureMap):
    """φ(x) = ψ(x) − ψ(c(x)), c_d(x) = min(max(x_d, low_d), high_d) the nearest point of a box, ψ the Fourier features of a stationary kernel k.

    So f(x) = φ(x)·w is g(x) − g(c(x)) of g ~ GP(0, k): 0 in the box, of the variance 2(k(0) − k(x − c(x))) outside, which rises to 2k(0). Nothing in it
    trains: rows of the box say nothing of g, rows outside do. Build it with `init`.

    Parameters
    ----------
    fourier : RandomFourier
        ψ, paired features of k, whose kernel is frozen.
    low, high : frozen array [D]
        The corners of the box, in the units of the inputs.
    """

    fourier: RandomFourier
    low: Frozen
    high: Frozen

    @classmethod
    def init(
        cls,
        limits: Float[np.ndarray, "2 D"],
        variance: float,
        slopes: Float[np.ndarray, " D"],
        *,
        longest: Any = np.inf,
        n_features: int = N_BEYOND,
        key: PRNGKeyArray,
        dtype: DTypeLike = jnp.float32,
    ) -> "Beyond":
        """Far from the box from `limits[0]` to `limits[1]` the variance is `variance`; at its edges f has the root mean square `slopes`.

        k is the RBF kernel of k(0) = variance/2, and its lengthscales are those of E (∂g/∂x_d)² = k(0)/ℓ_d² = slopes_d², at most `longest`.
        """
        least = np.finfo(np.float32).tiny
        lengthscale = np.minimum(np.sqrt(variance / 2) / np.maximum(slopes, least), longest)
        kernel = kernels.RBF(on_device(lengthscale, dtype), on_device(variance / 2, dtype))
        low, high = (frozen(on_device(side, dtype)) for side in limits)
        size = len(lengthscale), n_features
        return cls(RandomFourier.init(frozen(kernel), *size, key=key, paired=True, dtype=dtype), low, high)

    @property
    def n_features(self) -> int:
        return self.fourier.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.fourier.n_inputs)
        low, high = (value_of(side, X.dtype)[None, :] for side in (self.low, self.high))
        nearest = jnp.minimum(jnp.maximum(X, low), high)
        outside = jnp.any(nearest != X, axis=1, keepdims=True)
        return jnp.where(outside, self.fourier(X) - self.fourier(nearest), 0)
