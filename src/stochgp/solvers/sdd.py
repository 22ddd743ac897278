"""Stochastic dual descent with exact steps on blocks of rows, or with a step size."""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.numerics.arrays import matmul
from stochgp.numerics.linalg import factorised
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator
from stochgp.solvers.base import AbstractIterativeSolver, solve_bytes

SHORTEST_HORIZON = 0.75  # epochs; a shorter horizon means no momentum
FIRST_STAGE = 3  # epochs; each later stage ends at twice the epoch of the previous one
DAMPING = 8.0  # damping of blocks, in multiples of the rounding error of products
SMALLER = 0.3  # factor of the step size after a divergence
# arrays [P, C]: b, points, states and products
ARRAYS = 14
COMPILED_BYTES = 130_000_000  # compiled programs of a solve and its predictions
WIDE_BLOCKS = 8  # float64 blocks [B, B] while a block is factorised


class Descent(eqx.Module):
    """The state of a descent: the look-ahead point z, the vector v and the mean iterate.

    `rates` are β, ρ and r in runs with a step size, and otherwise β, γ, a and r from `accelerated`.
    """

    z: Float[Array, "P S"]
    v: Float[Array, "P S"]
    mean: Float[Array, "P S"]
    rates: tuple[Float[Any, ""], ...]

    def with_rates(self, *rates: float) -> "Descent":
        return dataclasses.replace(self, rates=tuple(jnp.asarray(rate, self.z.dtype) for rate in rates))


def accelerated(horizon: float, n_blocks: int) -> tuple[float, float, float, float]:
    """Return rates β, γ, a, r of accelerated block descent (Nesterov 2012; Tu et al. 2017).

    δ is the exact step of a block, and E δ is this step as a vector of all coordinates:

        w = z − E δ, v ← β v + (1 − β) z − γ E δ, z ← a v + (1 − a) w, ᾱ ← r z + (1 − r) ᾱ;
        β = 1 − √(μ/ν), γ = 1/√(μν), a = 1/(1 + γν), ν = n_blocks, μ = 1 / (n_blocks horizon²).

    Momentum and averages extend over `horizon` epochs. With a horizon below 3/4, or with one block, there is
    no momentum, and averages extend over one epoch.
    """
    if n_blocks == 1 or horizon < SHORTEST_HORIZON:
        return 0.0, 1.0, 0.0, 1 / n_blocks
    horizon = max(horizon, 8 / n_blocks)
    beta, a = 1 - 1 / (horizon * n_blocks), 1 / (1 + horizon * n_blocks)
    return beta, horizon, a, (1 - beta * (1 - a)) / 2


def horizon(epoch: int) -> float:
    """Return the horizon: 1 epoch, later a third of the epoch at which the stage began."""
    return float(2 ** max(0, int(math.log2(epoch / FIRST_STAGE)))) if epoch >= FIRST_STAGE else 1.0


class Blocks(eqx.Module):
    """The row numbers and inverse Cholesky factors of all blocks, and the largest jitter."""

    rows: Int[Array, "blocks B"]
    inverse: Float[Array, "blocks B B"]
    damping: Float[Any, ""]
    jitter: Float[Any, ""]


class SDD(AbstractIterativeSolver):
    """Stochastic dual descent for A α = b with A = K + Σ; each step needs B rows of A.

    By default no parameter needs tuning. The rows are divided once into random blocks of `batch_size` rows.
    Each step chooses a block I of rows, and subtracts the following vector from the coordinates of the block:

        δ = (A_II)⁻¹ (A_I z − b_I)

    This step minimises the dual objective ½ αᵀAα − αᵀb over the block. Without momentum, the objective falls
    at every step. Momentum and averages extend over a horizon: 1 epoch at first, and later at most a third of
    the past epochs. The run estimates rᵀA⁻¹r for the residual r. If the estimate grows, the run returns to
    the state with the smallest estimate and halves the horizon.

    With a `step_size` β, each step draws a sample I of B rows with replacement, and follows Algorithm 1 of
    Lin et al. (2024):

        g = (N/B) Σ_{i∈I} ((A z)_i − b_i) e_i, z = α + ρv;   v ← ρv − βg;   α ← α + v;   ᾱ ← rα + (1 − r)ᾱ.

    The iteration is stable only if β is below a limit that depends on B and on the largest eigenvalue of A.

    Parameters
    ----------
    epochs : int
        The maximum number of passes over the rows. Each measurement of the residual counts as a pass.
    batch_size : int
        The number B of rows in a step.
    step_size : float or None
        The step size β. By default, the solver takes exact steps on blocks. Papers on this method state the
        product βN for N rows, which is 50 for most UCI data sets.
    momentum : float
        The momentum ρ in [0, 1), used only with a `step_size`.
    averaging : float
        The rate r in (0, 1] of the average ᾱ, used only with a `step_size`. If r is 1, ᾱ is the last α.
    check_every : int
        The number of epochs between two measurements of the residual on all rows.
    """

    epochs: int = 300
    batch_size: int = 512
    step_size: float | None = None
    momentum: float = 0.9
    averaging: float = 1.0
    check_every: int = 25

    def __check_init__(self) -> None:
        if self.batch_size < 1 or self.epochs < 1 or self.check_every < 1:
            raise ValueError("batch_size, epochs and check_every must be at least 1")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"step_size must be None or a positive finite number, but is {self.step_size}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, but is {self.momentum}")
        if not 0 < self.averaging <= 1:
            raise ValueError(f"averaging must be above 0 and at most 1, but is {self.averaging}")

    @property
    def by_blocks(self) -> bool:
        return self.step_size is None

    @property
    def measured_share(self) -> float:
        """The expected ratio of the measured residual to its estimate."""
        return 0.8 if self.by_blocks else 1.0  # measured: 0.74 to 0.83

    def constants(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Blocks | None:
        """Return random blocks with inverse factors, or None for a run with a step size."""
        if not self.by_blocks:
            return None
        N, B = operator.size, min(self.batch_size, operator.size)
        order = np.random.default_rng(words_of(key)).permutation(N).astype(np.int32)
        # If B does not divide N, the last block overlaps the previous block.
        starts = np.minimum(np.arange(-(-N // B)) * B, N - B)
        return _factorised(operator, order[starts[:, None] + np.arange(B)], DAMPING)

    def init(
        self,
        operator: KernelOperator,
        constants: Blocks | None,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"],
        residual: Float[Array, "P S"] | None = None,
    ) -> Descent:
        v = start if self.by_blocks else jnp.zeros_like(start)
        return Descent(start, v, start, (jnp.zeros((), b.dtype),) * (4 if self.by_blocks else 3))

    def adapted(
        self, operator: KernelOperator, constants: Blocks | None, state: Descent, epoch: int, n_failures: int
    ) -> tuple[Blocks | None, Descent]:
        """Set the horizon. Each divergence without momentum multiplies the damping by 10."""
        if constants is None:
            assert self.step_size is not None
            step_size = self.step_size * SMALLER**n_failures
            return None, state.with_rates(step_size, self.momentum, self.averaging)
        without = n_failures - max(0, math.floor(math.log2(horizon(epoch) / SHORTEST_HORIZON)) + 1)
        damping = DAMPING * 10.0 ** max(0, without)
        if damping > constants.damping:
            constants = _factorised(operator, np.asarray(constants.rows), damping)
        rates = accelerated(horizon(epoch) / 2**n_failures, len(constants.rows))
        return constants, state.with_rates(*rates)

    def batches(self, size: int, epoch: int, seed: tuple[int, ...]) -> Int[np.ndarray, "K ..."]:
        """Return all blocks in random order, or B random rows per step with a step size."""
        n_steps, generator = -(-size // self.batch_size), np.random.default_rng((*seed, epoch))
        if self.by_blocks:
            return generator.permutation(n_steps).astype(np.int32)
        return generator.integers(0, size, (n_steps, self.batch_size), dtype=np.int32)

    def step(
        self,
        operator: KernelOperator,
        constants: Blocks | None,
        b: Float[Array, "P S"],
        state: Descent,
        batch: Int[Array, "..."],
    ) -> tuple[Descent, Float[Array, " S"], Float[Array, " S"] | None]:
        rows = batch if constants is None else constants.rows[batch]
        z, v, share = state.z, state.v, operator.size / len(rows)
        error = operator.rows_times(rows, z) + operator.noise[rows, None] * z[rows] - b[rows]
        squares = share * jnp.sum(error**2, axis=0)
        if constants is None:
            beta, rho, r = state.rates
            alpha = z - rho * v
            v = (rho * v).at[rows].add(-beta * share * error)
            alpha = alpha + v
            mean = r * alpha + (1 - r) * state.mean
            return Descent(alpha + rho * v, v, mean, state.rates), squares, None
        beta, gamma, a, r = state.rates
        half = matmul(constants.inverse[batch], error)
        delta = matmul(constants.inverse[batch].T, half)
        w = z.at[rows].add(-delta)
        v = (beta * v + (1 - beta) * z).at[rows].add(-gamma * delta)
        z = a * v + (1 - a) * w
        energies = share * jnp.sum(half**2, axis=0)
        return Descent(z, v, r * z + (1 - r) * state.mean, state.rates), squares, energies

    def value(self, state: Descent) -> Float[Array, "P S"]:
        return state.mean

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        B, more = min(self.batch_size, n_rows), 0
        if self.by_blocks:
            more = (itemsize * -(-n_rows // B) + 8 * WIDE_BLOCKS) * B**2
        return solve_bytes(
            n_rows, n_columns, n_inputs, itemsize,
            n_arrays=ARRAYS, step_rows=B, more=more, compiled=COMPILED_BYTES,
        )  # fmt: skip


def _factorised(operator: KernelOperator, rows: Int[np.ndarray, "blocks B"], damping: float) -> Blocks:
    """Return blocks with the inverse Cholesky factors of A_II, computed on the host."""
    (n_blocks, B), largest = rows.shape, 0.0
    # `damping` times the rounding error of products with K is added, so that steps do not amplify the error.
    rounding = float(jnp.finfo(operator.dtype).eps) * operator.size**0.5
    noise = np.asarray(operator.noise, np.float64)
    factors = jnp.zeros((n_blocks, B, B), operator.dtype)
    for place, block in enumerate(rows):
        A = np.array(_diagonal_block(operator, block), np.float64)
        A = (A + A.T) / 2
        A[np.diag_indices(B)] += noise[block] + damping * rounding * A.diagonal().mean()
        factor = factorised(A.copy)
        (trtri,) = scipy.linalg.get_lapack_funcs(("trtri",), (factor.L,))
        inverse = trtri(factor.L, lower=True)[0]
        factors = _put(factors, np.asarray(place), np.tril(inverse).astype(operator.dtype))
        largest = max(largest, factor.jitter)
    order, factors = operator.placed(jnp.asarray(rows), None), operator.placed(factors, None)
    return Blocks(order, factors, np.float64(damping), np.float64(largest))


@eqx.filter_jit
def _diagonal_block(operator: KernelOperator, rows: Any) -> Float[Array, "B B"]:
    some = operator.take(rows)
    return operator.kernel.between(some, some)


@functools.partial(jax.jit, donate_argnums=0)
def _put(factors: Array, place: Any, factor: Any) -> Array:
    return jax.lax.dynamic_update_index_in_dim(factors, factor, place, 0)
