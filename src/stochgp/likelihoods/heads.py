"""Noise whose variance depends on the input through a head: a linear function of features."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.features import AbstractFeatureMap
from stochgp.likelihoods.noise import AbstractNoise
from stochgp.numerics.precision import matmul
from stochgp.parameters import AbstractParameter

# |log s|: no row has more than a thousand times the noise variance of the middle, nor less than a thousandth
LARGEST = math.log(1e3)


class HeadNoise(AbstractNoise):
    """s(x) = exp η(x), η = b tanh(ψ(x)·u / b), b = log 1000: `features` ψ [N, H] and `weights` u [H] train, unless they are frozen.

    With frozen features it is a linear head, with those of a network a network. At u = 0 the noise is constant. The level σ² is the variance where
    ψ(x)·u = 0.
    """

    level: AbstractParameter
    features: AbstractFeatureMap
    weights: Float[Array, " H"]

    def log_multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """η of each row."""
        eta = matmul(self.features(X), jnp.asarray(self.weights, X.dtype))
        return LARGEST * jnp.tanh(eta / LARGEST)

    def multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.exp(self.log_multiplier(X))
