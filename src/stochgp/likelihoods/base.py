"""The interface of likelihoods, and likelihoods of transformed or shifted values."""

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

LARGEST_EXPONENT = 40.0  # above it, exponentials continue linearly
TRANSFORMS = {"log": transforms.Log(), "sinh-arcsinh": transforms.SinhArcsinh(), "count": transforms.Log(0.5)}
AUTO = "auto"  # the fit chooses a transform on held-out rows
COUNT = "count"  # log(y + ½), with predictions that are whole numbers
NODES = 32  # nodes of Gauss–Hermite quadrature for one latent function

Rows = Float[Any, "N D"]
PerRow = Float[Array, " N"]
Latent = Float[Array, "N L"]
HostLatent = Float64[np.ndarray, "N L"]


class AbstractLikelihood(eqx.Module):
    """The density p(y | f(x), x) of one target y given L latent functions f = (f_1, …, f_L).

    The values of f at N rows have the shape [N, L]. All targets are floats, also class indices. Callers
    multiply the log density of each row by the row's weight. Noise models use the input rows X [N, D]. All
    floating-point arrays of a likelihood are trained, unless they are frozen.
    """

    is_of_counts: ClassVar[bool] = False  # if True, targets are not standardised, and f is their log mean

    @property
    def n_latent(self) -> int:
        """The number of latent functions L."""
        return 1

    @property
    def mean_transform(self) -> AbstractTransform | None:
        """The transform T with E(y | f) = T⁻¹(f); None if the mean is f or does not exist."""
        return transforms.Log() if self.is_of_counts else None

    @abc.abstractmethod
    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return log p(y | f) of each row; for counts and classes, the log probability."""

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        """Return ∫ log p(y | f) N(f; mean, diag variance) df of each row."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        nodes, weights = (jnp.asarray(part, mean.dtype) for part in (nodes, weights / math.sqrt(2 * math.pi)))
        std = jnp.sqrt(variance)
        values = jax.vmap(lambda z: self.log_density(y, mean + z * std, X))(nodes)  # [K, N]
        return jnp.tensordot(weights, values, 1)

    def drawn_log_density(
        self, y: PerRow, mean: Latent, variance: Latent, X: Rows, *, key: PRNGKeyArray
    ) -> PerRow:
        """Return `expected_log_density`, or an unbiased estimate from random draws of f."""
        return self.expected_log_density(y, mean, variance, X)

    @abc.abstractmethod
    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> AbstractDistribution:
        """Return the distribution of an observation per row, for f ~ N(mean, diag variance)."""


def safe_exp(x: Array) -> Array:
    """Return e^x for x ≤ 40 and the tangent of e^x above; squares are finite in float32."""
    beyond = jnp.maximum(x - LARGEST_EXPONENT, 0.0)
    return jnp.exp(jnp.minimum(x, LARGEST_EXPONENT)) * (1 + beyond)


def as_transform(value: Any) -> AbstractTransform | str:
    """Replace the name of a transform by its object, except for "auto" and "count"."""
    if isinstance(value, AbstractTransform) or (isinstance(value, str) and value in (AUTO, COUNT)):
        return value
    if not isinstance(value, str):
        names = ", ".join(TRANSFORMS)
        raise TypeError(f"transform must be {names}, or an object of stochgp.transforms, but is {value!r}")
    return lookup(value, TRANSFORMS | {AUTO: AUTO}, "transform")


class Warped(eqx.Module):
    """A likelihood of transformed targets T(y); pass it to regressors as `likelihood`.

    A regressor learns the transform's parameters and then standardises T(y). Predictions have the units of y.

    Parameters
    ----------
    likelihood : likelihood or str
        The likelihood of T(y): an object of `stochgp.likelihoods`, or a name that the regressor accepts.
    transform : transform or str
        The transform T: an object of `stochgp.transforms`, "log", "sinh-arcsinh", "count" or "auto".
        "count" is log(y + ½) with predictions in whole numbers. "auto" compares transforms on held-out rows.
    """

    likelihood: Any = "gaussian"
    transform: Any = eqx.field(converter=as_transform, default="log")


class Shifted(AbstractLikelihood):
    """The likelihood p(y | f + shift), which adds the number `shift` to the latent function.

    Regressors of counts set `shift` to the logarithm of the average count.

    Parameters
    ----------
    likelihood : likelihood
        The likelihood p, an object of `stochgp.likelihoods`.
    shift : float
        The number to add to each latent function.
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
        return self.likelihood.log_density(y, f + self.shift, X)

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        return self.likelihood.expected_log_density(y, mean + self.shift, variance, X)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> AbstractDistribution:
        return self.likelihood.predictive(mean + self.shift, variance, X)
