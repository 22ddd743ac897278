"""A preconditioner for both scales of a kernel: low rank and nearest neighbours."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int32

from stochgp.kernels import AbstractKernel
from stochgp.neighbours import NONE, earlier_rows
from stochgp.numerics.arrays import filled_up
from stochgp.numerics.linalg import safe_cholesky
from stochgp.numerics.precision import matmul
from stochgp.operators import KernelOperator
from stochgp.parameters import cast

BLOCK = 256  # rows in one compiled program
TOGETHER = 64  # rows of F at a time
ROUNDING = 32.0  # a conditional variance below this many eps of k(x, x) is rounding


class LowRankPlusNeighbours(eqx.Module):
    """P = FᵀF + S⁻¹, S = GᵀG, G = V^(−½)(I − B), with Vecchia's S⁻¹ ≈ K − FᵀF + Σ.

    Row i of B has the regression coefficients on m rows before it in a random order, and V_i is the residual variance. Then

        P⁻¹ = Gᵀ(I − WᵀW)G,   W = L⁻¹FGᵀ,   LLᵀ = I + FSFᵀ.

    This is a full-scale approximation (Sang and Huang, 2012): low rank takes the large eigenvalues, neighbours the small ones.
    Gyger, Furrer and Sigrist (2024) use it as a preconditioner. In exact arithmetic P is positive definite for every B and V > 0.
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
) -> LowRankPlusNeighbours:
    """Build P for FᵀF ≈ K, with K − FᵀF positive semi-definite; overwrites F.

    It is computed in float64 on the host. `seed` draws the order, `damping` is added to Σ.
    """
    N, P = operator.size, operator.padded
    kernel = cast(operator.kernel, jnp.float64)
    X = np.asarray(operator.inputs, np.float64)
    order = np.random.default_rng(seed).permutation(N)
    near = np.empty((N, n_neighbours), np.int32)
    near[order] = earlier_rows(kernel, X, order, np.arange(N), n_neighbours)
    noise = np.asarray(operator.noise, np.float64) + damping
    B, V = _regressions(operator, kernel, X, F, near, noise)
    near = np.maximum(near, 0)  # B is 0 at missing neighbours
    across = scipy.sparse.csr_array((B.ravel(), near.ravel(), np.arange(N + 1) * n_neighbours), (N, N))
    root = 1 / np.sqrt(V)
    W = F
    for start in range(0, len(W), TOGETHER):  # FGᵀ
        part = W[start : start + TOGETHER]
        part -= (across @ part.T).T
        part *= root
    L = np.linalg.cholesky(W @ W.T + np.eye(len(W)))
    (trsm,) = scipy.linalg.get_blas_funcs(("trsm",), (W,))
    W = trsm(1.0, L, W.T, side=1, lower=1, trans_a=1, overwrite_b=1).T
    fill = ((0, 0), (0, P - N))
    parts = (
        np.pad(W, fill) if P > N else W,
        np.pad(near.T, fill),
        np.pad(B.T, fill),
        np.pad(root, fill[1], constant_values=1),
    )
    return LowRankPlusNeighbours(*(jnp.asarray(part) for part in parts))


def _regressions(
    operator: KernelOperator,
    kernel: AbstractKernel,
    X: Float[np.ndarray, "N D"],
    F: Float[np.ndarray, "R N"],
    near: Int32[np.ndarray, "N m"],
    noise: Float[np.ndarray, " P"],
) -> tuple[Float[np.ndarray, "N m"], Float[np.ndarray, " N"]]:
    """Return B and V of every row, in blocks of BLOCK; the last block is padded."""
    N, features = len(X), np.ascontiguousarray(F.T, operator.dtype)
    rounding = ROUNDING * float(jnp.finfo(operator.dtype).eps)
    found = []
    for start in range(0, N, BLOCK):
        rows = filled_up(np.arange(start, min(start + BLOCK, N)), BLOCK)
        there, beside = near[rows] != NONE, np.maximum(near[rows], 0)
        every = np.concatenate([beside, rows[:, None]], axis=1)  # the row itself last
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
    """Return b and V of the last row given the present others, or none without a factor."""
    left = kernel.matrix(X, X) - matmul(F, F.T).astype(X.dtype)
    floor = rounding * kernel.diag(X)
    across = jnp.where(there, left[:-1, -1], 0)
    pairs = jnp.where(there[:, None] & there, left[:-1, :-1], 0)
    A = pairs + jnp.diag(jnp.where(there, noise[:-1] + floor[:-1], 1))
    L, _ = safe_cholesky(A)
    b = solve_triangular(L, solve_triangular(L, across, lower=True), lower=True, trans=1)
    # A may have no factor if the rounding of FᵀF exceeds the noise.
    b = jnp.where(jnp.all(jnp.isfinite(b)), b, 0)
    return b, jnp.maximum(left[-1, -1] - across @ b, floor[-1]) + noise[-1]
