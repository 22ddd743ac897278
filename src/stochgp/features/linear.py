"""The inputs themselves: Bayesian linear regression as a Gaussian process."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.features.base import AbstractFeatureMap, check_rows


class Linear(AbstractFeatureMap):
    """φ(x) = (1, x₁, …, x_D)/√(D + 1): φ(x)·φ(z) = (1 + x·z)/(D + 1), so that f is linear, also far from the rows. Nothing in it trains.

    Parameters
    ----------
    n_inputs : int
        D, the number of inputs.
    """

    n_inputs: int

    @property
    def n_features(self) -> int:
        return self.n_inputs + 1

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        return jnp.concatenate([jnp.ones_like(X[:, :1]), X], axis=1) / self.n_features**0.5
