"""Transformed targets, and latent functions with a prior mean."""

from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray

from stochgp import transforms
from stochgp.distributions import AbstractDistribution
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, PerRow, Rows
from stochgp.names import lookup
from stochgp.transforms import AbstractTransform, Anchored

TRANSFORMS = {"log": transforms.Log(), "sinh-arcsinh": transforms.SinhArcsinh(), "count": transforms.Log(0.5)}
AUTO = "auto"  # chosen on held-out rows


def as_transform(value: Any) -> AbstractTransform | str:
    """Return a transform or "auto" unchanged, or one of TRANSFORMS by its name."""
    if isinstance(value, AbstractTransform) or (isinstance(value, str) and value == AUTO):
        return value
    if not isinstance(value, str):
        names = ", ".join(TRANSFORMS)
        raise TypeError(f"a transform is wanted, or one of the names {names}, but got {value!r}")
    return lookup(value, TRANSFORMS | {AUTO: AUTO}, "transform")


class Warped(eqx.Module):
    """A setting of regressors: T(y) | f has this likelihood, p(y | f) = p(T(y) | f) T'(y).

    A regressor transforms its targets before it standardises them, learns the transform's parameters from them, and predicts in the units of y.

    Parameters
    ----------
    likelihood : likelihood or str
        The likelihood of T(y): an object of `stochgp.likelihoods`, or any name valid for the regressor's own `likelihood`.
    transform : transform or str
        T: an object of `stochgp.transforms` or a name, "log" (positive targets), "sinh-arcsinh" or "count"
        (log(y + ½)), or "auto": chosen on held-out rows, which may give no transform.
    """

    likelihood: Any = "gaussian"
    transform: Any = eqx.field(converter=as_transform, default="log")


class Shifted(AbstractLikelihood):
    """The likelihood p(y | f + shift): a GP f with mean 0 represents one with mean `shift`.

    A regressor of counts, which are not standardised, shifts the latent function by the logarithm of their average.

    Parameters
    ----------
    likelihood : likelihood
        p, an object of `stochgp.likelihoods`.
    shift : float
        Added to each latent function, in its units.
    """

    likelihood: AbstractLikelihood
    shift: float = eqx.field(static=True)

    @property
    def n_latent(self) -> int:
        return self.likelihood.n_latent

    @property
    def mean_transform(self) -> AbstractTransform | None:
        """The transform T(y) − shift."""
        inner = self.likelihood.mean_transform
        return None if inner is None else Anchored(inner, 0.0, 1.0, 1.0, -self.shift)

    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return log p(y | f + shift)."""
        return self.likelihood.log_density(y, f + self.shift, X)

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        """Return the likelihood's value at mean + shift."""
        return self.likelihood.expected_log_density(y, mean + self.shift, variance, X)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> AbstractDistribution:
        return self.likelihood.predictive(mean + self.shift, variance, X)

    def sample(self, f: Latent, X: Rows, *, key: PRNGKeyArray) -> PerRow:
        return self.likelihood.sample(f + self.shift, X, key=key)
