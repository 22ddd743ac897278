"""Models: a noise model and a prior over functions, with trainable parameters."""

import math
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.compiled import quick_jit
from stochgp.features import AbstractFeatureMap
from stochgp.kernels.base import as_kernel
from stochgp.likelihoods import AbstractLikelihood, Gaussian
from stochgp.likelihoods.noise import AbstractNoise, as_noise
from stochgp.numerics.arrays import matmul, on_device
from stochgp.parameters import (
    AbstractParameter,
    Bounded,
    Frozen,
    Positive,
    as_positive,
    trainable_mask,
    value_of,
)
from stochgp.variational import Decoupled, DecoupledProcess, InducingPoints, InducingProcess

__all__ = ("AbstractGP", "FeatureGP", "KernelGP", "SparseGP")

JUST_ABOVE = 1e-6  # minimum relative distance of a parameter from its lower bound


class AbstractGP(eqx.Module):
    """A noise model and a prior over functions. Unfrozen floating-point arrays are trained."""

    has_moments: ClassVar[bool] = False  # True if sums of M × M matrices over rows determine the likelihood
    noise = cast(Any, None)  # a field or a property of each subclass

    @property
    def noise_variance(self) -> AbstractParameter:
        """The noise variance σ², for rows with noise multiplier 1."""
        return self.noise.level


def as_likelihood(value: Any) -> AbstractLikelihood:
    """Return a likelihood; noise models, parameters and numbers become Gaussian noise."""
    return value if isinstance(value, AbstractLikelihood) else Gaussian(value)


class FeatureGP(AbstractGP):
    """The model y = f(x) + ε with f(x) = √v φ(x)ᵀw, prior variance v and weights w ~ N(0, I).

    The covariance of f is k(x, z) = v φ(x)·φ(z), where v is `variance`. The argument `noise` describes ε.

    Parameters
    ----------
    features : AbstractFeatureMap
        The feature map φ, from rows [N, D] to features [N, M].
    noise : number, parameter or AbstractNoise
        The noise model of ε. A number or a parameter is the variance of constant noise. A number becomes a
        trainable parameter above 1e-6. This lower bound suits targets with unit variance.
    variance : number or parameter
        The prior variance v, a factor of k(x, z).
    """

    has_moments: ClassVar[bool] = True
    features: AbstractFeatureMap
    noise: AbstractNoise = eqx.field(converter=as_noise, default=0.1)
    variance: AbstractParameter = eqx.field(converter=as_positive, default=1.0)

    @property
    def n_features(self) -> int:
        return self.features.n_features

    def scaled_features(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """Return the features √variance φ(x) of each row, whose products are k(x, z)."""
        return jnp.sqrt(value_of(self.variance, X.dtype)) * self.features(X)

    def covariance(self, X: Float[Array, "N D"], count: Float[Array, " N"]) -> Float[Array, "N N"]:
        """Return the covariance of the targets: k(X, X) plus noise variances."""
        Phi = self.scaled_features(X)
        return matmul(Phi, Phi.T) + jnp.diag(self.noise.variance(X, count))

    def with_variances(self, variance: float, noise_variance: float) -> "FeatureGP":
        """Return a copy with new values of both variances. Frozen variances stay unchanged."""
        noise = eqx.tree_at(lambda noise: noise.level, self.noise, revalued(self.noise.level, noise_variance))
        return FeatureGP(self.features, noise, revalued(self.variance, variance))


class KernelGP(AbstractGP):
    """The model y = f(x) + ε with f ~ GP(0, k); `noise` describes ε.

    Parameters
    ----------
    kernel : AbstractKernel, possibly frozen
        The covariance function k. Frozen kernels and frozen parts of kernels are not trained.
    noise : number, parameter or AbstractNoise
        The noise model of ε. A number or a parameter is the variance of constant noise. A number becomes a
        trainable parameter above 1e-6. This lower bound suits targets with unit variance.
    """

    kernel: Any = eqx.field(converter=as_kernel)
    noise: AbstractNoise = eqx.field(converter=as_noise, default=0.1)

    def covariance(self, X: Float[Array, "N D"], count: Float[Array, " N"]) -> Float[Array, "N N"]:
        """Return the covariance of the targets: k(X, X) plus noise variances."""
        return value_of(self.kernel).matrix(X, X) + jnp.diag(self.noise.variance(X, count))


class SparseGP(AbstractGP):
    """The model p(y_i | f(x_i)) with f ~ GP(0, k) and an approximate posterior q(f).

    If the likelihood has several latent functions, they are independent and have the same prior. Raises
    ValueError if the likelihood and the approximation have different numbers of latent functions.

    Parameters
    ----------
    kernel : AbstractKernel, possibly frozen
        The covariance function k.
    approximation : InducingPoints or Decoupled
        The parameters of q. They are trained together with the kernel and the likelihood.
    likelihood : number, parameter, AbstractNoise or AbstractLikelihood
        The distribution p(y | f). A number or a parameter is the variance of Gaussian noise.
    """

    kernel: Any = eqx.field(converter=as_kernel)
    approximation: InducingPoints | Decoupled
    likelihood: AbstractLikelihood = eqx.field(converter=as_likelihood, default=0.1)

    def __check_init__(self) -> None:
        wanted, given = self.likelihood.n_latent, self.approximation.n_latent
        if isinstance(wanted, int) and wanted != given:
            raise ValueError(
                f"the likelihood has {wanted} latent functions, but the approximation has {given}"
            )

    @property
    def noise(self) -> AbstractNoise:
        """The noise model of the likelihood. Raises AttributeError for likelihoods without noise."""
        return self.likelihood.noise  # pyrefly: ignore[missing-attribute]

    def process(self) -> InducingProcess | DecoupledProcess:
        """Return q(f) for the present kernel parameters."""
        return self.approximation.process(self.kernel)


def split(gp: FeatureGP, *, hold_variances: bool = False) -> tuple[FeatureGP, FeatureGP]:
    """Return trainable and fixed parts. `hold_variances` also fixes both variances."""
    mask = trainable_mask(gp)
    if hold_variances:
        held = jax.tree.map(lambda _: False, (gp.noise.level, gp.variance))
        mask = eqx.tree_at(lambda g: (g.noise.level, g.variance), mask, held)
    return eqx.partition(gp, mask)


def features_and_noise(trainable: FeatureGP, rest: FeatureGP, X: Array) -> tuple[Array, Array, Array]:
    """Return scaled features [N, M], the noise variance and noise multipliers [N]."""
    gp = eqx.combine(trainable, rest)
    return gp.scaled_features(X), gp.noise_variance.value, gp.noise.multiplier(X)


def range_within(parameter: AbstractParameter, widest: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds of `parameter` within `widest`; if frozen, (value, value)."""
    if isinstance(parameter, Frozen):
        return float(parameter), float(parameter)
    lower, upper = getattr(parameter, "lower", 0.0), getattr(parameter, "upper", math.inf)
    return max(lower, widest[0]), min(upper, widest[1])


def revalued(parameter: AbstractParameter, value: float) -> AbstractParameter:
    """Return the parameter with a new value inside its bounds; if frozen, unchanged."""
    if isinstance(parameter, Frozen):
        return parameter
    lower = float(getattr(parameter, "lower", 0.0))
    if isinstance(parameter, Positive):
        least = JUST_ABOVE * lower or float(jnp.finfo(parameter.dtype).tiny)
        return Positive(on_device(math.log(max(value - lower, least)), parameter.dtype), lower)
    upper = float(getattr(parameter, "upper", math.inf))
    fraction = min(max((value - lower) / (upper - lower), 1e-6), 1 - 1e-6)
    return Bounded(on_device(math.log(fraction / (1 - fraction)), parameter.dtype), lower, upper)


def process_of(gp: SparseGP) -> InducingProcess | DecoupledProcess:
    """Return `gp.process()`, with the Cholesky factor computed on the host (NaN if it fails)."""
    if not isinstance(gp.approximation, InducingPoints):
        return _process(gp)
    return gp.approximation.process_on_host(gp.kernel)


@quick_jit
def _process(gp: SparseGP) -> InducingProcess | DecoupledProcess:
    return gp.process()
