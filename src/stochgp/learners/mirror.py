"""Mirror ascent on the covariance of a process: the inverse covariance of q moves towards what a batch says, in the space of functions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from stochgp.parameters import cast, value_of
from stochgp.variational import InducingFunctions


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
    mask, gram = own.mask, own.among(kernel, own)
    K = jnp.where(mask[:, None] & mask[None, :], gram, 0)
    inside = K + jnp.diag(jnp.where(mask, jitter * jnp.diagonal(gram), 1))
    across = jnp.where(mask[:, None], own.at(kernel, X.astype(wide)).T, 0)
    projected = cho_solve((jnp.linalg.cholesky(inside), True), across)
    gamma, weight = jnp.asarray(gamma, wide), weight.astype(wide)
    columns = [jnp.sqrt(1 - gamma) * L.astype(wide), jnp.sqrt(gamma * weight)[None, :] * projected]
    return Mirrored(K, projected, jnp.linalg.qr(jnp.concatenate(columns, axis=1).T, mode="r").T)


def check_mirror_rate(rate: Any) -> None:
    """Raises ValueError for a number that is no weight."""
    if not callable(rate) and not 0 < rate <= 1:
        raise ValueError(f"mirror_rate is {rate}; it must be above 0 and at most 1, or a rule")
