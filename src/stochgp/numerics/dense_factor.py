"""Cholesky factors of matrices that lie whole in the memory of the host, and variances that their rounding cannot make negative.

The predictor bᵀy of f(x) has the variance hᵀA⁺h = bᵀΣb + hᵀK⁺h, h = [−b; 1], with K⁺ the prior covariance of the training rows and x. It is never
below that of the best predictor, whatever b is. The first term, that of the noise, is a sum of squares. The second is the difference of large
numbers: where it is below its own rounding error, that error stands for it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from jax.typing import DTypeLike
from jaxtyping import Float

JITTERS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)  # times the mean diagonal
# Smaller entries of K, as a share of its largest, are no more than rounding in float32. Their products would leave float32's range, where
# processors compute a hundred times slower: who fills a matrix in float32 writes 0 for them.
NEGLIGIBLE = 1e-12
# Bytes of a column that LAPACK factorises at once. OpenBLAS 0.3.30 and 0.3.31 end the process at 16,000 rows of float64 (two threads, AVX-512); not at 15,000, nor at
# 24,000 of float32. Blocks cost nothing in float64.
WHOLE = 8 * 12_288
BLOCK = 2_048


class Factor(NamedTuple):
    """A + jitter·I = LLᵀ.

    Parameters
    ----------
    L : array [N, N]
        The lower triangle; what is above the diagonal is anything.
    jitter : float
        Added to the diagonal of A, in its units.
    """

    L: Float[np.ndarray, "N N"]
    jitter: float

    def solve(self, b: Float[np.ndarray, "N S"]) -> Float[np.ndarray, "N S"]:
        """(A + jitter·I)⁻¹b, in the dtype of L."""
        return scipy.linalg.cho_solve((self.L, True), b.astype(self.L.dtype), check_finite=False)

    def half(self, k: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N P"]:
        """L⁻¹k: kᵀ(A + jitter·I)⁻¹k is the sum of its squares."""
        return scipy.linalg.solve_triangular(
            self.L, k.astype(self.L.dtype), lower=True, overwrite_b=True, check_finite=False
        )

    def rest(self, half: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N P"]:
        """L⁻ᵀ of the half way: (A + jitter·I)⁻¹k, in the place of `half`."""
        return scipy.linalg.solve_triangular(
            self.L, half, lower=True, trans=1, overwrite_b=True, check_finite=False
        )

    def times(self, factor: float) -> "Factor":
        """Of factor · A, in the memory of L."""
        np.multiply(self.L, self.L.dtype.type(math.sqrt(factor)), out=self.L)
        return Factor(self.L, factor * self.jitter)

    def log_determinant(self) -> float:
        """log|A + jitter·I|."""
        return 2 * float(np.sum(np.log(np.diagonal(self.L).astype(np.float64))))


def factorised(fill: Callable[[], Float[np.ndarray, "N N"]]) -> Factor:
    """The factor of A = fill(), in the memory of A, with the first of `JITTERS` that makes it possible.

    Only what is on and right of A's diagonal is read. An attempt overwrites A, so that `fill` is called anew for each.

    Raises ValueError where no jitter helps: A holds values that are not finite.
    """
    for share in JITTERS:
        factor = _attempt(fill(), share)  # what a failed attempt held is free again
        if factor is not None:
            return factor
    raise ValueError("the kernel matrix cannot be factorised: are inputs or parameters not finite?")


def _attempt(A: Float[np.ndarray, "N N"], share: float) -> Factor | None:
    """L with a jitter of this share of the mean diagonal, in the place of A; None if A + jitter·I has no factor."""
    jitter = share * float(A.diagonal().mean(dtype=np.float64))
    if jitter:
        A[np.diag_indices(len(A))] += A.dtype.type(jitter)
    L = A.T
    return Factor(L, jitter) if _made_in(L) and math.isfinite(L[-1, -1]) else None


def _made_in(L: Float[np.ndarray, "N N"]) -> bool:
    """`_in_place`, by blocks where LAPACK might end the process."""
    return _in_place(L) if L.itemsize * len(L) <= WHOLE else _by_blocks(L)


def _in_place(L: Float[np.ndarray, "N N"]) -> bool:
    """The factor in the place of a matrix whose columns are contiguous, which is read on and below its diagonal; False where there is none."""
    (potrf,) = scipy.linalg.get_lapack_funcs(("potrf",), (L,))
    return potrf(L, lower=True, clean=False, overwrite_a=True)[1] == 0


def _by_blocks(L: Float[np.ndarray, "N N"]) -> bool:
    """The same by blocks of columns, each less its products with those before it."""
    for first in range(0, len(L), BLOCK):
        block = slice(first, first + BLOCK)
        for i in range(first, len(L), BLOCK):
            L[i : i + BLOCK, block] -= L[i : i + BLOCK, :first] @ L[block, :first].T
        D = np.asfortranarray(L[block, block])
        if not _in_place(D):
            return False
        L[block, block] = D
        for i in range(first + BLOCK, len(L), BLOCK):
            rows = L[i : i + BLOCK, block]
            rows[:] = scipy.linalg.solve_triangular(D, rows.T, lower=True, check_finite=False).T
    return True


# The error of hᵀK⁺h in eps k(x, x) ‖h‖²: rounding of K's entries and of a factor acts like independent noise. Against long double, in 7
# systems with k(x, x)/σ² from 10³ to 10¹⁴, its root mean square was 2 to 5 of these, and its largest value 4 to 9.
ROUNDINGS = 4.0


def rounding_error(prior: Any, weight: Any, dtype: DTypeLike) -> Any:
    """The estimated rounding error 4 eps k(x, x) (1 + ‖b‖²) of hᵀK⁺h, per row: `prior` is k(x, x), `weight` ‖b‖²."""
    return ROUNDINGS * float(np.finfo(dtype).eps) * prior * (1 + weight)


def safe_variance(
    of_noise: Float[np.ndarray, " N"],
    rest: Float[np.ndarray, " N"],
    prior: Float[np.ndarray, " N"],
    rounding: Float[np.ndarray, " N"],
) -> Float[np.ndarray, " N"]:
    """bᵀΣb + max(hᵀK⁺h, its rounding error), and at most the prior variance, that of predicting 0."""
    return np.minimum(of_noise + np.maximum(rest, rounding), prior)


def safe_covariance(
    of_noise: Float[np.ndarray, "N N"], rest: Float[np.ndarray, "N N"], rounding: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "N N"]:
    """BᵀΣB + HᵀK⁺H + diag(rounding error), in the memory of `rest`.

    The second term is the nearest matrix without negative eigenvalues, if rounding gave it any beyond its error.
    """
    rest += rest.T.copy()
    rest *= 0.5
    rest[np.diag_indices(len(rest))] += rounding
    if not _has_factor(rest):
        values, vectors = scipy.linalg.eigh(rest, overwrite_a=True, check_finite=False)
        vectors *= np.sqrt(np.maximum(values, 0))
        rest = vectors @ vectors.T
        rest[np.diag_indices(len(rest))] += rounding
    rest += of_noise
    return rest


def _has_factor(C: Float[np.ndarray, "N N"]) -> bool:
    return _made_in(C.T.copy(order="F"))
