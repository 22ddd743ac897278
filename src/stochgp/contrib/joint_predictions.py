"""Means and covariances of f at sets of points, with gradients, for acquisition functions.

The covariance C at a set Z depends on the type of the posterior:

    samples    C = D Dᵀ/S, where D are deviations of S sampled functions from the mean
    features   C = (φR)(φR)ᵀ, where RRᵀ is the covariance of the weights
    factor     C = k(Z, Z) − k(Z, X) A⁻¹ k(X, Z) with A = LLᵀ
    mixture    C = Σ_s w_s [C_s + (m_s − m)(m_s − m)ᵀ] with m = Σ_s w_s m_s
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.utils.validation import check_is_fitted

from stochgp.estimators import FunctionDraws, PosteriorRegressor
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

ROWS = 512  # rows per evaluation

Sets = Float[np.ndarray, "B Q D"]
Moments = tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]

SAMPLES = 64  # functions for an estimate of the covariance


def joint_moments(estimator: Any) -> Any:
    """Return a function from sets of points [B, Q, D] to the joint moments of f.

    The moments are the mean [B, Q] and covariance [B, Q, Q] of `predict`, in original units. With an
    iterative solver, the covariance is an estimate. `values` evaluates the function, and `pull` its gradient.
    """
    if not isinstance(estimator, PosteriorRegressor):
        raise TypeError(f"estimator must be a fitted regressor of stochgp, not {type(estimator).__name__}")
    check_is_fitted(estimator)
    fitted = estimator._fitted
    refuse_encoded(fitted.encoder)
    if fitted.observation.outward is not None:
        raise ValueError(
            "the moments of f are not available, because the estimator transforms targets or models counts. Transform the targets yourself, "
            "for example to log(y + 1/2), and set likelihood='gaussian'. Or use sample_functions, which returns values in target units"
        )
    m, dispersion, posterior = (
        fitted.observation.mean_function,
        fitted.observation.inflation,
        fitted.posterior,
    )
    prior = None if m is None else lambda rows: (m(rows, jnp), m.deviations(rows, jnp))
    scale = None if dispersion is None or not dispersion.is_scaling else dispersion.scale
    # Covariances from a Cholesky factor are small differences of large numbers.
    is_wide = isinstance(posterior, ExactKernelPosterior | MixturePosterior)
    dtype = np.dtype(np.float64 if is_wide else posterior.dtype or np.float64)
    units = fitted.inputs.mean, fitted.inputs.scale, fitted.targets.mean, fitted.targets.scale
    units = [np.asarray(part, np.float64) for part in units]
    return eqx.Partial(_in_units, moments_of(posterior), scale, prior, units, dtype)


def refuse_encoded(encoder: Any) -> None:
    """Raise ValueError if inputs need encoding."""
    if encoder is not None and not getattr(encoder, "is_plain", False):
        raise ValueError("the model encodes columns of a table: fit it to an array of numbers")


def draws_at(functions: FunctionDraws, Z: Float[Array, "B Q D"]) -> tuple[Float[Array, "B Q S"]]:
    """Return the values of drawn functions at sets, in a tuple."""
    rows = Z.reshape(-1, Z.shape[-1]).astype(functions.dtype)
    return (functions(rows).reshape(*Z.shape[:-1], -1),)


def values(function: Callable, X: Sets) -> tuple[np.ndarray, ...]:
    """Evaluate a function of sets in padded chunks of about `ROWS` rows."""
    return _by_chunk(lambda Z: _values(function, Z), X)


def pull(function: Callable, X: Sets, *slopes: np.ndarray) -> Sets:
    """Return gradients in X, from `slopes`, the gradients in the results of `function`."""
    return _by_chunk(lambda *parts: _pull(function, *parts), X, *slopes)[0]


def _by_chunk(evaluate: Callable, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    own = lambda *sets: evaluate(*(jnp.asarray(part, jnp.float64) for part in sets))
    with jax.enable_x64(True):
        return by_blocks(own, max(1, ROWS // arrays[0].shape[1]), *arrays)


@eqx.filter_jit
def _values(function: Callable, Z: Array) -> tuple[Array, ...]:
    return function(Z)


@eqx.filter_jit
def _pull(function: Callable, Z: Array, *slopes: Array) -> tuple[Float[Array, "B Q D"]]:
    found, backward = jax.vjp(function, Z)
    return backward(tuple(slope.astype(part.dtype) for slope, part in zip(slopes, found, strict=True)))


def _in_units(
    of_posterior: Any, scale: Any, prior: Any, units: Any, dtype: Any, X: Float[Array, "B Q D"]
) -> Moments:
    """Return moments in target units at sets in input units."""
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
    """Return a function from sets to moments in model units. ValueError if unsupported."""
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
        f"{type(posterior).__name__} has no covariances between rows: fit with likelihood='gaussian', and with solver='cholesky' or solver='cg'"
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
