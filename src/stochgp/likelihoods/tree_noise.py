"""Noise whose variance is a function of the input that trees have learned."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.likelihoods.noise import AbstractNoise
from stochgp.numerics.trees import Trees
from stochgp.parameters import AbstractParameter, Frozen

LARGEST = 16.0  # |log s|


class TreeNoise(AbstractNoise):
    """log s(x) = g(x), a sum of symmetric trees, at most 16 in size: see docs/methods/row_noise.md."""

    level: AbstractParameter
    trees: Frozen  # of `Trees`

    def multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        trees: Trees = self.trees.content
        return jnp.exp(jnp.clip(trees(jnp.asarray(X)), -LARGEST, LARGEST))
