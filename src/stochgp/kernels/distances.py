"""Squared Euclidean distances, for one pair and for a block."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.precision import matmul


def squared_distance(x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
    """‖x − z‖²."""
    return jnp.sum(jnp.square(x - z))


def squared_distances(X: Float[Array, "N D"], Z: Float[Array, "P D"]) -> Float[Array, "N P"]:
    """‖X_i − Z_j‖² = ‖X_i‖² + ‖Z_j‖² − 2 X_i·Z_j, a matrix product.

    The three terms cancel for close rows. Both sets are moved to the mean of Z first, which makes the terms
    small, and what remains below the rounding error 4 eps (‖X_i‖² + ‖Z_j‖²) counts as zero: repeated rows are
    at distance 0 exactly, so that k(x, x) is exactly the variance. Derivatives are those of the formula.
    """
    centre = jax.lax.stop_gradient(jnp.mean(Z, axis=0, keepdims=True))
    Z_is_X = Z is X
    X = X - centre
    Z = X if Z_is_X else Z - centre
    norms = jnp.sum(jnp.square(X), axis=1)[:, None] + jnp.sum(jnp.square(Z), axis=1)[None, :]
    squares = norms - 2 * matmul(X, Z.T)
    rounding = 4 * float(jnp.finfo(X.dtype).eps) * norms
    return squares - jax.lax.stop_gradient(jnp.where(squares > rounding, jnp.zeros_like(squares), squares))
