"""Accelerated sketch-and-project with low-rank blocks."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator
from stochgp.solvers.base import AbstractIterativeSolver, StepInfo, solve_bytes
from stochgp.solvers.sdd import ARRAYS, Descent, accelerated, error_at, horizon

FEWEST_BLOCKS = 100  # blocks have n/100 rows
SMALLEST_BLOCK, LARGEST_BLOCK = 512, 4096
POWER_STEPS = 10
SHIFT = 8.0  # shift of a sketch, in rounding errors of the block's trace
SAFE = 1.1  # on the largest eigenvalue, which ten power steps estimate from below


class Sketched(eqx.Module):
    """Constants of the steps besides the operator."""

    omega: Float[Array, "B R"]  # orthonormal columns
    start: Float[Array, "B 1"]  # of the power iteration
    longest: Float[Array, ""]  # horizon of the momentum, in epochs


class ADASAP(AbstractIterativeSolver):
    """Accelerated sketch-and-project for A α = b, A = K + Σ, with low-rank blocks of K.

    A step draws B rows I without replacement and moves their coordinates of the look-ahead point z by
        δ = η P⁻¹ (A_I z − b_I),   P = U diag(s) Uᵀ + s_r I + Σ_I,   η = 1/λ_max(P⁻¹ A_II).

    U diag(s) Uᵀ is the Nyström approximation of K_II of rank r from r orthonormal random columns, s_r is its smallest eigenvalue, and η comes from ten
    steps of the power method. A block thus costs B² r instead of B³, and there is no step size to set. With r = B, δ is the exact minimiser over the block.
    Momentum follows accelerated block descent (`sdd.accelerated`) with μ = min(λ, 1/ν) of the published rule, ν = N/B and λ the mean noise over the
    mean diagonal of K, or the horizon of `SDD` if that is shorter.

    Rathore, Derezinski, Frangella and Udell (2025, arXiv 2505.13723), Algorithm 1 (ADASAP); for means alone arXiv 2407.10070 (ASkotch).

    Parameters
    ----------
    epochs : int
        Passes over the rows at most, each measurement of the residual counted as one.
    batch_size : int or None
        B; None = N/100, at least 512 and at most 4,096.
    rank : int
        r, at most B.
    check_every : int
        Epochs between measurements of the residual on all rows.
    """

    measured_share: ClassVar[float] = 0.8
    epochs: int = 300
    batch_size: int | None = None
    rank: int = 100
    check_every: int = 25

    def __check_init__(self) -> None:
        B = 1 if self.batch_size is None else self.batch_size
        if min(B, self.rank, self.epochs, self.check_every) < 1:
            raise ValueError("batch_size, rank, epochs and check_every must be at least 1")

    def block_for(self, size: int) -> int:
        """The block size B for `size` rows."""
        wanted = int(np.clip(size // FEWEST_BLOCKS, SMALLEST_BLOCK, LARGEST_BLOCK))
        return min(wanted if self.batch_size is None else self.batch_size, size)

    def constants(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Sketched:
        """Draw the random columns, the same for all steps since blocks are random."""
        B = self.block_for(operator.size)
        generator = np.random.default_rng(words_of(key))
        omega = np.linalg.qr(generator.standard_normal((B, min(self.rank, B))))[0]
        parts = (omega, generator.standard_normal((B, 1)))
        wide = jax.dtypes.canonicalize_dtype(jnp.float64)
        diagonal = np.asarray(operator.diagonal(), np.float64)
        noise = float(np.mean(np.asarray(operator.noise)[: operator.size]))
        share, nu = noise / max(float(diagonal.mean()) - noise, noise), -(-operator.size // B)
        parts += (np.asarray(1 / math.sqrt(min(share, 1 / nu) * nu)),)
        return Sketched(*(operator.placed(jnp.asarray(part, wide), None) for part in parts))

    def init(
        self,
        operator: KernelOperator,
        constants: Sketched,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"],
        residual: Float[Array, "P S"] | None = None,
    ) -> Descent:
        return Descent.at(start, start, 4)

    def adapted(
        self, operator: KernelOperator, constants: Sketched, state: Descent, epoch: int, n_failures: int
    ) -> tuple[Sketched, Descent]:
        epochs = min(horizon(epoch), float(constants.longest)) / 2**n_failures
        return constants, state.with_rates(
            *accelerated(epochs, -(-operator.size // self.block_for(operator.size)))
        )

    def batches(self, size: int, epoch: int, seed: tuple[int, ...]) -> Int[np.ndarray, "K B"]:
        """Draw B rows without replacement per step, using one permutation of the rows per epoch."""
        B = self.block_for(size)
        order = np.random.default_rng((*seed, epoch)).permutation(size).astype(np.int32)
        return order[np.minimum(np.arange(-(-size // B)) * B, size - B)[:, None] + np.arange(B)]

    def step(
        self,
        operator: KernelOperator,
        constants: Sketched,
        b: Float[Array, "P S"],
        state: Descent,
        batch: Int[Array, " B"],
    ) -> tuple[Descent, StepInfo]:
        error, rows, share = (
            error_at(operator, b, state.z, batch),
            operator.take(batch),
            operator.size / len(batch),
        )
        K = operator.kernel.between(rows, rows)
        half, delta = _projected(K, operator.noise[batch], constants, error)
        return state.accelerated(batch, delta), StepInfo(share * jnp.sum(error**2, axis=0), share * half)

    def value(self, state: Descent) -> Float[Array, "P S"]:
        return state.mean

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Bytes of the states, and of a block with its factors."""
        B = self.block_for(n_rows)
        more = (3 * itemsize * B + 8 * 6 * min(self.rank, B)) * B
        return solve_bytes(n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS, step_rows=B, more=more)


def _projected(
    K: Float[Array, "B B"], noise: Float[Array, " B"], made: Sketched, error: Float[Array, "B S"]
) -> tuple[Float[Array, " S"], Float[Array, "B S"]]:
    """Return errorᵀ δ of each column and δ = η P⁻¹ error."""
    wide = made.omega.dtype
    S = matmul(K, made.omega.astype(K.dtype)).astype(wide)
    shift = SHIFT * float(jnp.finfo(K.dtype).eps) * jnp.trace(K).astype(wide)
    C = made.omega.T @ S + shift * jnp.eye(S.shape[1], dtype=wide)
    L = jnp.linalg.cholesky((C + C.T) / 2)
    half = jax.scipy.linalg.solve_triangular(
        L, (S + shift * made.omega).T, lower=True
    )  # K̂ + shift I ≈ halfᵀ half
    squares, V = jnp.linalg.eigh(half @ half.T)
    squares = jnp.maximum(squares, shift * 1e-3)
    s = jnp.maximum(squares - shift, 0.0)
    U = (V / jnp.sqrt(squares)).T @ half  # [r, B], orthonormal rows
    exact = S.shape[0] == S.shape[1]
    D = (0.0 if exact else s[0]) + noise.astype(wide)
    # P⁻¹ = D⁻¹ − D⁻¹Uᵀ(diag(1/s) + U D⁻¹ Uᵀ)⁻¹ U D⁻¹, with √s inside because s may be 0
    W = jnp.sqrt(s)[:, None] * U / D
    inner = jnp.linalg.cholesky(jnp.eye(len(s), dtype=wide) + W @ (D[:, None] * W.T))

    def inverse(x: Array) -> Array:
        x = x.astype(wide)
        return x / D[:, None] - W.T @ jax.scipy.linalg.cho_solve((inner, True), W @ x)

    def power(x: Array, _: None) -> tuple[Array, Array]:
        y = inverse(matmul(K, x.astype(K.dtype)) + noise[:, None] * x.astype(K.dtype))
        norm = jnp.linalg.norm(y)
        return y / norm, norm

    largest = 1.0
    if not exact:
        begin = made.start / jnp.linalg.norm(made.start)
        norms = jax.lax.scan(power, begin, None, length=POWER_STEPS)[1]
        largest = jnp.maximum(SAFE * norms[-1], 1.0)
    delta = inverse(error) / largest
    return jnp.sum(error.astype(wide) * delta, axis=0).astype(K.dtype), delta.astype(K.dtype)
