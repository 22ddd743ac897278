"""The exact posterior of a feature GP."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.features import AbstractFeatureMap
from stochgp.numerics.precision import matmul
from stochgp.objectives.feature import Spectrum


class FunctionSamples(eqx.Module):
    """S functions f_s(x) = φ(x)·w_s drawn from a posterior: X [N, D] ↦ [N, S], anywhere, as often as wanted, differentiable."""

    features: AbstractFeatureMap
    weights: Float[Array, "M S"]

    @property
    def n_samples(self) -> int:
        return self.weights.shape[1]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return matmul(self.features(X), self.weights.astype(X.dtype))


class FeaturePosterior(eqx.Module):
    """f | y for y = √v Φw + ε. With F = v ΦᵀΦ + σ²I = Q diag(d) Qᵀ and φ the map's own features,

        mean(x) = φ(x)·ŵ,  ŵ = v F⁻¹Φᵀy;      cov(x, z) = v σ² φ(x)ᵀF⁻¹φ(z) = (Rᵀφ(x))·(Rᵀφ(z)),  R = Q diag(√(v σ²/d)).

    The variance is a sum of squares, so never negative. Both are of the function f: observations add `noise_variance`.
    """

    features: AbstractFeatureMap
    weights: Float[Array, " M"]  # ŵ
    root: Float[Array, "M M"]  # R
    noise_variance: Float[Array, ""]

    @classmethod
    def of(
        cls, features: AbstractFeatureMap, spectrum: Spectrum, variance: float, noise_variance: float
    ) -> "FeaturePosterior":
        """The posterior from the moments' eigendecomposition; in float64 where x64 is enabled, float32 otherwise."""
        d = variance * spectrum.eigenvalues + noise_variance
        weights = spectrum.basis @ (variance * spectrum.cross / d)
        root = spectrum.basis * np.sqrt(variance * noise_variance / d)
        wide = jax.dtypes.canonicalize_dtype(jnp.float64)
        return cls(
            features, jnp.asarray(weights, wide), jnp.asarray(root, wide), jnp.asarray(noise_variance, wide)
        )

    def mean(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """E f(x) for each row, in the posterior's dtype."""
        return matmul(self._features(X), self.weights)

    def variance(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """var f(x) for each row: a variance, of the function without noise. O(N M²)."""
        return jnp.sum(matmul(self._features(X), self.root) ** 2, axis=1)

    def mean_and_variance(self, X: Float[Array, "N D"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Both from one evaluation of the features."""
        Phi = self._features(X)
        return matmul(Phi, self.weights), jnp.sum(matmul(Phi, self.root) ** 2, axis=1)

    def covariance(self, X: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """cov(f(x), f(z)) for all pairs of rows: an N × N matrix."""
        half = matmul(self._features(X), self.root)
        return matmul(half, half.T)

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray) -> FunctionSamples:
        """w_s = ŵ + R z_s, z_s ~ N(0, I): exact draws, in the dtype of the features' rows (float32)."""
        z = jax.random.normal(key, (self.root.shape[0], n_samples), jnp.float32)
        weights = self.weights[:, None] + matmul(self.root, z.astype(self.root.dtype))
        return FunctionSamples(self.features, weights.astype(jnp.float32))

    def _features(self, X: Array) -> Array:
        return self.features(X).astype(self.weights.dtype)
