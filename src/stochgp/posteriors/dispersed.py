"""Functions of a posterior whose variances are multiplied by a function of the input."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.likelihoods import AbstractNoise
from stochgp.posteriors.base import AbstractFunctions, AbstractPosterior


class DispersedFunctions(AbstractFunctions):
    """m(x) + √(c s(x)) (f_s(x) − m(x)) for functions f_s of the posterior whose mean is m.

    Parameters
    ----------
    base : AbstractPosterior
        Whose mean is m.
    scale : AbstractNoise
        c s(x), as its `variance` of rows that count once: a factor of variances.
    functions : AbstractFunctions
        The f_s.
    """

    base: AbstractPosterior
    scale: AbstractNoise
    functions: AbstractFunctions

    @property
    def n_samples(self) -> int:
        return self.functions.n_samples

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        mean = jnp.asarray(self.base.mean(X), X.dtype)[:, None]
        root = jnp.sqrt(self.scale.variance(X, jnp.ones(X.shape[0], X.dtype)))[:, None]
        return mean + root * (self.functions(X) - mean)
