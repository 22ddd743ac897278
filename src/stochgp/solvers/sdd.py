"""Stochastic dual descent."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator
from stochgp.solvers.base import Arranged, StepInfo, check_descent, solve_bytes
from stochgp.solvers.momentum import (
    SHORTEST_HORIZON,
    SLOWEST_DECAY,
    AbstractMovingSolver,
    Coefficients,
    Moving,
    accelerated,
    ahead,
    error_ahead,
    horizon,
    nesterov,
    pushed,
)

JITTERS = (0.0, 1e-6, 1e-4, 1e-2)  # times a block's mean diagonal
DAMPING = 8.0  # of the blocks, in rounding errors of products
SMALLER = 0.3  # factor for a given step size that diverged
# [P, C]: b twice, the best point, momentum's three before, after and at the best epoch, look-ahead, product.
ARRAYS = 14
COMPILED_BYTES = 130_000_000  # left behind by compiling a solve and its predictions
WIDE_BLOCKS = 8  # float64 blocks [B, B] while a block is factorised


class SDD(AbstractMovingSolver):
    """Stochastic dual descent for A α = b, A = K + Σ: each step needs B rows of A.

    The default, `step_size` = None, has no parameter to tune. The rows are divided once into random blocks I of `batch_size`, and a
    step moves the coordinates of one of them by

        δ = (A_II)⁻¹ (A_I z − b_I),

    the exact minimiser of the dual objective ½ αᵀAα − αᵀb over the block. Without momentum the objective thus falls at every step, for
    any kernel, noise or data. Momentum follows accelerated block descent (`momentum.accelerated`). Its horizon grows to about a third of the
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
        check_descent(self)
        if not 0 < self.averaging <= 1:
            raise ValueError(f"averaging is {self.averaging}; it must lie in (0, 1]")

    @property
    def by_blocks(self) -> bool:
        return self.step_size is None

    def arrange(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Arranged:
        """For blocks: shuffle the rows and compute the blocks' inverse factors [blocks, B, B]."""
        if not self.by_blocks:
            return Arranged(operator.keeping(), None, None, 0.0)
        order = np.random.default_rng(words_of(key)).permutation(operator.size)
        operator = _reordered(operator, jnp.asarray(order)).keeping()
        factors, jitter = _factorise(operator, self.batch_size, DAMPING)
        return Arranged(operator, order, factors, jitter)

    def more_careful(self, arranged: Arranged, epoch: int, n_failures: int) -> Arranged:
        """Return blocks with ten times the damping for every divergence without momentum."""
        without = n_failures - max(0, math.floor(math.log2(horizon(epoch) / SHORTEST_HORIZON)) + 1)
        if not self.by_blocks or without < 1:
            return arranged
        factors, jitter = _factorise(arranged.operator, self.batch_size, DAMPING * 10.0**without)
        return Arranged(arranged.operator, arranged.order, factors, jitter)

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Bytes of the states, rows in two orders, and the inverse factor of every block."""
        B, more = min(self.batch_size, n_rows), itemsize * n_rows * (n_inputs + 2)
        if self.by_blocks:
            more += (itemsize * -(-n_rows // B) + 8 * WIDE_BLOCKS) * B**2
        return solve_bytes(
            n_rows, n_columns, n_inputs, itemsize,
            n_arrays=ARRAYS, step_rows=B, more=more, compiled=COMPILED_BYTES,
        )  # fmt: skip

    @property
    def measured_share(self) -> float:
        """The measured ratio for blocks, from the third epoch on."""
        return 0.8 if self.by_blocks else 1.0  # 0.74 to 0.83 on pol and keggdirected

    def steps_per_epoch(self, size: int) -> int:
        return -(-size // self.batch_size)

    def _decays(self) -> tuple[float, ...]:
        return (SLOWEST_DECAY,) if self.by_blocks else (self.momentum, 1 - self.averaging)

    def _averages(self, n_steps: int) -> bool:
        return n_steps > 1 if self.by_blocks else self.averaging < 1

    def batches(self, size: int, first: int, n_steps: int, seed: tuple[int, ...]) -> Int[np.ndarray, "K ..."]:
        """The starts of the blocks, each once an epoch; with a step size, B independent rows."""
        if not self.by_blocks:
            steps = range(first, first + n_steps)
            draws = [np.random.default_rng((*seed, i)).integers(0, size, self.batch_size) for i in steps]
            return np.array(draws, np.int32)
        starts = block_starts(size, self.batch_size)
        epochs, places = np.divmod(np.arange(first, first + n_steps), len(starts))
        orders = {
            e: np.random.default_rng((*seed, int(e))).permutation(len(starts)) for e in np.unique(epochs)
        }
        return np.array([starts[orders[e][place]] for e, place in zip(epochs, places, strict=True)], np.int32)

    def step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: Moving, batch: Int[Array, "..."]
    ) -> tuple[Moving, StepInfo]:
        take = self._block_step if self.by_blocks else self._random_step
        return take(arranged, b, state, batch)

    def _block_step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: Moving, start: Int[Array, ""]
    ) -> tuple[Moving, StepInfo]:
        """Take the step δ_I = A_II⁻¹ ((Az)_I − b_I) on the block I from `start`, A_II⁻¹ = HᵀH."""
        operator = arranged.operator
        B = min(self.batch_size, operator.size)
        z = ahead(state, *operator.slice((state.u, state.D), start, B))
        noise, wanted = operator.slice((operator.noise, b), start, B)
        Kz = operator.block_times(start, B, (state.u, state.D), lambda part: ahead(state, *part))
        error = Kz + noise[:, None] * z - wanted
        inverse = arranged.extra[jnp.minimum(-(-start // B), arranged.extra.shape[0] - 1)]
        half = matmul(inverse, error)
        delta = matmul(inverse.T, half)
        moved = pushed(state, lambda array, factor: operator.add_slice(array, factor * delta, start))
        share = operator.size / B
        return moved, StepInfo(share * jnp.sum(error**2, axis=0), share * jnp.sum(half**2, axis=0))

    def _random_step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: Moving, rows: Int[Array, " B"]
    ) -> tuple[Moving, StepInfo]:
        operator, share = arranged.operator, arranged.operator.size / self.batch_size
        error = error_ahead(operator, b, state, rows)
        moved = pushed(state, lambda array, factor: operator.add(array, factor * share * error, rows))
        return moved, StepInfo(share * jnp.sum(error**2, axis=0))

    def _coefficients(self, arranged: Arranged, epoch: int, n_failures: int) -> Coefficients:
        operator = arranged.operator
        if self.step_size is not None:
            return nesterov(
                self.momentum, self.step_size * SMALLER**n_failures, self.averaging, operator.dtype
            )
        n_blocks = self.steps_per_epoch(operator.size)
        return accelerated(horizon(epoch) / 2**n_failures, n_blocks, operator.dtype)


def block_starts(size: int, batch_size: int) -> Int[np.ndarray, " blocks"]:
    """The starts of blocks of B rows; the last overlaps the one before if B does not divide N."""
    B = min(batch_size, size)
    return np.minimum(np.arange(-(-size // B)) * B, size - B).astype(np.int32)


@eqx.filter_jit
def _reordered(operator: KernelOperator, order: Int[Array, " N"]) -> KernelOperator:
    return operator.reordered(order)


def _factorise(
    operator: KernelOperator, batch_size: int, damping: float
) -> tuple[Float[Array, "blocks B B"], float]:
    """Return the inverse factor L⁻¹ of every block, and the largest jitter.

    A_II + damped·I + jitter·I = LLᵀ. LAPACK computes them in float64 on the host, since compiling the factorisation would take more time and memory. Products
    with K have rounding errors of a norm of about eps √N times its diagonal. `damping` times that in the blocks keeps a step from amplifying them if the noise
    is smaller. The step remains a descent step, with the same solution.
    """
    starts, n_rows = block_starts(operator.size, batch_size), min(batch_size, operator.size)
    rounding = float(jnp.finfo(operator.dtype).eps) * operator.size**0.5
    noise = np.asarray(operator.noise, np.float64)
    factors, largest = jnp.zeros((len(starts), n_rows, n_rows), operator.dtype), 0.0
    for place, start in enumerate(starts):
        A = np.array(_diagonal_block(operator, np.asarray(start), n_rows), np.float64)
        A = (A + A.T) / 2
        A[np.diag_indices(n_rows)] += noise[start : start + n_rows] + damping * rounding * A.diagonal().mean()
        inverse, jitter = _inverse_factor(A)
        factors = _put(factors, np.asarray(place), inverse.astype(operator.dtype))
        largest = max(largest, jitter)
    return operator.placed(factors, None), largest


def _inverse_factor(A: Float[np.ndarray, "B B"]) -> tuple[Float[np.ndarray, "B B"], float]:
    """Return L⁻¹ and the jitter, A + jitter·I = LLᵀ for the first working jitter; else NaN."""
    potrf, trtri = scipy.linalg.get_lapack_funcs(("potrf", "trtri"), (A,))
    for share in JITTERS:
        jitter = share * float(A.diagonal().mean())
        L, info = potrf(A + jitter * np.eye(len(A)) if jitter else A, lower=True, clean=True)
        if info == 0 and np.isfinite(L[-1, -1]):
            return trtri(L, lower=True, overwrite_c=True)[0], jitter
    return np.full_like(A, np.nan), 0.0


@eqx.filter_jit
def _diagonal_block(operator: KernelOperator, start: Any, n_rows: int) -> Float[Array, "B B"]:
    rows = operator.block(start, n_rows)
    return operator.kernel.between(rows, rows)


@functools.partial(jax.jit, donate_argnums=0)
def _put(factors: Array, place: Any, factor: Any) -> Array:
    return jax.lax.dynamic_update_index_in_dim(factors, factor, place, 0)
