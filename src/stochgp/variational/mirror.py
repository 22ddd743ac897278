"""Mirror ascent on the covariance of a process: the inverse covariance of q moves towards what a batch says, in the space of functions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from stochgp.numerics.precision import matmul
from stochgp.parameters import cast, value_of
from stochgp.variational.functions import InducingFunctions


class Mirrored(NamedTuple):
    """In float64 where it may be used; rows of functions that are not there are 0."""

    K: Float[Array, "P P"]  # of the functions
    projected: Float[Array, "P B"]  # p_i = K⁻¹k(β, x_i)
    L: Float[Array, "P P"]  # the new root of B


def mirror_covariance(
    functions: InducingFunctions,
    kernel: Any,
    L: Float[Array, "P P"],
    X: Float[Array, "B D"],
    weight: Float[Array, " B"],
    gamma: Any,
    jitter: float,
) -> Mirrored:
    """B = LLᵀ ← (1−γ) B + γ Σ_i w_i p_i p_iᵀ, the root by QR of [√(1−γ) L, √(γ w_i) p_i]: B stays positive semi-definite.

    I + Ψ B Ψᵀ moves so towards I + Σ w_i φ_i φ_iᵀ, its part in the span of the functions. `jitter` is on the diagonal of K where it is inverted,
    relative to k(x, x). O(P³ + B P²).
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    own, kernel = cast(functions, wide), cast(value_of(kernel), wide)
    K = gram(own, kernel)
    across = jnp.where(own.mask[:, None], own.at(kernel, X.astype(wide)).T, 0)
    projected = cho_solve((_factor(own, K, jitter), True), across)
    gamma, weight = jnp.asarray(gamma, wide), weight.astype(wide)
    columns = [jnp.sqrt(1 - gamma) * L.astype(wide), jnp.sqrt(gamma * weight)[None, :] * projected]
    return Mirrored(K, projected, jnp.linalg.qr(jnp.concatenate(columns, axis=1).T, mode="r").T)


def carried(
    functions: InducingFunctions,
    kernel: Any,
    before: InducingFunctions,
    parts: Float[Array, "P C"],
    jitter: float,
) -> Float[Array, "P C"]:
    """K⁻¹k(β, β') parts: sums of p_i = K⁻¹k(β', x_i) by functions β' `before`, said by the functions β that they became.

    It is the projection that a mirror step takes rows through, so q stays near to what it was wherever the functions move, and loses what they
    can no longer say. In float64 where it may be used; `jitter` as of `mirror_covariance`.
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    own, old, kernel = cast(functions, wide), cast(before, wide), cast(value_of(kernel), wide)
    across = jnp.where(own.mask[:, None] & old.mask[None, :], own.among(kernel, old), 0)
    return cho_solve((_factor(own, gram(own, kernel), jitter), True), matmul(across, parts.astype(wide)))


def gram(functions: InducingFunctions, kernel: Any) -> Float[Array, "P P"]:
    """K of the functions, 0 where they are not there."""
    mask = functions.mask
    return jnp.where(mask[:, None] & mask[None, :], functions.among(kernel, functions), 0)


def _factor(functions: InducingFunctions, K: Float[Array, "P P"], jitter: float) -> Float[Array, "P P"]:
    """Of K + jitter · diag(K), and of 1 where functions are not there."""
    return jnp.linalg.cholesky(K + jnp.diag(jnp.where(functions.mask, jitter * jnp.diagonal(K), 1)))


def check_mirror_rate(rate: Any) -> None:
    """Raises ValueError for a number that is no weight."""
    if not callable(rate) and not 0 < rate <= 1:
        raise ValueError(f"mirror_rate is {rate}; it must be above 0 and at most 1, or a rule")
