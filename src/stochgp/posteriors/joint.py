"""Means and covariances of few rows together, with their slopes: what optimisers over sets of points ask for.

Sets come as Z [B, Q, D]: B sets of Q rows. By kind of posterior,

    from samples    C = DᵀD/S, D the deviations of S functions from the mean
    from features   C = (Rᵀφ)·(Rᵀφ)
    from a factor   C = k(Z, Z) − k(Z, X)A⁻¹k(X, Z)
    of a mixture    C = Σ_s w_s [C_s + (m_s − m)(m_s − m)ᵀ], m = Σ_s w_s m_s

The slope of C from a factor needs none: with H = A⁻¹k(X, Z) held, C and its slope are those of k(Z, Z) − k(Z, X)H − Hᵀk(X, Z) + HᵀAH.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.numerics.arrays import by_blocks
from stochgp.numerics.precision import einsum, matmul
from stochgp.posteriors.base import AbstractPosterior
from stochgp.posteriors.exact import ExactKernelPosterior
from stochgp.posteriors.feature import FeaturePosterior
from stochgp.posteriors.kernel import KernelFunctions, times
from stochgp.posteriors.mixture import MixturePosterior
from stochgp.posteriors.sampled import SampledKernelPosterior
from stochgp.posteriors.variational import VariationalPosterior

ROWS = 512  # that are evaluated at a time

Sets = Float[np.ndarray, "B Q D"]
Means = Float[np.ndarray, "B Q"]
Covariances = Float[np.ndarray, "B Q Q"]


class JointMoments:
    """The means and covariances of a posterior at sets of rows, in its units and in float64, and their slopes.

    Raises ValueError for a posterior that knows no covariances: local prediction.
    """

    def __init__(self, posterior: AbstractPosterior):
        self._mixed: list[tuple[float, JointMoments]] = []
        if isinstance(posterior, MixturePosterior):
            parts = map(JointMoments, posterior.parts)
            self._mixed, self.dtype = list(zip(posterior.shares, parts, strict=True)), np.dtype(np.float64)
            return
        self._posterior, (self._of, self._parts) = posterior, _traced(posterior)
        is_exact = isinstance(posterior, ExactKernelPosterior)
        self.dtype = np.dtype(np.float64 if is_exact else posterior.dtype or np.float64)

    def value(self, Z: Sets) -> tuple[Means, Covariances]:
        """(Mean, covariance) of each set."""
        if self._mixed:
            moments = [(share, *part.value(Z)) for share, part in self._mixed]
            mean = np.sum([share * m for share, m, _ in moments], axis=0)
            apart = [(share, m - mean, C) for share, m, C in moments]
            return mean, np.sum([share * (C + d[:, :, None] * d[:, None]) for share, d, C in apart], axis=0)
        mean, covariance = self._by_chunk(self._value, Z)
        return mean, covariance

    def pull(self, Z: Sets, by_mean: Means, by_covariance: Covariances) -> Sets:
        """The gradient in Z of a function whose gradients in means and covariances are given."""
        if self._mixed:
            means = [(share, part.value(Z)[0], part) for share, part in self._mixed]
            mean = np.sum([share * m for share, m, _ in means], axis=0)
            both = by_covariance + by_covariance.swapaxes(1, 2)
            of_part = lambda m: by_mean + np.einsum("bqr,br->bq", both, m - mean)  # Σ_s w_s (m_s − m) is 0
            return np.sum(
                [share * part.pull(Z, of_part(m), by_covariance) for share, m, part in means], axis=0
            )
        return self._by_chunk(self._pull, Z, by_mean, by_covariance)[0]

    def _value(self, Z: Array) -> tuple[Any, ...]:
        return _value(self._of, self._parts, self._own(Z), Z)

    def _pull(self, Z: Array, by_mean: Array, by_covariance: Array) -> tuple[Any, ...]:
        return (_pull(self._of, self._parts, self._own(Z), Z, by_mean, by_covariance),)

    def _own(self, Z: Array) -> tuple[Array, ...]:
        """Constants of each set: H and HᵀAH, for a factor."""
        points, (B, Q) = np.asarray(Z).reshape(-1, Z.shape[2]), Z.shape[:2]
        match self._posterior:
            case ExactKernelPosterior() as posterior:
                across = posterior.across(points)
                half = np.asarray(posterior.factor.solve(across.T.copy()), self.dtype).reshape(-1, B, Q)
                explained = np.einsum("bqn,nbr->bqr", across.reshape(B, Q, -1), half)
                return jnp.asarray(np.moveaxis(half, 0, 1)), jnp.asarray(explained)
        return ()

    def _by_chunk(self, evaluate: Callable, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """In chunks of about `ROWS` rows, the last one filled up to a power of two of sets, so that few sizes are compiled."""
        step = max(1, ROWS // arrays[0].shape[1])
        with jax.enable_x64(True):
            return by_blocks(
                lambda *sets: evaluate(*(jnp.asarray(part, self.dtype) for part in sets)), step, *arrays
            )


def _traced(posterior: AbstractPosterior) -> tuple[Callable, tuple]:
    """(A function of arrays and of sets of rows, these arrays)."""
    match posterior:
        case ExactKernelPosterior():
            with jax.enable_x64(True):  # the small difference of two large numbers
                operator = posterior.system.operator.astype(np.float64)
                return _by_factor, (operator, jnp.asarray(np.asarray(posterior.weights), np.float64))
        case SampledKernelPosterior():
            with jax.enable_x64(True):
                return _by_samples, (posterior.samples, posterior.weights)
        case FeaturePosterior():
            return _by_features, (posterior.features, posterior.weights, posterior.root)
        case VariationalPosterior():
            return _by_process, (posterior.process,)
    raise ValueError(
        f"{type(posterior).__name__} knows no covariances between rows: fit with prediction='global' and likelihood='gaussian'"
    )


def _by_samples(
    functions: KernelFunctions, weights: Array, Z: Float[Array, "B Q D"]
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]:
    points, sets, operator = Z.reshape(-1, Z.shape[2]), Z.shape[:2], functions.operator
    mean = times(operator, points, operator.pad(jnp.asarray(weights)))[:, 0]
    D = (functions(points) - mean[:, None]).reshape(*sets, -1)
    return mean.reshape(sets), einsum("bqs,brs->bqr", D, D) / D.shape[-1]


def _by_features(
    features: Any, weights: Array, root: Array, Z: Float[Array, "B Q D"]
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]:
    def one(Z: Array) -> tuple[Array, Array]:
        Phi = features(Z).astype(weights.dtype)
        half = matmul(Phi, root)
        return matmul(Phi, weights), matmul(half, half.T)

    return jax.vmap(one)(Z)


def _by_process(process: Any, Z: Float[Array, "B Q D"]) -> tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]:
    def one(Z: Array) -> tuple[Array, Array]:
        K, W, V = process.covariance_parts(Z)
        return process.mean(Z)[:, 0], K - matmul(W.T, W) + matmul(V[0].T, V[0])

    return jax.vmap(one)(Z)


def _by_factor(
    operator: Any,
    weights: Array,
    half: Float[Array, "B N Q"],
    explained: Float[Array, "B Q Q"],
    Z: Float[Array, "B Q D"],
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]:
    def one(half: Array, explained: Array, Z: Array) -> tuple[Array, Array]:
        rows = operator.prepare(Z)
        V = operator.pad(jnp.concatenate([jnp.asarray(weights, Z.dtype), half], axis=1))
        across = operator.times(rows, V)
        E = across[:, 1:]
        return across[:, 0], operator.kernel.between(rows, rows) - E - E.T + explained

    return jax.vmap(one)(half, explained, Z)


@eqx.filter_jit
def _value(of: Callable, shared: tuple, own: tuple, Z: Array) -> tuple[Array, Array]:
    return of(*shared, *own, Z)


@eqx.filter_jit
def _pull(of: Callable, shared: tuple, own: tuple, Z: Array, by_mean: Array, by_covariance: Array) -> Array:
    """`own` are arrays of each set [B, …], held."""

    def total(Z: Array) -> Array:
        mean, covariance = of(*shared, *own, Z)
        pulls = ((by_mean, mean), (by_covariance, covariance))
        return sum((jnp.vdot(pull.astype(value.dtype), value) for pull, value in pulls), start=jnp.zeros(()))

    return jax.grad(total)(Z)
