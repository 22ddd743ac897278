"""The exact posterior of a feature GP."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data.rows import Data
from stochgp.features import AbstractFeatureMap, on_host
from stochgp.likelihoods import AbstractNoise
from stochgp.likelihoods.noise import known_noise, with_level
from stochgp.numerics.arrays import matmul
from stochgp.numerics.clustered import folds
from stochgp.objectives.feature import Spectrum, belief_of
from stochgp.posteriors.base import AbstractPosterior, DrawnFunctions, PerRow, Rows

BLOCK = 256  # number of rows in a compiled evaluation
FOLDS = 20  # number of folds of left-out rows
ROUNDING = 1e-13  # rounding error of a weight's precision, relative to the largest precision


class FeaturePosterior(AbstractPosterior):
    """The exact posterior of f(x) = √v φ(x)·w, where φ(x) are the features of x.

    `FeaturePosterior.of` builds the posterior. Let v be the kernel's variance, σ² the noise variance, Φ the
    matrix with the features of the training rows, and F = v ΦᵀΦ + σ²I = Q diag(d) Qᵀ. Then

        mean(x) = φ(x)·ŵ,   ŵ = v F⁻¹Φᵀy,   cov(x, z) = (Rᵀφ(x))·(Rᵀφ(z)),   R = Q diag(√(v σ²/d)).

    With M features, computing the variance at one row takes O(M²) time.

    Parameters
    ----------
    features, weights, root, noise
        `features` is φ, `weights` is ŵ, `root` is R, and `noise` is the noise model of the observations.
    """

    features: AbstractFeatureMap
    weights: Float[Array, " M"]
    root: Float[Array, "M M"]
    noise: AbstractNoise
    block_rows: ClassVar[int | None] = BLOCK
    leaves_groups_out: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        features: AbstractFeatureMap,
        spectrum: Spectrum,
        variance: float,
        noise_variance: float,
        noise: AbstractNoise | None = None,
    ) -> "FeaturePosterior":
        """Return the posterior from the eigendecomposition of the moments.

        `noise` is a noise model whose level becomes `noise_variance`; None means constant noise. The result
        is in float64 if x64 is enabled, else in float32.
        """
        wide = jax.dtypes.canonicalize_dtype(jnp.float64)
        weights, root = (jnp.asarray(part, wide) for part in belief_of(spectrum, variance, noise_variance))
        noise = known_noise(noise_variance) if noise is None else with_level(noise, noise_variance)
        return cls(features=features, weights=weights, root=root, noise=noise)

    def mean(self, X: Rows) -> PerRow:
        if isinstance(X, Tracer):
            return matmul(self.features(X).astype(self.weights.dtype), self.weights)
        return on_host(self.features, np.asarray(X)) @ np.asarray(self.weights)

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        Phi = on_host(self.features, np.asarray(X))
        return Phi @ np.asarray(self.weights), np.sum((Phi @ np.asarray(self.root)) ** 2, axis=1)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        half = on_host(self.features, np.asarray(X)) @ np.asarray(self.root, np.float64)
        return half @ half.T

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"]:
        mean, variance = self.fold_out(data, folds(len(data), data.group, FOLDS), noise)
        return ((data.y - mean) / np.sqrt(variance + noise))[rows]

    def fold_out(
        self, data: Data, fold: Int[np.ndarray, " N"], noise: float
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Return the mean and variance of f at each training row, given the rows of other folds.

        Both are exact for constant noise. The weights w have the precision P = (RRᵀ)⁻¹. W is the diagonal
        matrix of row weights. Without the rows of fold k, w has the precision P_k = P − Φ_kᵀWΦ_k/σ² and the
        mean P_k⁻¹(Pŵ − Φ_kᵀWy_k/σ²).
        """
        root = np.asarray(self.root, np.float64)
        half = np.linalg.inv(root)  # R is always invertible
        P = half.T @ half
        P += ROUNDING * P.diagonal().max() * np.eye(len(P))
        h = P @ np.asarray(self.weights, np.float64)
        mean, variance, features = (
            np.zeros(len(data)),
            np.zeros(len(data)),
            on_host(self.features, np.asarray(data.X)),
        )
        for k in range(int(fold.max()) + 1):
            some = np.flatnonzero(fold == k)
            Phi = features[some]
            scaled = Phi * (data.weights[some] / noise)[:, None]
            P_k = P - Phi.T @ scaled
            L = np.linalg.cholesky((P_k + P_k.T) / 2)
            mean[some] = Phi @ np.linalg.solve(P_k, h - scaled.T @ data.y[some])
            variance[some] = np.sum(np.linalg.solve(L, Phi.T) ** 2, axis=0)
        return mean, variance

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> DrawnFunctions:
        """Return exact draws φ(x)·w_s with w_s = ŵ + R z_s and z_s ~ N(0, I)."""
        z = jax.random.normal(key, (self.root.shape[0], n_samples), jnp.float32)
        weights = self.weights[:, None] + matmul(self.root, z.astype(self.root.dtype))
        return DrawnFunctions(eqx.Partial(_values, self.features, weights), n_samples)

    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        M, n = len(self.weights), n_rows + BLOCK
        rows = 8 * n * (3 * n + 2 * M) if covariance else 64 * n_rows
        return rows + 2 * self.weights.dtype.itemsize * M * n_samples


def _values(features: AbstractFeatureMap, weights: Float[Array, "M S"], X: Float[Array, "N D"]) -> Array:
    """Return φ(x)·w_s for each row and each draw."""
    return matmul(features(X), weights.astype(X.dtype))
