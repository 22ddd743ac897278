"""What a fit leaves behind, and predictions from it in the user's units."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy.special import ndtr

from stochgp.budget import Budget, release
from stochgp.data import Standardiser
from stochgp.data.molecules import MoleculeEncoder
from stochgp.distributions import (
    AbstractDistribution,
    ConformalScores,
    Normal,
    PITRecalibration,
    Rounded,
    Warped,
)
from stochgp.estimators.blocked_rows import in_blocks, standardised
from stochgp.estimators.cautions import Seen
from stochgp.estimators.function_draws import FunctionDraws, JoinedFunctions
from stochgp.estimators.inputs import Encoder, refuse_no_counts, refuse_targets_outside
from stochgp.likelihoods import AbstractLikelihood, StudentT
from stochgp.parameters import cast
from stochgp.planning.memory import most_columns
from stochgp.posteriors import AbstractPosterior, Dispersion
from stochgp.posteriors.base import Request, noise_variances
from stochgp.transforms import AbstractTransform

NOISE_ROWS = 1024  # of one evaluation of the noise


class DrawKeys(NamedTuple):
    """Of one random state: no draw of the one is made from a key of the other."""

    functions: PRNGKeyArray  # each part of the functions folds in how many were drawn before it
    noise: PRNGKeyArray  # of observations


def draw_keys(key: PRNGKeyArray) -> DrawKeys:
    """`split`, because `fold_in` of the same key gives the keys of a split again."""
    return DrawKeys(*jax.random.split(key))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior of standardised targets given standardised inputs, with the way there and back.

    `dtype` is that of the rows that the posterior sees. Rows come in blocks of the posterior's `block_rows`, the last one filled up.
    """

    encoder: Encoder | None
    inputs: Standardiser
    targets: Standardiser
    posterior: AbstractPosterior
    dtype: str
    seen: Seen | None = None  # the ranges of the training rows, None of packed fingerprints
    likelihood: AbstractLikelihood | None = (
        None  # of the standardised targets; None: Gaussian, of the posterior's noise
    )
    law: Dispersion | None = None  # of observations around predictions, before the likelihood's
    transform: AbstractTransform | None = None  # T of the user's targets, before they were standardised
    log_slope: float = 0.0  # the mean of log T' over the training rows
    slope_rows: float = 0.0  # how many these are
    counts: bool = False  # whether observations are rounded to whole numbers of at least 0
    calibration: PITRecalibration | ConformalScores | None = (
        None  # of observations, by rows left out of the fit
    )
    stream: Any = None  # a `learners.Stream` that can go on, where one was learned from

    @property
    def predictive(self) -> AbstractPosterior:
        """The posterior with variances and noise of the law."""
        return self.posterior if self.law is None else self.law.of(self.posterior)

    @property
    def target_scale(self) -> float:
        return float(self.targets.scale)

    @property
    def has_noise(self) -> bool:
        """Whether observations are f(x) and a noise of known variance."""
        return isinstance(self.likelihood, StudentT | None) and hasattr(self.posterior, "noise")

    @property
    def outward(self) -> AbstractTransform | None:
        """T with y = T⁻¹(f + noise), or E(y | f) = T⁻¹(f) of a likelihood; None where that is f itself, with the standardising undone."""
        if self.transform is not None or self.likelihood is None:
            return self.transform
        return self.likelihood.mean_transform

    @property
    def noise_variance(self) -> float:
        """Of the noise of the standardised targets where its multiplier is 1."""
        return self._noise_factor * float(self.predictive.noise.level)

    @property
    def _noise_factor(self) -> float:
        """What the variance of noise is of its squared scale: ν/(ν − 2) of Student-t noise."""
        if not isinstance(self.likelihood, StudentT):
            return 1.0
        nu = float(self.likelihood.df)
        return nu / (nu - 2) if nu > 2 else math.inf

    @property
    def log_unit(self) -> float:
        """As `TrainingData.log_unit`."""
        return math.log(self.target_scale) - self.log_slope

    def transformed(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """T(y), of new targets. Raises ValueError for those that T does not take."""
        if self.transform is None:
            return y
        if self.counts:
            refuse_no_counts(y)
        refuse_targets_outside(self.transform, y)
        return np.asarray(self.transform(y), np.float64)

    def with_inputs(self, X: Float[np.ndarray, "n D"]) -> "Fitted":
        """With new rows among those that were seen."""
        return self if self.seen is None else dataclasses.replace(self, seen=self.seen.with_rows(X))

    def with_targets(self, y: Float[np.ndarray, " n"], count: Float[np.ndarray, " n"] | None) -> "Fitted":
        """With new targets in the mean of log T'."""
        if self.transform is None or len(y) == 0:
            return self
        n = float(len(y) if count is None else count.sum())
        return self.with_slope(float(np.average(self.transform.log_slope(y), weights=count)), n)

    def with_slope(self, log_slope: float, n: float, forget: float = 1.0) -> "Fitted":
        """With log T' of `n` further rows, of this mean; those so far weigh `forget`."""
        if self.transform is None:
            return self
        old = forget * self.slope_rows
        mean = (old * self.log_slope + n * log_slope) / (old + n) if old + n > 0 else 0.0
        return dataclasses.replace(self, log_slope=mean, slope_rows=old + n)

    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """E f(x) in target units; of transformed targets and of counts E y, the mean of an observation."""
        if self.outward is not None:
            return self.distribution(X).mean
        (mean,) = self._by_block(lambda Z: (self.posterior.mean(Z),), X, self.posterior.block_rows)
        return self.targets.inverse(mean)

    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(E f(x), standard deviation of f(x), or of an observation there) in target units."""
        if include_noise and isinstance(self.calibration, PITRecalibration):
            return self.mean(X), self.distribution(X).std
        if include_noise and (self._of_likelihood is not None or self.transform is not None):
            found = self.distribution(X)
            return found.mean, found.std
        if self.outward is not None:
            return self.mean(X), Warped(Normal(*self._latent(X, include_noise=False)), self.outward).std
        mean, std = self._latent(X, include_noise=include_noise)
        return mean, self.law.corrected(std) if include_noise and self.law is not None else std

    def _latent(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(Mean, standard deviation) of f, or of f and noise, with the standardising undone, but not T."""
        mean, variance = self._by_block(self.predictive.mean_and_variance, X, self.posterior.block_rows)
        if include_noise:
            variance += self._noise_variances(X)
        return self.targets.inverse(mean), self.target_scale * np.sqrt(variance)

    def distribution(self, X: Float[np.ndarray, "N D"]) -> AbstractDistribution:
        """Of an observation at each row, in target units."""
        found = self._untransformed(X)
        if self.transform is not None:
            found = Warped(found, self.transform)
        if isinstance(self.calibration, PITRecalibration):
            found = self.calibration(found)
        return Rounded(found) if self.counts else found

    def interval(self, found: AbstractDistribution, level: float) -> Float[np.ndarray, "N 2"]:
        """That holds an observation with the probability `level`, of its distributions; conformal ones where that is the calibration."""
        if isinstance(self.calibration, ConformalScores):
            return self.calibration.at(level).interval(found)
        return found.interval(level)

    @property
    def _of_likelihood(self) -> AbstractLikelihood | None:
        """What observations are distributed by, where neither a law says it nor Gaussian noise."""
        return self.likelihood if self.law is None else None

    def _untransformed(self, X: Float[np.ndarray, "N D"]) -> AbstractDistribution:
        """Of T(y), with the standardising undone."""
        if self._of_likelihood is None:
            mean, std = self._latent(X, include_noise=True)
            return Normal(mean, std) if self.law is None else self.law.observed(mean, std)
        found = self._predictive(self._of_likelihood, X)
        units = float(self.targets.scale), float(self.targets.mean)
        return found if units == (1.0, 0.0) else found.affine(*units)

    def _predictive(
        self, likelihood: AbstractLikelihood, X: Float[np.ndarray, "N D"]
    ) -> AbstractDistribution:
        """Of the standardised target, by a likelihood."""
        mean, variance = self._latent_moments(X)
        return likelihood.predictive(mean, variance, standardised(self.inputs, X, "float64", 0))

    def _latent_moments(self, X: Float[np.ndarray, "N D"]) -> tuple[np.ndarray, np.ndarray]:
        """(Means, variances) [N, L] of the latent functions."""
        moments = getattr(self.posterior, "latent_moments", self.posterior.mean_and_variance)
        mean, variance = self._by_block(moments, X, self.posterior.block_rows)
        return mean.reshape(len(X), -1), variance.reshape(len(X), -1)

    def covariance(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool, free: int
    ) -> Float[np.ndarray, "N N"]:
        """cov(f(x), f(z)) for all pairs of rows, or of observations there, in squared target units; in slices that fit into `free` bytes."""
        if self.outward is not None:
            raise ValueError(
                "transformed targets and counts have no covariance to return: sample_y draws them jointly"
            )
        with jax.enable_x64(True):
            scaled = self.predictive.covariance_within(standardised(self.inputs, X, self.dtype, 0), free)
        covariance = np.multiply(scaled, self.target_scale**2, out=scaled if scaled.flags.writeable else None)
        if include_noise:
            covariance[np.diag_indices(len(X))] += self._noise_variances(X) * self.target_scale**2
        return covariance

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray, budget: Budget) -> FunctionDraws:
        """Functions drawn from the posterior, in the user's units: all together, or as many at a time as there is memory for.

        Raises ValueError, with both numbers, where there is memory for none.
        """
        need, parts, n_drawn = lambda n: self.posterior.need_bytes(Request(n_samples=n)), [], 0
        of_functions = draw_keys(key).functions
        with jax.enable_x64(True):
            while n_drawn < n_samples:
                n = most_columns(need, n_samples - n_drawn, budget.free())
                if parts:
                    release()
                    budget.require(need(n), f"drawing {n_samples} functions, of which {n_drawn} are drawn,")
                parts.append(self.predictive.functions(n, key=jax.random.fold_in(of_functions, n_drawn)))
                n_drawn += n
            return FunctionDraws(
                functions=parts[0] if len(parts) == 1 else JoinedFunctions(tuple(parts)),
                center=jnp.asarray(self.inputs.mean, jnp.float64),
                scale=jnp.asarray(self.inputs.scale, jnp.float64),
                target_mean=jnp.asarray(self.targets.mean, jnp.float64),
                target_scale=jnp.asarray(self.targets.scale, jnp.float64),
                encoder=self.encoder,
                dtype=self.dtype,
                transform=self.outward,
            )

    def with_noise(
        self, values: Float[np.ndarray, "N S"], X: Float[np.ndarray, "N D"], *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "N S"]:
        """Observations y at rows X, given values f of functions there: each row's y has the predictive `distribution` F of that row.

        For Gaussian noise y = f + ε. For another F it is y = F⁻¹(Φ((f + ε − m)/s)), with m and s the mean and the standard deviation of f + ε:
        rows are then related as f + ε is (a Gaussian copula).
        """
        is_corrected = isinstance(self.calibration, PITRecalibration)
        if self._of_likelihood is not None:
            drawn = self._observed(self._of_likelihood, values, X, key=key)
            if is_corrected:
                return self.distribution(X)._quantile(self._untransformed(X)._tails(drawn)[0])
        else:
            noise = self.draw_noise(X, values.shape[1], key=key)
            drawn = (values if self.transform is None else self.transform(values)) + noise
            if is_corrected or not (self.law is None or self.law.is_gaussian):
                mean, std = self._latent(X, include_noise=True)
                return self.distribution(X)._quantile(ndtr((drawn - mean[:, None]) / std[:, None]))
        if self.transform is None:
            return drawn
        found = self.transform.inverse(drawn)
        return np.maximum(np.rint(found), 0.0) if self.counts else found

    def draw_noise(
        self, X: Float[np.ndarray, "N D"], n_samples: int, *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "N S"]:
        """Independent Gaussian noise in target units."""
        draws = np.asarray(jax.random.normal(key, (len(X), n_samples), jnp.float32), np.float64)
        return self.target_scale * np.sqrt(self._noise_variances(X))[:, None] * draws

    def _observed(
        self, likelihood: AbstractLikelihood, values: np.ndarray, X: np.ndarray, *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "N S"]:
        """Draws of T(y) by the likelihood given that the first latent function has these values; the others are drawn too, each row by itself."""
        m, v = self._latent_moments(X)
        with jax.enable_x64(True):
            others, own = jax.random.split(key)
            inward = values if self.outward is None else self.outward(values)
            f = (inward - self.targets.mean) / self.target_scale
            z = jax.random.normal(others, (f.shape[1], *m[:, 1:].shape), jnp.float32)
            latents = np.concatenate([f.T[..., None], m[:, 1:] + np.sqrt(v[:, 1:]) * np.asarray(z)], axis=-1)
            Z, wide = standardised(self.inputs, X, "float64", 0), cast(likelihood, np.float64)
            draw = lambda latent, key: wide.sample(latent, jnp.asarray(Z), key=key)
            draws = eqx.filter_jit(jax.vmap(draw))(jnp.asarray(latents), jax.random.split(own, f.shape[1]))
        return self.targets.inverse(np.asarray(draws).T)

    def _noise_variances(self, X: np.ndarray) -> np.ndarray:
        """Of observations at these rows, each counting as one, of the standardised targets."""
        if not isinstance(self.likelihood, StudentT | None):
            return self._predictive(self.likelihood, X).std ** 2 - self._latent_moments(X)[1][:, 0]
        ones, noise = np.ones(NOISE_ROWS), self.predictive.noise
        (found,) = self._by_block(lambda Z: (noise_variances(noise, Z, ones),), X, NOISE_ROWS)
        return self._noise_factor * found

    def _by_block(self, evaluate: Callable, X: np.ndarray, n_block: int | None) -> tuple[np.ndarray, ...]:
        absent = np.isnan(X[:, 0]) if isinstance(self.encoder, MoleculeEncoder) else np.zeros(len(X), bool)
        if absent.any():  # molecules that were skipped
            X = np.where(absent[:, None], np.zeros((), X.dtype), X)
        results = in_blocks(evaluate, self.inputs, X, self.dtype, n_block)
        for result in results:
            result[absent] = np.nan
        return results
