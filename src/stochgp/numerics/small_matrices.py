"""Factors, inverses and triangular products of small matrices inside a step.

XLA has no products of triangular matrices, nor to symmetric or triangular ones. Here what is known to be 0, or equal, is not computed: by halves
down to LEAF they take 3/4 of a full product's operations at 512, 5/8 at 1,024. Up to LEAF they are plain products.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from stochgp.numerics.precision import einsum, matmul

LARGEST_SOLVE = 64  # a triangular matrix up to this size is inverted by one solve
LARGEST_FACTOR = 512  # a matrix up to this size is factorised by one call
JITTERS = {4: (0.0, 1e-6, 1e-4, 1e-2), 8: (0.0, 1e-12, 1e-9, 1e-6, 1e-3)}  # by bytes of a number


def cholesky(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L with A = LLᵀ, of a symmetric A; NaN where there is none. By blocks: at 1,024 twice as fast as one call of XLA's."""
    n = A.shape[0]
    if n <= LARGEST_FACTOR:
        return jnp.linalg.cholesky(A)
    h = n // 2
    P = cholesky(A[:h, :h])
    Q = solve_triangular(P, A[h:, :h].T, lower=True).T
    R = cholesky(A[h:, h:] - symmetric_product(Q, Q))
    return jnp.block([[P, jnp.zeros((h, n - h), A.dtype)], [Q, R]])


def inverse_factor(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """L⁻¹ with A = LLᵀ: A⁻¹x = L⁻ᵀ(L⁻¹x), tr A⁻¹ = ‖L⁻¹‖². NaN where A has no Cholesky factor."""
    return invert_lower(cholesky(A))


def invert_lower(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """By blocks: [[P, 0], [Q, R]]⁻¹ = [[P⁻¹, 0], [−R⁻¹QP⁻¹, R⁻¹]]. Products of halves are twice as fast as one solve with the identity."""
    n = L.shape[0]
    if n <= LARGEST_SOLVE:
        return solve_triangular(L, jnp.eye(n, dtype=L.dtype), lower=True)
    h = n // 2
    P, R = invert_lower(L[:h, :h]), invert_lower(L[h:, h:])
    Q = -matmul(R, matmul(L[h:, :h], P))
    return jnp.block([[P, jnp.zeros((h, n - h), L.dtype)], [Q, R]])


def one_by_one(of: Callable[[Array], Array], matrices: Float[Array, "L M M"]) -> Float[Array, "L ..."]:
    """`of` each matrix, one after the other.

    Not by `vmap` where `of` has factorisations that do not depend on each other: JAX shares a batch of them among the threads of one pool, and
    waits for them on one of these threads. On two threads two batches at once then wait for ever (JAX 0.10.2).
    """
    return of(matrices[0])[None] if len(matrices) == 1 else jax.lax.map(of, matrices)


def safe_cholesky(A: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """(L, jitter) with A + jitter·I = LLᵀ: the first of these shares of the mean diagonal that works, 0 among them.

    1e-6, 1e-4 and 1e-2 in float32, 1e-12, 1e-9, 1e-6 and 1e-3 in float64. L is NaN if none does.
    """
    scale, shares = jnp.mean(jnp.diagonal(A)), jnp.asarray(JITTERS[A.dtype.itemsize], A.dtype)
    eye = jnp.eye(A.shape[0], dtype=A.dtype)

    def failed(carry: tuple) -> Array:
        L, level = carry
        return ~jnp.isfinite(L[-1, -1]) & (level < len(shares) - 1)

    def retry(carry: tuple) -> tuple:
        level = carry[1] + 1
        return cholesky(A + scale * shares[level] * eye), level

    L, level = jax.lax.while_loop(failed, retry, (cholesky(A), jnp.asarray(0, jnp.int32)))
    return L, scale * shares[level]


def symmetrise(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """½(A + Aᵀ)."""
    return 0.5 * (A + A.T)


def apply_inverse(factor: Float[Array, "M M"], Phi: Float[Array, "B M"]) -> Float[Array, "B M"]:
    """Rows φᵀA⁻¹ for the inverse factor L⁻¹ of A."""
    return matmul(matmul(Phi, factor.T), factor)


def safe_inverse_factor(A: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """(L⁻¹, jitter) with A + jitter·I = LLᵀ of `safe_cholesky`. No derivative goes through it: `whiten` has that of L⁻¹K."""
    L, jitter = safe_cholesky(jax.lax.stop_gradient(A))
    return invert_lower(L), jitter


@jax.custom_vjp
def whiten(
    inverse: Float[Array, "M M"], A: Float[Array, "M M"], K: Float[Array, "M N"]
) -> Float[Array, "M N"]:
    """W = L⁻¹K, A = LLᵀ, where L⁻¹ is known as `inverse`: with Ψ = Φ(W̄Wᵀ),

        K̄ = L⁻ᵀW̄,    Ā = −sym(L⁻ᵀ Ψ L⁻¹).

    Φ takes the lower triangle and half of the diagonal (Murray 2016, arXiv 1602.07527). No derivative of L⁻¹ is needed, and every product is
    of a triangular matrix. In reverse mode only.
    """
    return lower_times(inverse, K)


def _whiten_forwards(inverse: Array, A: Array, K: Array) -> tuple[Array, tuple]:
    W = lower_times(inverse, K)
    return W, (inverse, W)


def _whiten_backwards(known: tuple, by_W: Array) -> tuple[Array, Array, Array]:
    inverse, W = known
    half = _halved(lower_of_product(by_W, W))
    by_A = -symmetrise(transposed_times(inverse, lower_times(half, inverse)))
    return jnp.zeros_like(inverse), by_A, transposed_times(inverse, by_W)


whiten.defvjp(_whiten_forwards, _whiten_backwards)


def _halved(lower: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Φ of a lower triangular matrix: half of its diagonal."""
    return lower - 0.5 * jnp.diag(jnp.diagonal(lower))


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
