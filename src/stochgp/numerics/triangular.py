"""Products of triangular and to symmetric or triangular matrices by blocks: what is known to be 0, or equal, is not computed.

XLA has none of these products. By halves down to LEAF they take 3/4 of a full product's operations at 512, 5/8 at 1,024. Up to LEAF they are plain products.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.numerics.precision import einsum, matmul

LEAF = 256


def lower_times(L: Float[Array, "M M"], X: Float[Array, "M N"]) -> Float[Array, "M N"]:
    """L X, L lower triangular: [[P, 0], [Q, R]] [X₁, X₂] = [P X₁, Q X₁ + R X₂]."""
    n = L.shape[0]
    if n <= LEAF:
        return matmul(L, X)
    h = n // 2
    below = matmul(L[h:, :h], X[:h]) + lower_times(L[h:, h:], X[h:])
    return jnp.concatenate([lower_times(L[:h, :h], X[:h]), below])


def transposed_times(L: Float[Array, "*K M M"], X: Float[Array, "M N"]) -> Float[Array, "*K M N"]:
    """Lᵀ X for each of the L, all lower triangular: [[P, 0], [Q, R]]ᵀ [X₁, X₂] = [PᵀX₁ + QᵀX₂, RᵀX₂]."""
    n = L.shape[-1]
    if n <= LEAF:
        return einsum("...ij,in->...jn", L, X)
    h = n // 2
    above = transposed_times(L[..., :h, :h], X[:h]) + einsum("...ij,in->...jn", L[..., h:, :h], X[h:])
    return jnp.concatenate([above, transposed_times(L[..., h:, h:], X[h:])], axis=-2)


def symmetric_product(A: Float[Array, "M N"], B: Float[Array, "M N"]) -> Float[Array, "M M"]:
    """A Bᵀ where it is known to be symmetric: of the blocks off the diagonal one is the other's transpose."""
    n = A.shape[0]
    if n <= LEAF:
        return matmul(A, B.T)
    h = n // 2
    Q = matmul(A[h:], B[:h].T)
    return jnp.block([[symmetric_product(A[:h], B[:h]), Q.T], [Q, symmetric_product(A[h:], B[h:])]])


def lower_of_product(A: Float[Array, "M N"], B: Float[Array, "M N"]) -> Float[Array, "M M"]:
    """The lower triangle of A Bᵀ, zero above it."""
    n = A.shape[0]
    if n <= LEAF:
        return jnp.tril(matmul(A, B.T))
    h = n // 2
    above, Q = jnp.zeros((h, n - h), A.dtype), matmul(A[h:], B[:h].T)
    return jnp.block([[lower_of_product(A[:h], B[:h]), above], [Q, lower_of_product(A[h:], B[h:])]])
