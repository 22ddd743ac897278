"""The interface of solvers of A α = b: frozen objects that `solve` runs.

An iterative solver has pure `init` and `step`, and `solve` runs the loop. A direct solver makes a factor of A. Both
define `peak_bytes`; iterative solvers inherit a cautious estimate.
"""

import abc
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stochgp.budget import Budget
from stochgp.devices import default_tile
from stochgp.kernels import Product, Sum, Warped
from stochgp.numerics.linalg import Factor
from stochgp.operators import BLOCK, KernelOperator, wide
from stochgp.parameters import value_of
from stochgp.results import Solution

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

    @abc.abstractmethod
    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Peak bytes of a solve [N, C] and its predictions, without the rows on the device."""


class AbstractDirectSolver(AbstractSolver):
    """A solver that factorises A once and then solves for any right-hand side."""

    @abc.abstractmethod
    def factorise(self, operator: KernelOperator) -> Factor:
        """Return the factor of A. Raises ValueError if A has none."""

    @abc.abstractmethod
    def solve(
        self, operator: KernelOperator, b: Any, tolerance: Any, factor: Factor | None = None
    ) -> Solution:
        """Return the solution with measured residuals; `factor` saves the factorisation."""


class Arranged(NamedTuple):
    """An operator arranged for a solver, and quantities prepared before the first step."""

    operator: KernelOperator
    order: np.ndarray | None  # row i of `operator` is row order[i] of the original operator; None = no change
    extra: Any  # factors, preconditioners
    jitter: float  # the largest jitter added after a failed factorisation; 0 = none


class StepInfo(NamedTuple):
    """Estimates of r = b − A α at the point where a step started."""

    residual_squares: Float[Array, " S"]  # an estimate of ‖r‖² for each column
    energies: Float[Array, " S"] | None = (
        None  # an estimate of rᵀA⁻¹r, which falls even if ‖r‖ does not; None = unknown
    )


class AbstractIterativeSolver(AbstractSolver):
    """A solver that approaches α step by step.

    The steps of an epoch use as many rows of A as A has. A run takes at most `epochs` of them. The residual is measured on all rows after
    every `check_every` epochs, and when the steps' own estimate is within the tolerance. A measurement costs as much as an epoch.

    `knows_residual`: the steps' estimate is the residual itself, up to rounding. `patience`: the number of consecutive measured residuals that may fail
    to fall before the run ends; None = no limit.
    """

    knows_residual: ClassVar[bool] = False
    patience: ClassVar[int | None] = 2
    epochs: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]

    @abc.abstractmethod
    def arrange(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Arranged:
        """Prepare constants once before the first step, on the host."""

    @abc.abstractmethod
    def init(
        self,
        arranged: Arranged,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"] | None,
        left: Float[Array, "P S"] | None = None,
    ) -> PyTree:
        """Return the state before the first step, at `start`, or at 0 if that is None.

        `left` is b − A start, if known. All rows are in the arranged order.
        """

    def more_careful(self, arranged: Arranged, epoch: int, n_failures: int) -> Arranged:
        """Return the arrangement after the `n_failures`-th divergence; by default unchanged."""
        return arranged

    @abc.abstractmethod
    def steps_per_epoch(self, size: int) -> int:
        """The number of steps that use `size` rows."""

    @property
    def steps_per_group(self) -> int:
        """The number of steps in a group, after which `regroup` follows."""
        return 1

    @abc.abstractmethod
    def batches(self, size: int, first: int, n_steps: int, seed: tuple[int, ...]) -> PyTree:
        """The batches of the steps first … first + n_steps − 1: arrays [n_steps, …].

        The batch of a step depends only on its number and the seed.
        """

    @abc.abstractmethod
    def step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: PyTree, batch: PyTree
    ) -> tuple[PyTree, StepInfo]:
        """Return the state after one step and its info. Pure; fit for jit and scan."""

    def regroup(self, state: PyTree) -> PyTree:
        """Return the same point, with grown or decayed scales multiplied into their arrays."""
        return state

    @abc.abstractmethod
    def value(self, state: PyTree) -> Float[Array, "P S"]:
        """Return α of the state."""

    def at_epoch(self, arranged: Arranged, state: PyTree, epoch: int, n_failures: int) -> PyTree:
        """Return the state with this epoch's settings, such as a step size, after `n_failures`."""
        return state

    @property
    def measured_share(self) -> float:
        """The expected ratio of the measured residual to its estimate; below 1 for averages."""
        return 1.0

    def after_check(self, state: PyTree) -> PyTree:
        """Return the state after a residual was measured on all rows; by default unchanged."""
        return state

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        return solve_bytes(n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS)


def check_descent(solver: Any) -> None:
    """Raise ValueError for counts below 1, a step size ≤ 0 or a momentum outside of [0, 1)."""
    if solver.batch_size < 1 or solver.epochs < 1 or solver.check_every < 1:
        raise ValueError("batch_size, epochs and check_every must be at least 1")
    if solver.step_size is not None and not 0 < solver.step_size < math.inf:
        raise ValueError(f"step_size is {solver.step_size}; it must be positive and finite, or None")
    if not 0 <= solver.momentum < 1:
        raise ValueError(f"momentum is {solver.momentum}; it must lie in [0, 1)")


@eqx.filter_jit
def product_in_float64(operator: KernelOperator, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
    """A V for residuals, with K evaluated again and summed in float64, in V's dtype."""
    return operator.keeping(0).matvec(V, read=wide)


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
    """The free bytes without the headroom."""
    return max(budget.free() - int(HEADROOM * budget.limit), 0)


def n_terms(kernel: Any) -> int:
    """The terms and factors of the kernel: numbers held per entry of a product's tile."""
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return n_terms(kernel.left) + n_terms(kernel.right)
    return n_terms(kernel.kernel) if isinstance(kernel, Warped) else 1


def covariance_bytes(n_rows: int, n_test: int) -> int:
    """Bytes of four test × test and six test × train blocks in float64."""
    return int(MARGIN * 8 * n_test * (4 * n_test + 6 * n_rows))
