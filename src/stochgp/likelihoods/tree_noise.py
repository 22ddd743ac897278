"""Noise whose variance is a function of the input that trees have learned."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.likelihoods.noise import AbstractNoise
from stochgp.numerics.trees import Trees
from stochgp.parameters import AbstractParameter, Frozen

LARGEST = 16.0  # |log s|


class TreeNoise(AbstractNoise):
    """log s(x) = g(x) + log s_b(x): g a sum of symmetric trees, at most 16 in size, s_b the multiplier of `base`, 1 without it.

    See docs/methods/row_noise.md.
    """

    level: AbstractParameter
    trees: Frozen  # of `Trees`
    base: AbstractNoise | None = None

    def multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        trees: Trees = self.trees.content
        of_trees = jnp.exp(jnp.clip(trees(jnp.asarray(X)), -LARGEST, LARGEST))
        return of_trees if self.base is None else of_trees * self.base.multiplier(X)
