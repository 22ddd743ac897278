"""Means and covariances of f at sets of points, with slopes: what optimisers of acquisition functions ask of an estimator.

By kind of posterior, at one set Z [Q, D],

    from samples    C = DᵀD/S, D the deviations of S functions from the mean
    from features   C = (Rᵀφ)·(Rᵀφ)
    from a factor   C = k(Z, Z) − (L⁻¹k(X, Z))·(L⁻¹k(X, Z))
    of a mixture    C = Σ_s w_s [C_s + (m_s − m)(m_s − m)ᵀ], m = Σ_s w_s m_s
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.utils.validation import check_is_fitted

from stochgp.estimators.base import PosteriorRegressor
from stochgp.numerics.arrays import by_blocks
from stochgp.numerics.precision import einsum, matmul
from stochgp.posteriors import (
    AbstractPosterior,
    ExactKernelPosterior,
    FeaturePosterior,
    KernelFunctions,
    MixturePosterior,
    SampledKernelPosterior,
    VariationalPosterior,
)
from stochgp.posteriors.kernel import times

ROWS = 512  # that are evaluated at a time

Sets = Float[np.ndarray, "B Q D"]
Means = Float[np.ndarray, "B Q"]
Covariances = Float[np.ndarray, "B Q Q"]
Moments = tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]


class JointPredictions:
    """Mean and covariance of f at sets of points X [B, Q, D], in the units of the inputs and of the targets given to `fit`.

    The mean is that of `predict`. The covariance is that of `predict(X, return_cov=True)` or, with an iterative solver, of functions drawn, the scale that was chosen for
    variances included:

        C(x, z) = s² √(c(x) c(z)) C₀(x, z) + cov(m(x), m(z)),   m a fitted prior mean, c the multipliers of variances, constant or by trees, whose slopes are 0 almost everywhere.

    Raises TypeError for what is no regressor of this package. Raises ValueError for inputs that are not numbers alone, for targets of which f
    is not the mean (transformed ones, and counts, whose f is the logarithm of a rate), and for a posterior without covariances.
    """

    def __init__(self, estimator: Any):
        if not isinstance(estimator, PosteriorRegressor):
            raise TypeError(f"a fitted regressor of stochgp is wanted, not {type(estimator).__name__}")
        check_is_fitted(estimator)
        fitted = estimator._fitted
        if fitted.encoder is not None and not getattr(fitted.encoder, "is_plain", False):
            raise ValueError(
                "the estimator was fitted to a table whose columns are encoded: fit it to an array of numbers"
            )
        if fitted.observation.outward is not None:
            raise ValueError(
                "observations of the estimator are no Gaussian around f (transformed targets, or counts of a rate e^f): fit transformed targets, "
                "such as log(y + 1/2), with likelihood='gaussian', or take functions by sample_functions, which are in the units of the targets"
            )
        self._fitted = fitted
        self._moments, self._dtype = moments_of(fitted.posterior), dtype_of(fitted.posterior)

    @property
    def n_inputs(self) -> int:
        return len(self._fitted.inputs.mean)

    def value(self, X: Sets) -> tuple[Means, Covariances]:
        """(Mean, covariance) of f at each set."""
        s, Z = self._fitted.target_scale, self._standardised(X)
        mean, covariance = self._by_chunk(value, Z)
        root = self._root(Z)
        mean = float(self._fitted.targets.mean) + s * mean
        covariance = s**2 * root[:, :, None] * covariance * root[:, None]
        if (m := self._fitted.observation.mean_function) is not None:
            d = m.deviations(X)
            mean, covariance = mean + m(X), covariance + d @ d.swapaxes(1, 2)
        return mean, covariance

    def pull(self, X: Sets, by_mean: Means, by_covariance: Covariances) -> Sets:
        """The gradient in X of a function whose gradients in means and covariances are given."""
        s, Z = self._fitted.target_scale, self._standardised(X)
        root = self._root(Z)
        by_own = s**2 * root[:, :, None] * by_covariance * root[:, None]
        found = self._by_chunk(pull, Z, s * by_mean, by_own)[0]
        found = found / np.asarray(self._fitted.inputs.scale, np.float64)
        m = self._fitted.observation.mean_function
        if m is not None:
            by = (by_covariance + by_covariance.swapaxes(1, 2)) @ m.deviations(X)
            found += by_mean[..., None] * m.gradient(X) + m.gradient(X, by)
        return found

    def noise(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """What the variance of an observation has more than that of f, as `predict(X, return_std=True, include_noise=True)` says; at least 0."""
        (_, with_noise), (_, of_f) = (
            self._fitted.mean_and_std(X, include_noise=given) for given in (True, False)
        )
        return np.maximum(with_noise**2 - of_f**2, 0.0)

    def _standardised(self, X: Sets) -> Sets:
        inputs = self._fitted.inputs
        return (X - np.asarray(inputs.mean, np.float64)) / np.asarray(inputs.scale, np.float64)

    def _root(self, Z: Sets) -> Means:
        """√c of every point."""
        inflation = self._fitted.observation.inflation
        if inflation is None or not inflation.is_scaling:
            return np.ones(Z.shape[:2])
        rows = np.asarray(Z.reshape(-1, Z.shape[-1]), self._fitted.dtype)
        return np.sqrt(inflation.multiplier(rows)).reshape(Z.shape[:2])

    def _by_chunk(self, evaluate: Callable, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """In chunks of about `ROWS` rows, the last one filled up to a power of two of sets, so that few sizes are compiled."""
        step = max(1, ROWS // arrays[0].shape[1])
        own = lambda *sets: evaluate(self._moments, *(jnp.asarray(part, self._dtype) for part in sets))
        with jax.enable_x64(True):
            return by_blocks(own, step, *arrays)


def dtype_of(posterior: AbstractPosterior) -> np.dtype:
    """The dtype of sets: a covariance by a factor is the small difference of two large numbers."""
    is_wide = isinstance(posterior, ExactKernelPosterior | MixturePosterior)
    return np.dtype(np.float64 if is_wide else posterior.dtype or np.float64)


def moments_of(posterior: AbstractPosterior) -> Any:
    """A function of sets Z that gives `Moments` in the units of the posterior. Raises ValueError for one that knows no covariances: local prediction."""
    with jax.enable_x64(True):
        match posterior:
            case MixturePosterior():
                parts = tuple(moments_of(part) for part in posterior.parts)
                return eqx.Partial(_of_mixture, parts, jnp.asarray(posterior.shares))
            case ExactKernelPosterior():
                operator = posterior.system.operator.astype(np.float64)
                wide = [
                    jnp.asarray(np.asarray(part), jnp.float64)
                    for part in (posterior.weights, posterior.factor.L)
                ]
                return eqx.Partial(_by_factor, operator, *wide)
            case SampledKernelPosterior():
                return eqx.Partial(_by_samples, posterior.samples, posterior.weights)
            case FeaturePosterior():
                return eqx.Partial(_by_features, posterior.features, posterior.weights, posterior.root)
            case VariationalPosterior():
                return eqx.Partial(_by_process, posterior.process)
    raise ValueError(
        f"{type(posterior).__name__} knows no covariances between rows: fit with prediction='global' and likelihood='gaussian'"
    )


def _of_mixture(parts: tuple, shares: Array, Z: Float[Array, "B Q D"]) -> Moments:
    means, covariances = (jnp.stack(part) for part in zip(*(of(Z) for of in parts), strict=True))
    mean = jnp.tensordot(shares, means, 1)
    d = means - mean
    return mean, jnp.tensordot(shares, covariances + d[..., :, None] * d[..., None, :], 1)


def _by_factor(operator: Any, weights: Array, L: Array, Z: Float[Array, "B Q D"]) -> Moments:
    (B, Q, D), N = Z.shape, operator.size
    across = operator.kernel.between(operator.block(0, N), operator.prepare(Z.reshape(-1, D)))
    half = jax.scipy.linalg.solve_triangular(L, across, lower=True).reshape(N, B, Q)
    own = jax.vmap(lambda rows: operator.kernel.between(rows, rows))(jax.vmap(operator.prepare)(Z))
    return matmul(weights[:, 0], across).reshape(B, Q), own - einsum("nbq,nbr->bqr", half, half)


def _by_samples(functions: KernelFunctions, weights: Array, Z: Float[Array, "B Q D"]) -> Moments:
    points, sets, operator = Z.reshape(-1, Z.shape[2]), Z.shape[:2], functions.operator
    mean = times(operator, points, operator.pad(jnp.asarray(weights)))[:, 0]
    D = (functions(points) - mean[:, None]).reshape(*sets, -1)
    return mean.reshape(sets), einsum("bqs,brs->bqr", D, D) / D.shape[-1]


def _by_features(features: Any, weights: Array, root: Array, Z: Float[Array, "B Q D"]) -> Moments:
    def moments(Z: Array) -> tuple[Array, Array]:
        Phi = features(Z).astype(weights.dtype)
        half = matmul(Phi, root)
        return matmul(Phi, weights), matmul(half, half.T)

    return jax.vmap(moments)(Z)


def _by_process(process: Any, Z: Float[Array, "B Q D"]) -> Moments:
    def moments(Z: Array) -> tuple[Array, Array]:
        K, W, V = process.covariance_parts(Z)
        return process.mean(Z)[:, 0], K - matmul(W.T, W) + matmul(V[0].T, V[0])

    return jax.vmap(moments)(Z)


@eqx.filter_jit
def value(moments: Callable, Z: Array) -> Moments:
    """Means and covariances of sets."""
    return moments(Z)


@eqx.filter_jit
def pull(moments: Callable, Z: Array, by_mean: Array, by_covariance: Array) -> tuple[Float[Array, "B Q D"]]:
    """The gradient in Z of a function whose gradients in means and covariances are given."""
    found, backward = jax.vjp(moments, Z)
    return backward((by_mean.astype(found[0].dtype), by_covariance.astype(found[1].dtype)))
