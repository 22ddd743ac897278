"""Stochastic dual descent, and the momentum of descent on blocks of coordinates."""

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

SHORTEST_HORIZON = 0.75  # epochs
FIRST_STAGE = 3  # epochs; each stage ends at twice the epochs of the one before
DAMPING = 8.0  # of the blocks, in rounding errors of products
SMALLER = 0.3  # factor for a given step size that diverged
# [P, C]: b twice, the best point, momentum's three before, after and at the best epoch, product.
ARRAYS = 14
COMPILED_BYTES = 130_000_000  # left behind by compiling a solve and its predictions
WIDE_BLOCKS = 8  # float64 blocks [B, B] while a block is factorised


class Descent(eqx.Module):
    """A point that moves with momentum: look-ahead z, velocity sequence v, average of iterates.

    `rates` are (β, γ, a, r) of `accelerated`, or (β, ρ, r) of the published rule of SDD.
    """

    z: Float[Array, "P S"]
    v: Float[Array, "P S"]
    mean: Float[Array, "P S"]
    rates: tuple[Float[Any, ""], ...]

    def with_rates(self, *rates: float) -> "Descent":
        return dataclasses.replace(self, rates=tuple(jnp.asarray(rate, self.z.dtype) for rate in rates))


def accelerated(horizon: float, n_blocks: int) -> tuple[float, float, float, float]:
    """Return (β, γ, a, r) of accelerated random block descent (Nesterov 2012; Tu et al. 2017).

        w = z − E δ, v ← β v + (1 − β) z − γ E δ, z ← a v + (1 − a) w, ᾱ ← r z + (1 − r) ᾱ;
        β = 1 − √(μ/ν), γ = 1/√(μν), a = 1/(1 + γν), ν = n_blocks, μ = 1 / (n_blocks horizon²).

    The momentum forgets, and z is averaged, over `horizon` epochs. A horizon below 3/4, or one block, is descent without momentum, averaged over an epoch.
    """
    if n_blocks == 1 or horizon < SHORTEST_HORIZON:
        return 0.0, 1.0, 0.0, 1 / n_blocks
    horizon = max(horizon, 8 / n_blocks)
    beta, a = 1 - 1 / (horizon * n_blocks), 1 / (1 + horizon * n_blocks)
    return beta, horizon, a, (1 - beta * (1 - a)) / 2


def horizon(epoch: int) -> float:
    """Return the horizon of the momentum: 1 epoch, then a third of the epochs before a stage began."""
    return float(2 ** max(0, int(math.log2(epoch / FIRST_STAGE)))) if epoch >= FIRST_STAGE else 1.0


class Blocks(eqx.Module):
    """Rows of the blocks, and L⁻¹ of each with LLᵀ = A_II + damping; the largest jitter."""

    rows: Int[Array, "blocks B"]
    inverse: Float[Array, "blocks B B"]
    damping: Float[Any, ""]
    jitter: Float[Any, ""]


class SDD(AbstractIterativeSolver):
    """Stochastic dual descent for A α = b, A = K + Σ: each step needs B rows of A.

    The default, `step_size` = None, has no parameter to tune. The rows are divided once into random blocks I of `batch_size`, and a
    step moves the coordinates of one of them by

        δ = (A_II)⁻¹ (A_I z − b_I),

    the exact minimiser of the dual objective ½ αᵀAα − αᵀb over the block. Without momentum the objective thus falls at every step, for
    any kernel, noise or data. Momentum follows accelerated block descent (`accelerated`). Its horizon grows to about a third of the
    epochs, over which the iterates are averaged. If the blocks' estimate of rᵀA⁻¹r grows, the run returns to the smallest value and halves
    the horizon; a horizon below an epoch means descent without momentum.

    A `step_size` β uses the rule of Lin et al. (2024), Algorithm 1. With rows I drawn uniformly with replacement, and duplicates added up,

        g = (N/B) Σ_{i∈I} ((A z)_i − b_i) e_i, z = α + ρv;   v ← ρv − βg;   α ← α + v;   ᾱ ← rα + (1 − r)ᾱ,

    which is stable only below a limit of β that depends on the largest eigenvalue of A and on B.

    Parameters
    ----------
    epochs : int
        Passes over the rows at most, each measurement of the residual counted as one.
    batch_size : int
        B.
    step_size : float or None
        β; the papers give βN (50 for most UCI sets). None = exact block steps.
    momentum : float
        ρ in [0, 1), for a run with a `step_size`.
    averaging : float
        r in (0, 1], for a run with a `step_size`; 1 = no average.
    check_every : int
        Epochs between measurements of the residual on all rows.
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
            raise ValueError(f"step_size is {self.step_size}; it must be positive and finite, or None")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must lie in [0, 1)")
        if not 0 < self.averaging <= 1:
            raise ValueError(f"averaging is {self.averaging}; it must lie in (0, 1]")

    @property
    def by_blocks(self) -> bool:
        return self.step_size is None

    @property
    def measured_share(self) -> float:
        """The measured ratio for blocks, from the third epoch on."""
        return 0.8 if self.by_blocks else 1.0  # 0.74 to 0.83 on pol and keggdirected

    def constants(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Blocks | None:
        """For blocks: divide the rows at random, and compute the blocks' inverse factors."""
        if not self.by_blocks:
            return None
        N, B = operator.size, min(self.batch_size, operator.size)
        order = np.random.default_rng(words_of(key)).permutation(N).astype(np.int32)
        starts = np.minimum(
            np.arange(-(-N // B)) * B, N - B
        )  # the last overlaps the one before if B does not divide N
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
        """Set the horizon; damp blocks ten times more for every divergence without momentum."""
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
        """Return every block once, in random order; with a step size, B independent rows."""
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
        """Bytes of the states, and the inverse factor of every block."""
        B, more = min(self.batch_size, n_rows), 0
        if self.by_blocks:
            more = (itemsize * -(-n_rows // B) + 8 * WIDE_BLOCKS) * B**2
        return solve_bytes(
            n_rows, n_columns, n_inputs, itemsize,
            n_arrays=ARRAYS, step_rows=B, more=more, compiled=COMPILED_BYTES,
        )  # fmt: skip


def _factorised(operator: KernelOperator, rows: Int[np.ndarray, "blocks B"], damping: float) -> Blocks:
    """Return the inverse factor L⁻¹ of every block: A_II + damped·I + jitter·I = LLᵀ.

    LAPACK computes them in float64 on the host, since compiling the factorisation would take more time and memory. Products with K have rounding errors
    of a norm of about eps √N times its diagonal. `damping` times that in the blocks keeps a step from amplifying them if the noise
    is smaller. The step remains a descent step, with the same solution.
    """
    (n_blocks, B), largest = rows.shape, 0.0
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
