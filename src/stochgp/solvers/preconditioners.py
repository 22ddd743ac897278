"""Preconditioners: low-rank approximations of K plus a diagonal or nearest neighbours."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int, Int32, PRNGKeyArray

from stochgp.kernels import AbstractKernel
from stochgp.neighbours import NONE, earlier_rows
from stochgp.numerics.arrays import filled_up, matmul
from stochgp.numerics.linalg import safe_cholesky
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator
from stochgp.parameters import cast

PROPOSED = 128  # pivots proposed at a time
ROUNDING = 32.0  # variances below ROUNDING · eps · k(x, x) are rounding errors
BLOCK = 256  # rows per call of a compiled program
TOGETHER = 64  # rows of F per product


def partial_cholesky(
    operator: KernelOperator, rank: int, *, key: PRNGKeyArray
) -> tuple[Float[np.ndarray, "R N"], Int[np.ndarray, " R"], Float[np.ndarray, " N"]]:
    """Return F, the pivots and diag(K − FᵀF) of a partial Cholesky factor, K ≈ FᵀF.

    FᵀF is exact in the rows and columns of the pivots, and K − FᵀF is positive semi-definite. F
    has `rank` rows, or fewer if only rounding errors remain, and needs rank · N numbers of host memory.

    Pivots are drawn with probabilities proportional to the diagonal of K − FᵀF (Chen, Epperly, Tropp and
    Webber 2022). Many pivots are drawn at a time and then thinned (Epperly, Tropp and Webber 2024).

    Raises ValueError for a rank below 1 or above N.
    """
    N = operator.size
    if not 1 <= rank <= N:
        raise ValueError(f"rank must be between 1 and {N} (the number of rows), but is {rank}")
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
        left[rows[0]] = 0  # it is a pivot, or a rounding error
        pivots = np.append(pivots, rows[kept])
    F = F[: len(pivots)]
    return F, pivots, np.maximum(whole - np.einsum("cn,cn->n", F, F), 0)


def _thinned(
    H: Float[np.ndarray, "C C"], thresholds: Float[np.ndarray, " C"], floor: Float[np.ndarray, " C"]
) -> tuple[Float[np.ndarray, "K K"], Int[np.ndarray, " K"]]:
    """Return L with H = LLᵀ for the kept rows, and the indices of these rows."""
    H = (H + H.T) / 2
    L, kept = np.zeros((0, len(H))), []
    for i in range(len(H)):
        column = H[i] - L[:, i] @ L
        if column[i] > max(thresholds[i] * H[i, i], floor[i]):
            L = np.vstack([L, column / np.sqrt(column[i])])
            kept.append(i)
    return np.tril(L[:, kept].T), np.array(kept, np.int64)


def _n_sound(new: Float[np.ndarray, "K N"], most: Float[np.ndarray, " N"]) -> int:
    """Return the number of leading rows of F whose sums of squares are at most `most`."""
    is_sound = np.all(np.cumsum(np.square(new), axis=0) <= most, axis=1)
    return len(new) if is_sound.all() else int(np.argmin(is_sound))


@eqx.filter_jit
def _columns(operator: KernelOperator, rows: Int[Array, " C"]) -> Float[Array, "N C"]:
    return operator.columns(rows)


@eqx.filter_jit
def _diagonal(operator: KernelOperator) -> Float[Array, " N"]:
    """Return the diagonal of K."""
    return operator.diagonal() - operator.noise[: operator.size]


class Preconditioner(eqx.Module):
    """The preconditioner P = FᵀF + S⁻¹ with Vecchia's approximation S⁻¹ ≈ K − FᵀF + Σ.

    S = GᵀG with G = V^(−½)(I − B). The training rows are put in a random order. Row i of the matrix B has the
    coefficients of a regression of training row i on m earlier rows; V_i is the residual variance. If m is 0,
    S⁻¹ = V. The inverse of P is

        P⁻¹ = Gᵀ(I − WᵀW)G,   W = L⁻¹FGᵀ,   LLᵀ = I + FSFᵀ.

    This full-scale approximation (Sang and Huang 2012) is used as a preconditioner by Gyger, Furrer and
    Sigrist (2024). P is positive definite for every B if V > 0.
    """

    W: Float[Array, "R P"]
    near: Int32[Array, "m P"]
    B: Float[Array, "m P"]
    root: Float[Array, " P"]  # V^(−½)

    def solve(self, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
        """Return P⁻¹V."""
        half = self._times_G(V)
        return self._times_G_transposed(half - matmul(self.W.T, matmul(self.W, half)))

    def _times_G(self, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
        def less(left: Array, one: Any) -> tuple[Array, None]:
            near, b = one
            return left - b[:, None] * V[near], None

        return self.root[:, None] * jax.lax.scan(less, V, (self.near, self.B))[0]

    def _times_G_transposed(self, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
        half = self.root[:, None] * V

        def less(left: Array, one: Any) -> tuple[Array, None]:
            near, b = one
            return left.at[near].add(-b[:, None] * half), None

        return jax.lax.scan(less, half, (self.near, self.B))[0]


def low_rank_plus_neighbours(
    operator: KernelOperator,
    F: Float[np.ndarray, "R N"],
    n_neighbours: int,
    seed: tuple[int, ...],
    damping: float = 0.0,
) -> Preconditioner:
    """Return the preconditioner for a low-rank approximation FᵀF ≈ K, and overwrite F.

    K − FᵀF must be positive semi-definite. `seed` draws the order of the rows, and `damping` is added to Σ.
    Without neighbours, V is Σ plus the damping, or the diagonal of A if the rank is 0.
    """
    N, P = operator.size, operator.padded
    noise = np.asarray(operator.noise, np.float64)[:N] + damping
    near, B, V = np.zeros((N, 0), np.int32), np.zeros((N, 0)), noise
    if n_neighbours:
        kernel, X = cast(operator.kernel, jnp.float64), np.asarray(operator.inputs, np.float64)
        order = np.random.default_rng(seed).permutation(N)
        near = np.empty((N, n_neighbours), np.int32)
        near[order] = earlier_rows(kernel, X, order, np.arange(N), n_neighbours)
        B, V = _regressions(operator, kernel, X, F, near, noise)
        near = np.maximum(near, 0)  # B is 0 at missing neighbours
    elif not len(F):
        V = np.asarray(operator.diagonal(), np.float64)
    across = scipy.sparse.csr_array((B.ravel(), near.ravel(), np.arange(N + 1) * n_neighbours), (N, N))
    W, root = F, 1 / np.sqrt(V)
    for start in range(0, len(W), TOGETHER):  # FGᵀ
        part = W[start : start + TOGETHER]
        part -= (across @ part.T).T
        part *= root
    L = np.linalg.cholesky(W @ W.T + np.eye(len(W)))
    (trsm,) = scipy.linalg.get_blas_funcs(("trsm",), (W,))
    W = trsm(1.0, L, W.T, side=1, lower=1, trans_a=1, overwrite_b=1).T if len(W) else W
    root = np.pad(root, (0, P - N), constant_values=1)
    W, near, B = (np.pad(part, ((0, 0), (0, P - N))) if P > N else part for part in (W, near.T, B.T))
    W, near, B = (operator.placed(jnp.asarray(part), 1) for part in (W, near, B))
    return Preconditioner(W, near, B, operator.placed(jnp.asarray(root)))


def _regressions(
    operator: KernelOperator,
    kernel: AbstractKernel,
    X: Float[np.ndarray, "N D"],
    F: Float[np.ndarray, "R N"],
    near: Int32[np.ndarray, "N m"],
    noise: Float[np.ndarray, " P"],
) -> tuple[Float[np.ndarray, "N m"], Float[np.ndarray, " N"]]:
    N, features = len(X), np.ascontiguousarray(F.T, operator.dtype)
    rounding = ROUNDING * float(jnp.finfo(operator.dtype).eps)
    found = []
    for start in range(0, N, BLOCK):
        rows = filled_up(np.arange(start, min(start + BLOCK, N)), BLOCK)
        there, beside = near[rows] != NONE, np.maximum(near[rows], 0)
        every = np.concatenate([beside, rows[:, None]], axis=1)  # the row itself comes last
        part = _of_block(kernel, X[every], features[every], noise[every], there, rounding)
        found.append([np.asarray(values)[: N - start] for values in part])
    B, V = zip(*found, strict=True)
    return np.concatenate(B), np.concatenate(V)


@eqx.filter_jit
def _of_block(kernel: AbstractKernel, *parts: Any) -> tuple[Array, Array]:
    *of_rows, rounding = parts
    return jax.vmap(partial(_of_row, kernel, rounding))(*of_rows)


def _of_row(
    kernel: AbstractKernel,
    rounding: float,
    X: Float[Array, "n D"],
    F: Float[Array, "n R"],
    noise: Float[Array, " n"],
    there: Bool[Array, " m"],
) -> tuple[Float[Array, " m"], Float[Array, ""]]:
    """Return the coefficients and the residual variance of the last row, given the others."""
    left = kernel.matrix(X, X) - matmul(F, F.T).astype(X.dtype)
    floor = rounding * kernel.diag(X)
    across = jnp.where(there, left[:-1, -1], 0)
    pairs = jnp.where(there[:, None] & there, left[:-1, :-1], 0)
    A = pairs + jnp.diag(jnp.where(there, noise[:-1] + floor[:-1], 1))
    L, _ = safe_cholesky(A)
    b = solve_triangular(L, solve_triangular(L, across, lower=True), lower=True, trans=1)
    # A may have no Cholesky factor if the rounding error of FᵀF exceeds the noise.
    b = jnp.where(jnp.all(jnp.isfinite(b)), b, 0)
    return b, jnp.maximum(left[-1, -1] - across @ b, floor[-1]) + noise[-1]
