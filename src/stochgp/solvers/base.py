"""The interface of solvers of A α = b: frozen values that `solve` runs.

An iterative solver has pure `init` and `step`, and `solve` owns the loop. A direct solver makes a factor of A. Both
state their peak bytes; an iterative solver that states none gets a cautious figure.
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

# Peak bytes are beyond what is in use once the training rows are on the device, of arrays alive at the worst moment. A test compares them with measured peaks.
SMALL = 3_000  # rows up to which a direct solve in float64 takes little time
MARGIN = 1.1  # on arrays that are counted
COMPILED_BYTES = 170_000_000  # left behind by compiling a solver and its predictions
DRAWS_BYTES = 30_000_000  # left behind by compiling and running prior draws
FEATURES = 2000  # of the prior's draws
COMPILER_BYTES = 60_000_000  # of compiling one more evaluation
HEADROOM = 0.04  # of the limit, for what is loaded and compiled around the solve
TERM_BYTES = 25_000_000  # of compiled programs and of a tile, for each further term of the kernel
ARRAYS = 24  # [P, C], of a solver that does not state its own


class AbstractSolver(eqx.Module):
    """How (K + Σ) α = b is solved; b is [N, S], all columns at once.

    `tolerance_share` is the share of an estimator's tolerance that a solver solves to: below 1 if its predictions are worse than those of
    others at the same residual.
    """

    tolerance_share: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """What plans and errors call it."""
        return type(self).__name__.lower()

    def itemsize_for(self, n_rows: int, itemsize: int, noise_ratio: float) -> int:
        """Bytes of a number in which rows of `itemsize` are to be solved for; `noise_ratio` is mean Σ / mean diag(K)."""
        return itemsize

    @abc.abstractmethod
    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Bytes of a solve for [N, C] and of its predictions, beyond what is in use once the training rows are on the device."""


class AbstractDirectSolver(AbstractSolver):
    """A solver that factorises A once and then solves for any right-hand side."""

    @abc.abstractmethod
    def factorise(self, operator: KernelOperator) -> Factor:
        """The factor of A. Raises ValueError where A has none."""

    @abc.abstractmethod
    def solve(
        self, operator: KernelOperator, b: Any, tolerance: Any, factor: Factor | None = None
    ) -> Solution:
        """The solution with its measured residuals; `factor` saves the factorisation."""


class Arranged(NamedTuple):
    """An operator as a solver wants it, and what the solver has prepared before its first step."""

    operator: KernelOperator
    order: (
        np.ndarray | None
    )  # row i of `operator` is row order[i] of the operator given; None = the order did not change
    extra: Any  # factors, preconditioners
    jitter: float  # the largest that was added to a diagonal because a factorisation failed; 0 = none


class StepInfo(NamedTuple):
    """What a step found out about r = b − A α, the residual of the point at which it started."""

    residual_squares: Float[Array, " S"]  # an estimate of ‖r‖² for each column
    energies: Float[Array, " S"] | None = (
        None  # an estimate of rᵀA⁻¹r, which falls even where ‖r‖ does not; None = not known
    )


class AbstractIterativeSolver(AbstractSolver):
    """A solver that approaches α step by step.

    In an epoch the steps use as many rows of A as A has. A run takes at most `epochs` of them. The residual is measured on all rows after
    every `check_every` epochs, and whenever the steps' own estimate is within the tolerance. A measurement costs as much as an epoch.

    `knows_residual`: the steps' estimate is the residual itself, up to rounding. `patience`: how many measured residuals in a row may fail to fall
    before the run ends; None = no limit.
    """

    knows_residual: ClassVar[bool] = False
    patience: ClassVar[int | None] = 2
    epochs: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]

    @abc.abstractmethod
    def arrange(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Arranged:
        """What is prepared once, before the first step. Runs on the host."""

    @abc.abstractmethod
    def init(
        self,
        arranged: Arranged,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"] | None,
        left: Float[Array, "P S"] | None = None,
    ) -> PyTree:
        """The state before the first step: at `start`, or at 0 if that is None; `left` is b − A start, where it is known.

        All rows are in the arranged order.
        """

    def more_careful(self, arranged: Arranged, epoch: int, n_failures: int) -> Arranged:
        """The arrangement for the rest of the run, after the `n_failures`-th divergence, which happened in this epoch. By default the same."""
        return arranged

    @abc.abstractmethod
    def steps_per_epoch(self, size: int) -> int:
        """How many steps use as many rows as there are: `size`."""

    @property
    def steps_per_group(self) -> int:
        """How many steps make a group. `regroup` follows after each group."""
        return 1

    @abc.abstractmethod
    def batches(self, size: int, first: int, n_steps: int, seed: tuple[int, ...]) -> PyTree:
        """The batches of the steps first … first + n_steps − 1: arrays [n_steps, …].

        A step's batch depends only on the number of the step and on the seed, not on which steps are asked for together.
        """

    @abc.abstractmethod
    def step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: PyTree, batch: PyTree
    ) -> tuple[PyTree, StepInfo]:
        """(State after one step, Info). Pure; fit for jit and scan."""

    def regroup(self, state: PyTree) -> PyTree:
        """The same point. Scales that have grown or decayed are multiplied into their arrays."""
        return state

    @abc.abstractmethod
    def value(self, state: PyTree) -> Float[Array, "P S"]:
        """α of the state."""

    def at_epoch(self, arranged: Arranged, state: PyTree, epoch: int, n_failures: int) -> PyTree:
        """The state with the settings for this epoch, such as a step size. `n_failures` is how often the run has diverged."""
        return state

    @property
    def measured_share(self) -> float:
        """The expected ratio of the measured residual to the estimate of its epoch. It is below 1 where `value` averages over steps."""
        return 1.0

    def after_check(self, state: PyTree) -> PyTree:
        """The state with which the run continues after a residual was measured on all rows. By default the same."""
        return state

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        return solve_bytes(n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS)


def check_descent(solver: Any) -> None:
    """Raises ValueError for numbers of rows and epochs below 1, a step size that is not positive, and a momentum outside of [0, 1)."""
    if solver.batch_size < 1 or solver.epochs < 1 or solver.check_every < 1:
        raise ValueError("batch_size, epochs and check_every must be at least 1")
    if solver.step_size is not None and not 0 < solver.step_size < math.inf:
        raise ValueError(f"step_size is {solver.step_size}; it must be positive and finite, or None")
    if not 0 <= solver.momentum < 1:
        raise ValueError(f"momentum is {solver.momentum}; it must lie in [0, 1)")


@eqx.filter_jit
def product_in_float64(operator: KernelOperator, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
    """A V, entries of K evaluated afresh and summed in float64, in V's dtype: of residuals."""
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
    """Bytes of a solve: compiled programs and, with a margin, the rows, arrays [N, C] and a step.

    Parameters
    ----------
    n_rows, n_columns, n_inputs, itemsize : int
        N, the right-hand sides C, D, and bytes of a number.
    n_arrays, n_wide : int
        Arrays [N, C] in numbers of the operator and in float64.
    step_rows : int
        Rows of K that a step evaluates at once, tile by tile; residuals are measured by 512.
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
    """What is free but for the headroom."""
    return max(budget.free() - int(HEADROOM * budget.limit), 0)


def n_terms(kernel: Any) -> int:
    """Terms and factors of the kernel: so many numbers a product with K holds for an entry of its tile.

    Compiled products of nine kernels of one to eight terms held 1.00 to 1.02 times as many.
    """
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return n_terms(kernel.left) + n_terms(kernel.right)
    return n_terms(kernel.kernel) if isinstance(kernel, Warped) else 1


def covariance_bytes(n_rows: int, n_test: int) -> int:
    """Four squares of the test rows, and six blocks of test by training rows, in float64."""
    return int(MARGIN * 8 * n_test * (4 * n_test + 6 * n_rows))
