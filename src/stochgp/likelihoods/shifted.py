"""A likelihood whose latent function has a prior mean."""

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.distributions import AbstractDistribution
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, Rows
from stochgp.transforms import AbstractTransform, Anchored


class Shifted(AbstractLikelihood):
    """p(y | f + shift) of the likelihood given: a Gaussian process with mean 0 then stands for one with the constant mean `shift`.

    Counts are not standardised, so a regressor gives the logarithm of their average to their latent function in this way.
    """

    likelihood: AbstractLikelihood
    shift: float = eqx.field(static=True)

    @property
    def n_latent(self) -> int:
        return self.likelihood.n_latent

    @property
    def mean_transform(self) -> AbstractTransform | None:
        """T(y) − shift."""
        inner = self.likelihood.mean_transform
        return None if inner is None else Anchored(inner, 0.0, 1.0, 1.0, -self.shift)

    def log_density(self, y: Float[Array, " N"], f: Latent, X: Rows) -> Float[Array, " N"]:
        """log p(y | f + shift)."""
        return self.likelihood.log_density(y, f + self.shift, X)

    def expected_log_density(
        self, y: Float[Array, " N"], mean: Latent, variance: Latent, X: Rows
    ) -> Float[Array, " N"]:
        """That of the likelihood at mean + shift."""
        return self.likelihood.expected_log_density(y, mean + self.shift, variance, X)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> AbstractDistribution:
        return self.likelihood.predictive(mean + self.shift, variance, X)

    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> Float[Array, " N"]:
        return self.likelihood.sample(f + self.shift, X, key=key)
