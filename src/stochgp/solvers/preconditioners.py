"""Low-rank approximations of K, and the inverse of one plus a diagonal."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator

PROPOSED = 128  # rows that random pivoting proposes at a time
ROUNDING = 32.0  # a remaining diagonal below this many eps of K's is rounding


class PartialCholesky(NamedTuple):
    """K ≈ FᵀF, exact in the pivots' rows and columns, in host memory; K − FᵀF is PSD."""

    F: Float[np.ndarray, "R N"]
    pivots: Int[np.ndarray, " R"]
    left: Float[np.ndarray, " N"]  # diag(K − FᵀF)


class LowRankPlusDiagonal(eqx.Module):
    """P = FᵀF + D with a positive diagonal D, stored for its inverse:

        P⁻¹ = D^(−½) (I − WᵀW) D^(−½),   W = L⁻¹ F D^(−½),   L Lᵀ = I + F D⁻¹ Fᵀ,

    An eigenvalue of WᵀW is λ/(λ + 1), λ an eigenvalue of D^(−½)FᵀFD^(−½). P⁻¹ stays positive definite
    up to λ = 10¹⁴ in float64, and up to 10⁵ in float32.
    """

    W: Float[Array, "R N"]
    root: Float[Array, " N"]  # D^(−½)

    @classmethod
    def of(
        cls, F: Float[np.ndarray, "R N"], diagonal: Float[np.ndarray, " N"], dtype: DTypeLike
    ) -> "LowRankPlusDiagonal":
        """Return FᵀF + diag(diagonal), computed in float64 on the host, for `solve` in `dtype`."""
        root = 1 / np.sqrt(diagonal)
        W = np.multiply(F, root)
        if len(F):
            L = np.linalg.cholesky(W @ W.T + np.eye(len(F)))
            (trsm,) = scipy.linalg.get_blas_funcs(("trsm",), (W,))
            W = trsm(1.0, L, W.T, side=1, lower=1, trans_a=1, overwrite_b=1).T
        return cls(*(jnp.asarray(part, dtype) for part in (W, root)))

    def solve(self, V: Float[Array, "N S"]) -> Float[Array, "N S"]:
        """Return P⁻¹V."""
        half = self.root[:, None] * V
        return self.root[:, None] * (half - matmul(self.W.T, matmul(self.W, half)))


def partial_cholesky(operator: KernelOperator, rank: int, *, key: PRNGKeyArray) -> PartialCholesky:
    """Factorise K by Cholesky up to `rank` pivots, or until only rounding is left.

    It takes rank · N numbers of memory and entries of K, and rank² N products. Pivots are drawn with probabilities proportional to the
    diagonal of K − FᵀF (RPCholesky: Chen, Epperly, Tropp and Webber, 2022). Many are drawn at a time and then thinned to the
    distribution of sequential draws (Epperly, Tropp and Webber, 2024).

    Raises ValueError for a rank that is not between 1 and N.
    """
    N = operator.size
    if not 1 <= rank <= N:
        raise ValueError(f"rank is {rank}; it must lie between 1 and the number of rows, {N}")
    generator = np.random.default_rng(words_of(key))
    F, pivots = np.zeros((rank, N)), np.empty(0, np.int64)
    whole = np.array(_diagonal(operator), np.float64)
    floor = ROUNDING * float(jnp.finfo(operator.dtype).eps) * whole
    left = np.where(whole > floor, whole, 0)
    while len(pivots) < rank and np.any(left):
        rows = generator.choice(N, min(PROPOSED, N), p=left / left.sum())
        thresholds = generator.random(len(rows))
        done = F[: len(pivots)]
        columns = np.array(_columns(operator, jnp.asarray(rows, jnp.int32)).T, np.float64)  # [C, N]
        columns -= done[:, rows].T @ done
        L, kept = _thinned(columns[:, rows], thresholds, floor[rows])
        L, kept = L[: rank - len(pivots), : rank - len(pivots)], kept[: rank - len(pivots)]
        new = scipy.linalg.solve_triangular(L, columns[kept], lower=True, check_finite=False)
        n = _n_sound(new, left + 2 * floor)
        if n == 0:
            break
        left[rows[kept[n:]]] = 0
        new, kept = new[:n], kept[:n]
        F[len(pivots) : len(pivots) + len(kept)] = new
        left = left - np.einsum("cn,cn->n", new, new)
        left[left <= floor] = 0
        left[rows[kept]] = 0
        left[rows[0]] = 0  # a pivot, or rounding
        pivots = np.append(pivots, rows[kept])
    F = F[: len(pivots)]
    return PartialCholesky(F, pivots, np.maximum(whole - np.einsum("cn,cn->n", F, F), 0))


def _thinned(
    H: Float[np.ndarray, "C C"], thresholds: Float[np.ndarray, " C"], floor: Float[np.ndarray, " C"]
) -> tuple[Float[np.ndarray, "K K"], Int[np.ndarray, " K"]]:
    """Keep each i, in turn, with enough of H_ii left given the rows kept before.

    The rest must exceed its threshold's share of H_ii and the floor. Returns L with H = LLᵀ among the kept rows, and their indices.
    """
    H = (H + H.T) / 2
    L, kept = np.zeros((0, len(H))), []
    for i in range(len(H)):
        column = H[i] - L[:, i] @ L
        if column[i] > max(thresholds[i] * H[i, i], floor[i]):
            L = np.vstack([L, column / np.sqrt(column[i])])
            kept.append(i)
    return np.tril(L[:, kept].T), np.array(kept, np.int64)


def _n_sound(new: Float[np.ndarray, "K N"], most: Float[np.ndarray, " N"]) -> int:
    """The number of leading rows of F that take no more from a diagonal entry than it has."""
    is_sound = np.all(np.cumsum(np.square(new), axis=0) <= most, axis=1)
    return len(new) if is_sound.all() else int(np.argmin(is_sound))


@eqx.filter_jit
def _columns(operator: KernelOperator, rows: Int[Array, " C"]) -> Float[Array, "N C"]:
    return operator.columns(rows)


@eqx.filter_jit
def _diagonal(operator: KernelOperator) -> Float[Array, " N"]:
    """Return the diagonal of K."""
    return operator.diagonal() - operator.noise[: operator.size]
