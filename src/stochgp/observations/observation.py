"""The observation model: noise or another likelihood, transforms and rounding."""

import math
import typing
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import ndtr

from stochgp.data import Standardiser
from stochgp.data.memory import MemorySource
from stochgp.distributions import AbstractDistribution, Normal, Rounded, Warped
from stochgp.likelihoods import AbstractLikelihood, AbstractNoise, Gaussian, StudentT
from stochgp.likelihoods.noise import noise_of_rows, with_level
from stochgp.numerics.seeds import split_key
from stochgp.observations.error_distribution import Dispersion
from stochgp.observations.mean_function import AbstractMeanFunction
from stochgp.tables.targets import refuse_no_counts
from stochgp.transforms import AbstractTransform

MANY_ROWS = 40  # with fewer rows, the supported range of means is wider
EVERYWHERE = (-math.inf, math.inf)

PerRow = Float[np.ndarray, " N"]
Latent = Float[np.ndarray, "N L"]


def supported_by(y: PerRow) -> tuple[float, float]:
    """Return the range of targets, extended at both ends by its width, or by more if N < 40."""
    low, high = float(y.min()), float(y.max())
    R = (high - low) * max(1.0, MANY_ROWS / len(y)) or math.inf
    return low - R, high + R


@dataclass(frozen=True, eq=False)
class Observation:
    """The model T(y) = s z + b + m(x) of an observation y, where `likelihood` is p(z | f).

    The methods take the means and variances [N, L] of L latent functions at N rows, in units of z.

    Parameters
    ----------
    targets : Standardiser
        The mean b and the standard deviation s of T(y) − m(x).
    likelihood : AbstractLikelihood
        The likelihood of the standardised target z given the latent functions.
    inflation : Dispersion or None
        The predictive distribution of z. If it is not None, `likelihood` gives only the noise variance.
    transform : AbstractTransform or None
        The transform T. None means T(y) = y.
    rounding : bool
        True if y is a count. Predictive distributions are then rounded to whole numbers ≥ 0.
    mean_function : AbstractMeanFunction or None
        The mean function m(x), in the units of T(y). None means m(x) = 0.
    support : (float, float)
        With a transform, the median replaces a predicted mean outside this range (see `supported_by`).
    """

    targets: Standardiser
    likelihood: AbstractLikelihood
    inflation: Dispersion | None = None
    transform: AbstractTransform | None = None
    rounding: bool = False
    mean_function: AbstractMeanFunction | None = None
    support: tuple[float, float] = EVERYWHERE

    @property
    def scale(self) -> float:
        return float(self.targets.scale)

    @property
    def has_noise(self) -> bool:
        """True if z is f(x) plus noise."""
        return isinstance(self.likelihood, Gaussian | StudentT)

    @property
    def outward(self) -> AbstractTransform | None:
        """The transform T with y = T⁻¹(f + noise), or E(y | f) = T⁻¹(f); None if T(y) = y."""
        return self.likelihood.mean_transform if self.transform is None else self.transform

    @property
    def noise_variance(self) -> float:
        """The noise variance of z for the noise multiplier s(x) = 1."""
        c, (noise, factor) = 1.0 if self.inflation is None else self.inflation.variance, self._noise
        return c * factor * float(noise.level)

    @property
    def draws_by_moments(self) -> bool:
        """True if `sample` needs the moments of f; False if T(y) is f plus Gaussian noise."""
        student = self.inflation is not None and self.inflation.df is not None
        return not self._is_normal or student

    def transformed(self, y: PerRow) -> PerRow:
        """Return T(y); raise ValueError for targets outside the domain of T."""
        if self.transform is None:
            return y
        if self.rounding:
            refuse_no_counts(y)
        self.transform.check(y)
        return np.asarray(self.transform(y), np.float64)

    def to_model(self, X: Float[np.ndarray, "N D"], y: PerRow) -> PerRow:
        """Return the standardised targets z; raise ValueError outside the domain of T."""
        return self.targets.transform(self.centred(X, y))

    @property
    def takes_width(self) -> bool:
        """True if y is f plus noise without a transform, so that `widened` scales y itself."""
        return self._is_normal and self.transform is None

    def widened(self, c: float) -> "Observation":
        """Scale the variances of f and of the noise by c."""
        inflation = Dispersion() if self.inflation is None else self.inflation
        m = self.mean_function and replace(self.mean_function, width=self.mean_function.width * math.sqrt(c))
        return replace(self, inflation=replace(inflation, factor=c * inflation.factor), mean_function=m)

    def around(self, m: AbstractMeanFunction | None, learned: bool, variance: PerRow) -> "Observation":
        """Add the mean function m, and match the variance of m to left-out errors."""
        if m is None:
            return self
        likelihood, n, made = typing.cast(typing.Any, self.likelihood), self.noise_variance, self
        if learned and m.residual > 0 and self._is_normal:
            made = self.widened(m.noise_factor)
        elif learned:
            noise = with_level(likelihood.noise, m.noise_factor * float(likelihood.noise.level))
            made = replace(self, likelihood=eqx.tree_at(lambda part: part.noise, likelihood, noise))
        errors = np.mean(n / np.maximum(1 - variance / n, 1e-6)) * self.scale**2 * made.noise_variance / n
        width = math.sqrt(min(1.0, errors / max(m.residual, 1e-300)))
        return replace(made, mean_function=replace(m, width=width))

    def supporting(self, y: PerRow) -> "Observation":
        """Extend the supported range of means to new targets y, plus the same margin."""
        low, high = self.support
        R = (high - low) / 3
        return replace(self, support=(min(low, float(y.min()) - R), max(high, float(y.max()) + R)))

    def centred(self, X: Float[np.ndarray, "N D"], y: PerRow) -> PerRow:
        """Return T(y) − m(x); raise ValueError for targets outside the domain of T."""
        z = self.transformed(y)
        return z if self.mean_function is None else z - self.mean_function(X)

    def to_target(self, z: Float[np.ndarray, " N *S"], X: MemorySource) -> Float[np.ndarray, " N *S"]:
        """Return s z + b + m(x), in the units of T(y)."""
        found = self.targets.inverse(z)
        if self.mean_function is None:
            return found
        m = self.mean_function(X.X)
        return found + m.reshape(-1, *(1,) * (found.ndim - 1))

    def predict(self, mean: Latent, variance: Latent, X: MemorySource) -> AbstractDistribution:
        """Return the distribution of an observation at each row."""
        if self._is_normal:
            m, std = self._normal(mean, variance, X)
            found = Normal(m, std) if self.inflation is None else self.inflation.observed(m, std)
        else:
            found = self._by_likelihood(mean, variance, X)
            if (units := (self.scale, float(self.targets.mean))) != (1.0, 0.0):
                found = found.affine(*units)
            found = found if self.mean_function is None else found.affine(1.0, self.mean_function(X.X))
        if self.transform is not None:
            found = Warped(found, self.transform, self.support)
        return Rounded(found) if self.rounding else found

    def of_function(self, mean: PerRow, variance: PerRow, X: MemorySource) -> tuple[PerRow, PerRow]:
        """Return the mean of f in units of T(y), and the standard deviation of T⁻¹(f)."""
        mean, std = self.to_target(mean, X), self.scale * np.sqrt(self._inflated(variance, X))
        if self.outward is not None:
            std = Warped(Normal(mean, std), self.outward, self.support).std
        return mean, std

    def mean_and_std(self, mean: Latent, variance: Latent, X: MemorySource) -> tuple[PerRow, PerRow]:
        """Return mean and standard deviation of an observation at each row."""
        if not self._is_normal or self.transform is not None:
            found = self.predict(mean, variance, X)
            return found.mean, found.std
        return self._normal(mean, variance, X)

    def noise_variances(self, X: MemorySource, moments: tuple[Latent, Latent] | None = None) -> PerRow:
        """Return the noise variance of z per row; needs `moments` unless `has_noise`."""
        if not self.has_noise:
            assert moments is not None
            return self._by_likelihood(*moments, X).std ** 2 - self._inflated(moments[1][:, 0], X)
        noise, factor = self._noise
        (found,) = X.evaluated(lambda Z: (noise_of_rows(noise, Z),), None)
        return factor * self.variance_factor(X) * found

    def with_inflation(
        self, covariance: Float[np.ndarray, "N N"], X: MemorySource
    ) -> Float[np.ndarray, "N N"]:
        """Return the scaled covariance of f plus the covariance of m(x), in units of z²."""
        if self.inflation is not None and self.inflation.is_scaling:
            root = np.sqrt(np.broadcast_to(self.variance_factor(X), X.size))
            covariance = root[:, None] * np.asarray(covariance) * root
        if self.mean_function is None:
            return covariance
        d = self.mean_function.deviations(X.X) / self.scale
        return np.asarray(covariance) + d @ d.T

    def sample(
        self,
        values: Float[np.ndarray, "N S"],
        X: MemorySource,
        moments: tuple[Latent, Latent] | None = None,
        *,
        key: PRNGKeyArray,
    ) -> Float[np.ndarray, "N S"]:
        """Draw observations from values of f at the rows, each with the distribution of `predict`.

        If `draws_by_moments` is True, `moments` of f are needed. Then the ranks of the observations equal
        the ranks of f plus Gaussian noise (a Gaussian copula).
        """
        if not self._is_normal:
            assert moments is not None
            drawn = self._drawn(values, *moments, X, key=key)
        else:
            noise = self.draw_noise(X, values.shape[1], key=key)
            drawn = (values if self.transform is None else self.transform(values)) + noise
            if self.draws_by_moments:
                assert moments is not None
                mean, std = self._normal(*moments, X)
                return self.predict(*moments, X)._quantile(ndtr((drawn - mean[:, None]) / std[:, None]))
        if self.transform is None:
            return drawn
        found = self.transform.inverse(drawn)
        return np.maximum(np.rint(found), 0.0) if self.rounding else found

    def draw_noise(self, X: MemorySource, n_samples: int, *, key: PRNGKeyArray) -> Float[np.ndarray, "N S"]:
        """Draw independent Gaussian noise in the units of T(y)."""
        draws = np.asarray(jax.random.normal(key, (X.size, n_samples), jnp.float32), np.float64)
        return self.scale * np.sqrt(self.noise_variances(X))[:, None] * draws

    @property
    def _is_normal(self) -> bool:
        """True if z is Gaussian, or has the distribution `inflation`."""
        return self.inflation is not None or isinstance(self.likelihood, Gaussian)

    @property
    def _noise(self) -> tuple[AbstractNoise, float]:
        """The noise model, and the ratio of its variance to σ²: ν/(ν − 2) for a Student-t."""
        likelihood = typing.cast(typing.Any, self.likelihood)
        nu = float(likelihood.df) if isinstance(likelihood, StudentT) else math.inf
        return likelihood.noise, 1.0 if nu == math.inf else nu / (nu - 2) if nu > 2 else math.inf

    def _normal(self, mean: Latent, variance: Latent, X: MemorySource) -> tuple[PerRow, PerRow]:
        V = self._inflated(variance[:, 0], X) + self.noise_variances(X)
        return self.to_target(mean[:, 0], X), self.scale * np.sqrt(V)

    def _by_likelihood(self, mean: Latent, variance: Latent, X: MemorySource) -> AbstractDistribution:
        variance = np.column_stack([self._inflated(variance[:, 0], X), variance[:, 1:]])
        return self.likelihood.predictive(mean, variance, X.inputs("float64"))

    def _inflated(self, variance: PerRow, X: MemorySource) -> PerRow:
        """Return the scaled variance of f plus the variance of m(x), in units of z²."""
        m, variance = self.mean_function, variance * self.variance_factor(X)
        return variance if m is None else variance + m.variance(X.X) / self.scale**2

    def variance_factor(self, X: MemorySource) -> PerRow | float:
        """Return the factor of the variances of f and of the noise at each row."""
        dispersion = self.inflation
        if dispersion is None or dispersion.trees is None:
            return 1.0 if dispersion is None else dispersion.variance
        return dispersion.variance * np.exp(X.evaluated(lambda Z: (dispersion.log_scale(Z),), None)[0])

    def _drawn(
        self, values: np.ndarray, mean: Latent, variance: Latent, X: MemorySource, *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "N S"]:
        """Draw T(y) given values of the first latent function; draw the other functions too."""
        m, v = mean, variance
        with jax.enable_x64(True):
            others, own = jax.random.split(key)
            inward = values if self.outward is None else self.outward(values)
            prior = self.to_target(np.zeros((len(inward), 1)), X)
            f = (inward - prior) / self.scale
            z = jax.random.normal(others, (f.shape[1], *m[:, 1:].shape), jnp.float32)
            latents = np.concatenate([f.T[..., None], m[:, 1:] + np.sqrt(v[:, 1:]) * np.asarray(z)], axis=-1)
            Z, of = X.inputs("float64"), self.likelihood.predictive
            pairs = zip(latents, split_key(own, len(latents)), strict=True)
            draws = [of(latent, np.zeros_like(latent), Z).sample(key)[:, 0] for latent, key in pairs]
        return self.to_target(np.stack(draws, axis=1), X)
