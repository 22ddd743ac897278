"""Targets that a likelihood suits once they are transformed."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp import distributions
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, Rows
from stochgp.likelihoods.gaussian import Gaussian
from stochgp.likelihoods.targets import Above, AbstractTargets
from stochgp.names import lookup
from stochgp.transforms import AbstractTransform, BoxCox, Log, ShiftedLog, SinhArcsinh, YeoJohnson

TRANSFORMS = {
    "log": Log(),
    "box-cox": BoxCox(),
    "yeo-johnson": YeoJohnson(),
    "sinh-arcsinh": SinhArcsinh(),
    "count": ShiftedLog(),
}


def as_likelihood(value: Any) -> AbstractLikelihood:
    """A likelihood as it is; "gaussian" as Gaussian noise."""
    return Gaussian() if value == "gaussian" else value


def as_transform(value: Any) -> AbstractTransform:
    """A transform as it is, or one of TRANSFORMS by its name."""
    if isinstance(value, AbstractTransform):
        return value
    if not isinstance(value, str):
        raise TypeError(
            f"a transform is wanted, or one of the names {', '.join(TRANSFORMS)}, but got {value!r}"
        )
    return lookup(value, TRANSFORMS, "transform")


class Warped(AbstractLikelihood):
    """T(y) | f has the likelihood given: p(y | f) = p(T(y) | f) T'(y).

    `transform` is a value of `stochgp.transforms` or a name: "log" (positive targets), "box-cox", "yeo-johnson", "sinh-arcsinh", or
    "count" (log(y + ½)).
    """

    likelihood: AbstractLikelihood = eqx.field(converter=as_likelihood, default="gaussian")
    transform: AbstractTransform = eqx.field(converter=as_transform, default="log")

    @property
    def targets(self) -> AbstractTargets:
        lower = self.transform.lower
        return self.likelihood.targets if lower == -np.inf else Above(lower)

    @property
    def n_latent(self) -> int:
        return self.likelihood.n_latent

    def log_density(self, y: Float[Array, " N"], f: Latent, X: Rows) -> Float[Array, " N"]:
        """log p(T(y) | f) + log T'(y)."""
        return self.likelihood.log_density(self.transform(y), f, X) + self.transform.log_slope(y)

    def expected_log_density(
        self, y: Float[Array, " N"], mean: Latent, variance: Latent, X: Rows
    ) -> Float[Array, " N"]:
        """The likelihood's at T(y), + log T'(y)."""
        found = self.likelihood.expected_log_density(self.transform(y), mean, variance, X)
        return found + self.transform.log_slope(y)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> distributions.Warped:
        return distributions.Warped(self.likelihood.predictive(mean, variance, X), self.transform)

    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> Float[Array, " N"]:
        return self.transform.inverse(self.likelihood.sample(f, X, key=key))
