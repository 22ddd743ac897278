"""Likelihoods of real numbers: Gaussian and Student-t."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln
from jaxtyping import Array

from stochgp.distributions import Mixture, Normal, normal_plus_student
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, PerRow, Rows
from stochgp.likelihoods.noise import AbstractNoise, as_noise, noise_of_rows, row_variances
from stochgp.parameters import AbstractParameter, positive, value_of
from stochgp.warning import warn

LOG_2PI = math.log(2 * math.pi)
FINITE_STD = 2.0  # with more degrees of freedom, the standard deviation is finite


class Gaussian(AbstractLikelihood):
    """The likelihood y = f(x) + ε with ε ~ N(0, σ² s(x)).

    Parameters
    ----------
    noise : noise model, number or parameter
        A model of the variance σ² s(x), or a constant σ². A number is the starting value of σ², which stays
        above 1e-6.
    """

    noise: AbstractNoise = eqx.field(converter=as_noise, default=0.1)

    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return −½ log 2πσ² − (y − f)²/(2σ²)."""
        return self._normal(y, jnp.square(y - f[:, 0]), X)

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        """Return −½ log 2πσ² − ((y − m)² + v)/(2σ²), for f ~ N(m, v)."""
        return self._normal(y, jnp.square(y - mean[:, 0]) + variance[:, 0], X)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Normal:
        """Return the normal distribution N(m, v + σ²) of y, for f ~ N(m, v)."""
        return Normal(mean[:, 0], np.sqrt(variance[:, 0] + noise_of_rows(self.noise, X)))

    def _normal(self, y: Array, squares: Array, X: Rows) -> Array:
        s2 = row_variances(self.noise, X, y.dtype)
        return -0.5 * (LOG_2PI + jnp.log(s2) + squares / s2)


def degrees_of_freedom(value: Any) -> AbstractParameter:
    """Convert degrees of freedom to a parameter above 2, or above 0 if the value is at most 2."""
    if isinstance(value, AbstractParameter):
        return value
    return positive(value, lower=FINITE_STD if float(value) > FINITE_STD else 0.0)


class StudentT(AbstractLikelihood):
    """The likelihood y = f(x) + σ√s(x) ε, where ε is Student-t with ν degrees of freedom.

    The density p(y | f) is proportional to (1 + (y − f)²/(ν σ² s))^(−(ν+1)/2).

    Parameters
    ----------
    df : number or parameter
        The degrees of freedom ν. A number is the starting value of ν. If it is above 2, ν stays above 2.
    noise : noise model, number or parameter
        A model of the squared scale σ² s(x), or a constant σ². A number is the starting value of σ², which
        stays above 1e-6.
    """

    df: AbstractParameter = eqx.field(converter=degrees_of_freedom, default=4.0)
    noise: AbstractNoise = eqx.field(converter=as_noise, default=0.1)

    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return log Γ((ν+1)/2) − log Γ(ν/2) − ½ log(νπσ²) − ((ν+1)/2) log(1 + (y − f)²/(νσ²))."""
        nu, s2 = value_of(self.df, f.dtype), row_variances(self.noise, X, f.dtype)
        tail = 0.5 * (nu + 1) * jnp.log1p(jnp.square(y - f[:, 0]) / (nu * s2))
        return -betaln(nu / 2, 0.5) - 0.5 * jnp.log(nu * s2) - tail  # Γ(½)² = π

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Mixture:
        """Return the distribution of f + σ ε for f ~ N(m, v); warn if ν ≤ 1."""
        nu = float(self.df)
        if nu <= 1:
            what = f"a Student-t with {nu:.3g} degrees of freedom"
            warn(f"{what} has no mean; predictions are medians", stacklevel=2)
        return normal_plus_student(mean[:, 0], variance[:, 0], noise_of_rows(self.noise, X), nu)
