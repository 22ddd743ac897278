"""Likelihoods of counts."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array

from stochgp.distributions import Counts
from stochgp.likelihoods.base import AbstractLikelihood, HostLatent, Latent, PerRow, Rows, safe_exp
from stochgp.parameters import AbstractParameter, as_positive, value_of

STIRLING = 10.0  # smallest r for which Γ(r + y)/Γ(r) uses Stirling's series


class Poisson(AbstractLikelihood):
    """The Poisson likelihood P(y | f) = e^(yf − e^f)/y!, with mean and variance e^f."""

    is_of_counts: ClassVar[bool] = True

    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return y f − e^f − log y!."""
        return y * f[:, 0] - safe_exp(f[:, 0]) - gammaln(y + 1)

    def expected_log_density(self, y: PerRow, mean: Latent, variance: Latent, X: Rows) -> PerRow:
        """Return y m − e^(m + v/2) − log y!, for f ~ N(m, v)."""
        return y * mean[:, 0] - safe_exp(mean[:, 0] + variance[:, 0] / 2) - gammaln(y + 1)

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Counts:
        return Counts(mean[:, 0], variance[:, 0])


class NegativeBinomial(AbstractLikelihood):
    """The likelihood of counts with mean μ = e^f, variance μ + μ²/r and shape r.

    P(y | f) = Γ(y + r)/(Γ(r) y!) (μ/(r + μ))^y (r/(r + μ))^r. As r → ∞, the likelihood becomes Poisson.

    Parameters
    ----------
    shape : number or parameter
        The parameter r > 0. A number is the starting value of r.
    """

    shape: AbstractParameter = eqx.field(converter=as_positive, default=10.0)
    is_of_counts: ClassVar[bool] = True

    def log_density(self, y: PerRow, f: Latent, X: Rows) -> PerRow:
        """Return log Γ(y + r)/(Γ(r) r^y y!) + y f − (r + y) log(1 + e^f/r)."""
        r = value_of(self.shape, y.dtype)
        return rising(y, r) - gammaln(y + 1) + y * f[:, 0] - (r + y) * jax.nn.softplus(f[:, 0] - jnp.log(r))

    def predictive(self, mean: HostLatent, variance: HostLatent, X: Rows) -> Counts:
        return Counts(mean[:, 0], variance[:, 0], float(self.shape))


def rising(y: Array, r: Any) -> Array:
    """Return log Γ(r + y)/(Γ(r) r^y), accurate also for large r in float32.

    For r ≥ 10, Stirling's series replaces the Γ functions.
    """
    large, small = jnp.maximum(r, STIRLING), jnp.minimum(r, STIRLING)
    rest = lambda x: 1 / (12 * x) - 1 / (360 * x**3)
    series = (large + y - 0.5) * jnp.log1p(y / large) - y + rest(large + y) - rest(large)
    direct = gammaln(small + y) - gammaln(small) - y * jnp.log(small)
    return jnp.where(r >= STIRLING, series, direct)
