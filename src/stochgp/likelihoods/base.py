"""The interface of likelihoods, targets given latent functions; transformed targets, and latent functions with a prior mean."""

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from stochgp import transforms
from stochgp.distributions import AbstractDistribution
from stochgp.names import lookup
from stochgp.transforms import AbstractTransform, Anchored

LARGEST_EXPONENT = 40.0  # above it exponentials continue linearly
TRANSFORMS = {"log": transforms.Log(), "sinh-arcsinh": transforms.SinhArcsinh(), "count": transforms.Log(0.5)}
AUTO = "auto"  # chosen on held-out rows
COUNT = "count"  # log(y + ½), with predictions that are whole numbers
NODES = 32  # of Gauss–Hermite quadrature for one latent function

Rows = Float[Any, "N D"]
PerRow = Float[Array, " N"]
Latent = Float[Array, "N L"]
HostLatent = Float64[np.ndarray, "N L"]


class AbstractLikelihood(eqx.Module):
    """The density p(y | f(x), x) of one target y given L latent functions f = (f_1, …, f_L).

    The values of N rows are [N, L]. Targets are floats, also for classes 0, …, C − 1. Callers multiply the log density of a row by its weight ρ. X [N, D] are
    the model's rows, for input-dependent noise. Every floating array that is not frozen trains.
    """

    is_of_counts: ClassVar[bool] = False  # targets are not standardised; f is the logarithm of their mean

    @property
    def n_latent(self) -> int:
        """L."""
        return 1

    @property
    def mean_transform(self) -> AbstractTransform | None:
        """The transform T with E(y | f) = T⁻¹(f), log for counts; None if the mean is f itself, or does not exist."""
        return transforms.Log() if self.is_of_counts else None

    @abc.abstractmethod
    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return log p(y_i | f_i) of each row, for counts and classes the log probability."""

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        """Return ∫ log p(y_i | f) N(f; mean_i, diag variance_i) df, for L = 1 by quadrature."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        nodes, weights = (jnp.asarray(part, mean.dtype) for part in (nodes, weights / math.sqrt(2 * math.pi)))
        std = jnp.sqrt(variance)
        values = jax.vmap(lambda z: self.log_density(y, mean + z * std, X))(nodes)  # [K, N]
        return jnp.tensordot(weights, values, 1)

    def drawn_log_density(
        self, y: PerRow, mean: Latent, variance: Latent, X: Rows, *, key: PRNGKeyArray
    ) -> PerRow:
        """Return an unbiased estimate of `expected_log_density` by few draws, if it needs draws."""
        return self.expected_log_density(y, mean, variance, X)

    @abc.abstractmethod
    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> AbstractDistribution:
        """Return the distribution of an observation at each row, given f ~ N(mean, diag variance); a variance may be 0."""


def safe_exp(x: Array) -> Array:
    """Return e^x up to x = 40, then its tangent: its square and slope are finite in float32."""
    beyond = jnp.maximum(x - LARGEST_EXPONENT, 0.0)
    return jnp.exp(jnp.minimum(x, LARGEST_EXPONENT)) * (1 + beyond)


def as_transform(value: Any) -> AbstractTransform | str:
    """Return a transform, "auto" or "count" unchanged, or one of TRANSFORMS by its name."""
    if isinstance(value, AbstractTransform) or (isinstance(value, str) and value in (AUTO, COUNT)):
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
        (log(y + ½) of counts, whose predictions are whole numbers from 0 on), or "auto": chosen on held-out rows, which may give no transform.
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
