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
from stochgp.numerics.arrays import by_blocks, einsum, matmul
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

SAMPLES = 64  # functions whose covariance stands for the posterior's, with a relative standard error of √(2/64) = 0.18


class JointPredictions:
    """Mean and covariance of f at sets of points X [B, Q, D], in the units of the inputs and of the targets given to `fit`.

    The mean is that of `predict`. The covariance is that of `predict(X, return_cov=True)` or, with an iterative solver, of functions drawn, the
    scale of variances included:

        C(x, z) = s² √(c(x) c(z)) C₀(x, z) + cov(m(x), m(z)),   m a fitted prior mean, c the multipliers of variances

    Raises TypeError for other objects than regressors of this package. Raises ValueError for inputs that are not numbers alone, for targets of
    which f is not the mean (transformed ones, and counts, whose f is the logarithm of a rate), and for a posterior without covariances.
    """

    def __init__(self, estimator: Any):
        if not isinstance(estimator, PosteriorRegressor):
            raise TypeError(f"a fitted regressor of stochgp is wanted, not {type(estimator).__name__}")
        check_is_fitted(estimator)
        fitted = self._fitted = estimator._fitted
        if fitted.encoder is not None and not getattr(fitted.encoder, "is_plain", False):
            raise ValueError(
                "the estimator was fitted to a table whose columns are encoded: fit it to an array of numbers"
            )
        if fitted.observation.outward is not None:
            raise ValueError(
                "observations of the estimator are no Gaussian around f (transformed targets, or counts of a rate e^f): fit transformed targets, "
                "such as log(y + 1/2), with likelihood='gaussian', or take functions by sample_functions, which are in the units of the targets"
            )
        m, dispersion, posterior = (
            fitted.observation.mean_function,
            fitted.observation.inflation,
            fitted.posterior,
        )
        prior = None if m is None else lambda rows: (m(rows, jnp), m.deviations(rows, jnp))
        scale = None if dispersion is None or not dispersion.is_scaling else dispersion.scale
        # A covariance by a factor is the small difference of two large numbers.
        is_wide = isinstance(posterior, ExactKernelPosterior | MixturePosterior)
        dtype = np.dtype(np.float64 if is_wide else posterior.dtype or np.float64)
        units = fitted.inputs.mean, fitted.inputs.scale, fitted.targets.mean, fitted.targets.scale
        units = [np.asarray(part, np.float64) for part in units]
        with jax.enable_x64(True):
            self._moments = eqx.Partial(_in_units, moments_of(posterior), scale, prior, units, dtype)

    @property
    def n_inputs(self) -> int:
        return len(self._fitted.inputs.mean)

    def value(self, X: Sets) -> tuple[Means, Covariances]:
        """Return (Mean, covariance) of f at each set."""
        mean, covariance = self._by_chunk(value, X)
        return mean, covariance

    def pull(self, X: Sets, by_mean: Means, by_covariance: Covariances) -> Sets:
        """Return the gradient in X of a function whose gradients in means and covariances are given."""
        return self._by_chunk(pull, X, by_mean, by_covariance)[0]

    def noise(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Return the variance of an observation, of `predict(X, return_std=True, include_noise=True)`, minus that of f; at least 0."""
        noisy, of_f = (self._fitted.mean_and_std(X, include_noise=given)[1] for given in (True, False))
        return np.maximum(noisy**2 - of_f**2, 0.0)

    def _by_chunk(self, evaluate: Callable, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """In chunks of about `ROWS` rows, the last one filled up to a power of two of sets, so that few sizes are compiled."""
        own = lambda *sets: evaluate(self._moments, *(jnp.asarray(part, jnp.float64) for part in sets))
        with jax.enable_x64(True):
            return by_blocks(own, max(1, ROWS // arrays[0].shape[1]), *arrays)


def _in_units(
    of_posterior: Any, scale: Any, prior: Any, units: Any, dtype: Any, X: Float[Array, "B Q D"]
) -> Moments:
    """Moments in target units, at sets in the units of the inputs."""
    center, width, target_mean, s = units
    Z = ((X - center) / width).astype(dtype)
    mean, covariance = (part.astype(X.dtype) for part in of_posterior(Z))
    mean, covariance = target_mean + s * mean, s**2 * covariance
    rows = X.reshape(-1, X.shape[-1])
    if scale is not None:
        c = scale(Z.reshape(rows.shape)).astype(X.dtype)
        root = jnp.sqrt(c).reshape(X.shape[:2])
        covariance = root[:, :, None] * covariance * root[:, None]
    if prior is not None:
        m, d = prior(rows)
        d = d.reshape(*X.shape[:2], -1)
        mean, covariance = mean + m.reshape(mean.shape), covariance + einsum("bqr,bpr->bqp", d, d)
    return mean, covariance


def moments_of(posterior: AbstractPosterior) -> Any:
    """Return a function of sets Z that gives `Moments` in the units of the posterior. Raises ValueError for one that knows no covariances: local prediction."""
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
                return eqx.Partial(
                    _by_samples, posterior.functions(SAMPLES, key=jax.random.key(0)), posterior.weights
                )
            case FeaturePosterior():
                return eqx.Partial(_by_features, posterior.features, posterior.weights, posterior.root)
            case VariationalPosterior():
                return eqx.Partial(_by_process, posterior.process)
    raise ValueError(
        f"{type(posterior).__name__} knows no covariances between rows: fit with solver='cholesky' or 'cg', and likelihood='gaussian'"
    )


def _of_mixture(parts: tuple, shares: Array, Z: Float[Array, "B Q D"]) -> Moments:
    means, covariances = (jnp.stack(part) for part in zip(*(of(Z) for of in parts), strict=True))
    mean = jnp.tensordot(shares, means, 1)
    d = means - mean
    return mean, jnp.tensordot(shares, covariances + d[..., :, None] * d[..., None, :], 1)


def _by_factor(operator: Any, weights: Array, L: Array, Z: Float[Array, "B Q D"]) -> Moments:
    (B, Q, D), N = Z.shape, operator.size
    across = operator.kernel.between(operator.take(jnp.arange(N)), operator.prepare(Z.reshape(-1, D)))
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
    """Return the gradient in Z of a function whose gradients in means and covariances are given."""
    found, backward = jax.vjp(moments, Z)
    return backward((by_mean.astype(found[0].dtype), by_covariance.astype(found[1].dtype)))
