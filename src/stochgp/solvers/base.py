"""The interface of solvers of A α = b: frozen objects that `solve` runs."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stochgp.budget import Budget
from stochgp.kernels import Product, Sum, Warped
from stochgp.operators import BLOCK, KernelOperator
from stochgp.parameters import value_of
from stochgp.sharding import default_tile

# Peak bytes count arrays at the worst moment, beyond those in use when the training rows are on the device. A test compares them with measurements.
SMALL = 3_000  # rows up to which a direct solve in float64 takes little time
MARGIN = 1.1  # on the counted arrays
COMPILED_BYTES = 170_000_000  # left behind by compiling a solver and its predictions
DRAWS_BYTES = 30_000_000  # left behind by compiling and running prior draws
FEATURES = 2000  # features of the prior's draws
COMPILER_BYTES = 60_000_000  # of compiling one more evaluation
HEADROOM = 0.04  # of the limit, for modules and programs loaded around the solve
TERM_BYTES = 25_000_000  # of compiled programs and a tile, for each further term of the kernel
ARRAYS = 24  # [P, C], for a solver without its own `peak_bytes`


class AbstractSolver(eqx.Module):
    """A method that solves (K + Σ) α = b for all columns of b [N, S] at once.

    `tolerance_share` multiplies an estimator's tolerance. It is below 1 if a solver predicts worse than others at the
    same residual.
    """

    tolerance_share: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """The name in plans and errors."""
        return type(self).__name__.lower()

    def itemsize_for(self, n_rows: int, itemsize: int, noise_ratio: float) -> int:
        """Bytes per number for rows of `itemsize`; `noise_ratio` is mean Σ / mean diag(K)."""
        return itemsize

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Peak bytes of a solve [N, C] and its predictions, without the rows on the device."""
        return solve_bytes(n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS)


class AbstractIterativeSolver(AbstractSolver):
    """A solver that approaches α step by step: `init`, `step`, `value` and `peak_bytes`.

    The steps of an epoch use as many rows of A as A has. A run takes at most `epochs` of them. The residual is measured on all rows after
    every `check_every` epochs, and when the steps' own estimate is within the tolerance. A measurement costs as much as an epoch.

    `knows_residual`: the steps' estimate is the residual itself, up to rounding; else `measured_share` is the expected ratio of the measured residual
    to its estimate, below 1 for averages. `patience`: the number of consecutive measured residuals that may fail to fall before the run ends;
    None = no limit.
    """

    knows_residual: ClassVar[bool] = False
    measured_share: ClassVar[float] = 1.0
    patience: ClassVar[int | None] = 2
    epochs: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]

    def constants(self, operator: KernelOperator, *, key: PRNGKeyArray) -> PyTree:
        """Prepare a preconditioner or factors once, on the host; their `jitter` is reported."""
        return None

    @abc.abstractmethod
    def init(
        self,
        operator: KernelOperator,
        constants: PyTree,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"],
        residual: Float[Array, "P S"] | None = None,
    ) -> PyTree:
        """Return the state before the first step, at `start`; `residual` is b − A start, if known."""

    def batches(self, size: int, epoch: int, seed: tuple[int, ...]) -> PyTree:
        """Return the batches of an epoch's steps, arrays [n_steps, ...]; by default one step."""
        return np.zeros(1, np.int32)

    @abc.abstractmethod
    def step(
        self,
        operator: KernelOperator,
        constants: PyTree,
        b: Float[Array, "P S"],
        state: PyTree,
        batch: PyTree,
    ) -> tuple[PyTree, Float[Array, " S"], Float[Array, " S"] | None]:
        """Return the state after one step, and estimates of ‖r‖² and rᵀA⁻¹r or None, r = b − A α where it started. Pure; fit for jit and scan."""

    @abc.abstractmethod
    def value(self, state: PyTree) -> Float[Array, "P S"]:
        """Return α of the state."""

    def adapted(
        self, operator: KernelOperator, constants: PyTree, state: PyTree, epoch: int, n_failures: int
    ) -> tuple[PyTree, PyTree]:
        """Return constants and state with the settings of an epoch after `n_failures` divergences."""
        return constants, state

    def after_check(self, state: PyTree) -> PyTree:
        """Return the state after a residual was measured on all rows; by default unchanged."""
        return state


def solve_bytes(
    n_rows: int,
    n_columns: int,
    n_inputs: int,
    itemsize: int,
    *,
    n_arrays: int,
    n_wide: int = 0,
    step_rows: int = BLOCK,
    more: float = 0.0,
    compiled: int = COMPILED_BYTES,
) -> int:
    """Bytes of a solve: compiled programs and, with a margin, rows, arrays [N, C] and a step.

    Parameters
    ----------
    n_rows, n_columns, n_inputs, itemsize : int
        N, the right-hand sides C, D, and bytes of a number.
    n_arrays, n_wide : int
        Arrays [N, C] in numbers of the operator and in float64.
    step_rows : int
        Rows of K that a step evaluates at once, tile by tile; residuals use 512.
    more, compiled : float, int
        Bytes of other arrays, and of compiled programs.
    """
    tile, rows = min(default_tile(), n_rows), min(max(BLOCK, step_rows), n_rows)
    arrays = n_rows * (itemsize * (n_inputs + 2 + n_arrays * n_columns) + 8 * n_wide * n_columns)
    summed = 8 * rows * (int(itemsize < 8) * tile + 2 * n_columns)  # in float64
    step = 1.2 * itemsize * rows * tile + summed
    draws = DRAWS_BYTES if n_columns > 1 else 0
    return compiled + draws + int(MARGIN * (arrays + step + more))


def plannable(budget: Budget) -> int:
    """Return the free bytes without the headroom."""
    return max(budget.free() - int(HEADROOM * budget.limit), 0)


def n_terms(kernel: Any) -> int:
    """Return the terms and factors of the kernel: numbers held per entry of a product's tile."""
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return n_terms(kernel.left) + n_terms(kernel.right)
    return n_terms(kernel.kernel) if isinstance(kernel, Warped) else 1


def covariance_bytes(n_rows: int, n_test: int) -> int:
    """Bytes of four test × test and six test × train blocks in float64."""
    return int(MARGIN * 8 * n_test * (4 * n_test + 6 * n_rows))
