"""Cholesky factors of dense matrices on the host, and of small matrices in compiled code."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import solve_triangular
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stochgp import deadline
from stochgp.numerics.arrays import matmul

# In float32, entries of K below this share of the largest are 0, because subnormal products are slow.
NEGLIGIBLE = 1e-12
# Columns per call of LAPACK. OpenBLAS 0.3.30 and 0.3.31 crash at 16,000 rows of float64. Without a deadline,
# up to UNBLOCKED · BLOCK rows of float64 are factorised in one call, which takes half of the time.
BLOCK, UNBLOCKED = 2_048, 4
UNDERFLOW = 1.1e-19  # √(smallest normal number of float32)
SMALL, SHARE_OF_SMALL = 1e-9, 0.01
LARGEST_SOLVE = 64  # a triangular matrix up to this size is inverted by one solve
# Jitters as shares of the mean diagonal, for 4 and 8 bytes per number.
LARGER = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
JITTERS = {4: (0.0, *LARGER), 8: (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-8, *LARGER)}


class Factor(NamedTuple):
    """The Cholesky factor L with A + jitter·I = LLᵀ.

    Parameters
    ----------
    L : array [N, N]
        The factor L. Entries above the diagonal are arbitrary.
    jitter : float
        The number that was added to the diagonal of A.
    """

    L: Float[np.ndarray, "N N"]
    jitter: float

    def solve(self, b: Float[np.ndarray, "N S"]) -> Float[np.ndarray, "N S"]:
        """Return (A + jitter·I)⁻¹b, in the dtype of L."""
        return scipy.linalg.cho_solve((self.L, True), b.astype(self.L.dtype), check_finite=False)

    def half(self, k: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N P"]:
        """Return L⁻¹k, whose sums of squares are kᵀ(A + jitter·I)⁻¹k."""
        return scipy.linalg.solve_triangular(
            self.L, k.astype(self.L.dtype), lower=True, overwrite_b=True, check_finite=False
        )

    def rest(self, half: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N P"]:
        """Return L⁻ᵀ `half` = (A + jitter·I)⁻¹k, and overwrite `half`."""
        return scipy.linalg.solve_triangular(
            self.L, half, lower=True, trans=1, overwrite_b=True, check_finite=False
        )

    def times(self, factor: float) -> "Factor":
        """Return the Cholesky factor of `factor` · A, and overwrite L."""
        np.multiply(self.L, self.L.dtype.type(math.sqrt(factor)), out=self.L)
        return Factor(self.L, factor * self.jitter)

    def log_determinant(self) -> float:
        """Return log|A + jitter·I|."""
        return 2 * float(np.sum(np.log(np.diagonal(self.L).astype(np.float64))))


def inverse_root(precision: Float[np.ndarray, "M M"]) -> Float[np.ndarray, "M M"]:
    """Return the lower triangular R with RRᵀ = Λ⁻¹ for the precision matrix Λ."""
    flipped = np.linalg.cholesky(precision[::-1, ::-1])
    return scipy.linalg.solve_triangular(flipped, np.eye(len(flipped)), lower=True)[::-1, ::-1].T


def factorised(fill: Callable[[], Float[np.ndarray, "N N"]]) -> Factor:
    """Return the Cholesky factor of A = fill(), with the smallest jitter that suffices.

    Only the upper triangle of A is read. Each attempt calls `fill` and overwrites A. Raises ValueError if no
    jitter suffices, and TimeIsUpError if the factorisation would end after a deadline.
    """
    A: Any = fill()
    for share in JITTERS[A.itemsize]:
        A = fill() if A is None else A
        jitter = share * float(A.diagonal().mean(dtype=np.float64))
        if jitter:
            A[np.diag_indices(len(A))] += A.dtype.type(jitter)
        L, A = A.T, None  # frees the memory of a failed attempt before the next
        if _made_in(L) and math.isfinite(L[-1, -1]):
            return Factor(L, jitter)
        del L
    raise ValueError("the kernel matrix cannot be factorised; check that inputs and parameters are finite")


@np.errstate(invalid="ignore", over="ignore")  # arbitrary entries above the diagonal
def _made_in(L: Float[np.ndarray, "N N"]) -> bool:
    """Factorise the lower triangle of a matrix in place. Return False if that fails.

    In float32, products of small numbers are subnormal numbers, which are 40 times slower. Therefore diagonal
    blocks, and blocks with many small entries, use float64; then entries below UNDERFLOW become 0.
    """
    begun, N, narrow = deadline.left(), len(L), L.dtype == np.float32
    (potrf,) = scipy.linalg.get_lapack_funcs(("potrf",), dtype=np.float64)
    size = BLOCK if begun < math.inf or N > UNBLOCKED * BLOCK else N
    size = BLOCK // 2 if narrow else size  # because of the copies in float64

    def kept(entries: np.ndarray) -> np.ndarray:
        return np.where(np.abs(entries) < UNDERFLOW, 0, entries) if narrow else entries

    for first in range(0, N, size):
        block, last = slice(first, first + size), min(first + size, N)
        for i in range(first, N if first else 0, size):
            L[i : i + size, block] -= L[i : i + size, :first] @ L[block, :first].T
        D = np.asfortranarray(L[block, block], dtype=np.float64)
        if potrf(D, lower=True, clean=False, overwrite_a=True)[1]:
            return False
        L[block, block] = kept(D)
        own = D.astype(L.dtype, copy=False)
        for i in range(last, N, size):
            rows = L[i : i + size, block]
            wide = narrow and np.mean(np.abs(rows) < SMALL) > SHARE_OF_SMALL
            T, right = (D, rows.T.astype(np.float64)) if wide else (own, rows.T)
            found = scipy.linalg.solve_triangular(T, right, lower=True, check_finite=False).T
            rows[:] = kept(found) if wide else found
        done = (3 - 2 * last / N) * (last / N) ** 2  # share of all multiplications
        if last < N and begun < math.inf:
            deadline.require((begun - deadline.left()) * (1 / done - 1))
    return True


ROUNDINGS = 4.0  # rounding error of hᵀK⁺h in eps k(x, x) ‖h‖²; measured: 2 to 5


def rounding_error(prior: Any, weight: Any, dtype: DTypeLike) -> Any:
    """Return the rounding error 4 eps k(x, x) (1 + ‖b‖²) of hᵀK⁺h; `weight` is ‖b‖².

    The predictor bᵀy of f(x) has the variance bᵀΣb + hᵀK⁺h with h = [−b; 1]. K⁺ is the prior covariance of
    the training rows and x.
    """
    return ROUNDINGS * float(np.finfo(dtype).eps) * prior * (1 + weight)


def safe_covariance(
    of_noise: Float[np.ndarray, "N N"], rest: Float[np.ndarray, "N N"], rounding: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "N N"]:
    """Return the covariance `of_noise` + `rest` + diag(`rounding`), and overwrite `rest`.

    If `rest` has negative eigenvalues, the nearest positive semi-definite matrix replaces it.
    """
    rest += rest.T.copy()
    rest *= 0.5
    rest[np.diag_indices(len(rest))] += rounding
    if not _made_in(rest.T.copy(order="F")):
        values, vectors = scipy.linalg.eigh(rest, overwrite_a=True, check_finite=False)
        vectors *= np.sqrt(np.maximum(values, 0))
        rest = vectors @ vectors.T
        rest[np.diag_indices(len(rest))] += rounding
    rest += of_noise
    return rest


def inverse_factor(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Return L⁻¹ with A = LLᵀ, or NaN if A is not positive definite."""
    return invert_lower(jnp.linalg.cholesky(A))


def invert_lower(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Return L⁻¹ from blocks: [[P, 0], [Q, R]]⁻¹ = [[P⁻¹, 0], [−R⁻¹QP⁻¹, R⁻¹]]."""
    n = L.shape[0]
    if n <= LARGEST_SOLVE:
        return solve_triangular(L, jnp.eye(n, dtype=L.dtype), lower=True)
    h = n // 2
    P, R = invert_lower(L[:h, :h]), invert_lower(L[h:, h:])
    Q = -matmul(R, matmul(L[h:, :h], P))
    return jnp.block([[P, jnp.zeros((h, n - h), L.dtype)], [Q, R]])


def one_by_one(of: Callable[[Array], Array], matrices: Float[Array, "L M M"]) -> Float[Array, "L ..."]:
    """Apply `of` to one matrix at a time, because `vmap` may deadlock (JAX 0.10.2)."""
    return of(matrices[0])[None] if len(matrices) == 1 else jax.lax.map(of, matrices)


def safe_cholesky(A: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """Return L and the jitter of A + jitter·I = LLᵀ; L is NaN if no jitter suffices."""
    scale, shares = jnp.mean(jnp.diagonal(A)), jnp.asarray(JITTERS[A.dtype.itemsize], A.dtype)
    eye = jnp.eye(A.shape[0], dtype=A.dtype)

    def failed(carry: tuple) -> Array:
        L, level = carry
        return ~jnp.isfinite(L[-1, -1]) & (level < len(shares) - 1)

    def retry(carry: tuple) -> tuple:
        level = carry[1] + 1
        return jnp.linalg.cholesky(A + scale * shares[level] * eye), level

    L, level = jax.lax.while_loop(failed, retry, (jnp.linalg.cholesky(A), jnp.asarray(0, jnp.int32)))
    return L, scale * shares[level]


def symmetrise(A: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Return ½(A + Aᵀ)."""
    return 0.5 * (A + A.T)


def safe_inverse_factor(A: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """Return L⁻¹ and the jitter of `safe_cholesky`, without derivatives (see `whiten`)."""
    L, jitter = safe_cholesky(jax.lax.stop_gradient(A))
    return invert_lower(L), jitter


@jax.custom_vjp
def whiten(
    inverse: Float[Array, "M M"], A: Float[Array, "M M"], K: Float[Array, "M N"]
) -> Float[Array, "M N"]:
    """Return W = L⁻¹K for `inverse` = L⁻¹ and A = LLᵀ, with a custom derivative.

    In reverse mode, K̄ = L⁻ᵀW̄ and Ā = −sym(L⁻ᵀ Φ(W̄Wᵀ) L⁻¹). Φ keeps the lower triangle and half of the
    diagonal (Murray 2016, arXiv 1602.07527).
    """
    return matmul(inverse, K)


def _whiten_forwards(inverse: Array, A: Array, K: Array) -> tuple[Array, tuple]:
    W = matmul(inverse, K)
    return W, (inverse, W)


def _whiten_backwards(known: tuple, by_W: Array) -> tuple[Array, Array, Array]:
    inverse, W = known
    half = jnp.tril(matmul(by_W, W.T))
    half = half - 0.5 * jnp.diag(jnp.diagonal(half))
    by_A = -symmetrise(matmul(inverse.T, matmul(half, inverse)))
    return jnp.zeros_like(inverse), by_A, matmul(inverse.T, by_W)


whiten.defvjp(_whiten_forwards, _whiten_backwards)
