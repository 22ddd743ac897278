"""The interface of solvers of A α = b: frozen values that `solve` runs.

An iterative solver has pure `init` and `step`, and `solve` owns the loop. A direct solver makes a factor of A. Both
state their peak bytes, and smaller settings to try if memory is short. An iterative solver that states no bytes gets
a cautious figure.
"""

import abc
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stochgp.numerics.linalg import Factor
from stochgp.operators import AbstractOperator, wide
from stochgp.operators.base import BLOCK
from stochgp.results import Solution
from stochgp.solvers import sizes
from stochgp.solvers.sizes import Layout, SystemSize

COLUMNS = 24  # arrays [P, C] of a solver that does not state its own


class AbstractSolver(eqx.Module):
    """How (K + Σ) α = b is solved; b is [N, S], all columns at once.

    Exact variances come with the solution of a direct solver; an iterative one is faster with rows of K kept in memory. `tolerance_share` is
    the share of an estimator's tolerance that a solver solves to: below 1 if its predictions are worse than those of others at the same residual.
    """

    exact_variances: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True
    tolerance_share: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """What plans and errors call it."""
        return type(self).__name__.lower()

    def itemsize_for(self, size: SystemSize) -> int:
        """Bytes of a number in which such a system should be solved."""
        return size.itemsize

    def variants(self, size: SystemSize) -> Iterator[Self]:
        """Yield this solver with settings for a system of this size, and then with settings that need less memory."""
        yield self

    @abc.abstractmethod
    def need_bytes(self, size: SystemSize, layout: Layout) -> int:
        """Bytes of a solve and of its predictions, beyond what is in use once the training rows are on the device."""


class AbstractDirectSolver(AbstractSolver):
    """A solver that factorises A once and then solves for any right-hand side."""

    exact_variances: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = False
    takes_filled: ClassVar[bool] = False  # whether it has `solve_filled`

    @abc.abstractmethod
    def factorise(self, operator: AbstractOperator) -> Factor:
        """The factor of A. Raises ValueError where A has none."""

    @abc.abstractmethod
    def solve(
        self, operator: AbstractOperator, b: Any, tolerance: Any, factor: Factor | None = None
    ) -> Solution:
        """The solution with its measured residuals; `factor` saves the factorisation."""

    def solve_filled(
        self, fill: Callable[[], Float[np.ndarray, "N N"]], b: Any, tolerance: Any, dtype: Any
    ) -> tuple[Solution, Factor]:
        """(The solution in `dtype`, the factor) for A = fill(), float64 on and right of its diagonal: of a class that sets `takes_filled`."""
        raise NotImplementedError(f"{self.name} takes no matrix that the caller fills")


class Arranged(NamedTuple):
    """An operator as a solver wants it, and what the solver has prepared before its first step."""

    operator: AbstractOperator
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
    before the run ends; None = no limit. `left_by_compiler`: bytes that compiling the solver and its predictions leaves behind.
    """

    knows_residual: ClassVar[bool] = False
    patience: ClassVar[int | None] = 2
    left_by_compiler: ClassVar[int] = 170_000_000
    epochs: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]

    # A run

    @abc.abstractmethod
    def arrange(self, operator: AbstractOperator, *, key: PRNGKeyArray) -> Arranged:
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

    # Its peak bytes

    @property
    def step_rows(self) -> int:
        """Rows of K that a step evaluates at once: the solver's `batch_size`, or 512 if it has no such field."""
        return getattr(self, "batch_size", BLOCK)

    def array_bytes(self, size: SystemSize, layout: Layout) -> int:
        """Bytes of the operator and of all arrays of a run, without the rows of K that are kept or that a step evaluates."""
        return sizes.column_bytes(size, layout, COLUMNS)

    def need_bytes(self, size: SystemSize, layout: Layout) -> int:
        counted = self.array_bytes(size, layout) + sizes.working_bytes(size, layout, self.step_rows)
        fixed = sizes.left_by_compiler(size, layout, self.left_by_compiler) + sizes.kept_bytes(size, layout)
        return fixed + int(sizes.MARGIN * counted)


def check_descent(solver: Any) -> None:
    """Raises ValueError for numbers of rows and epochs below 1, a step size that is not positive, and a momentum outside of [0, 1)."""
    if solver.batch_size < 1 or solver.epochs < 1 or solver.check_every < 1:
        raise ValueError("batch_size, epochs and check_every must be at least 1")
    if solver.step_size is not None and not 0 < solver.step_size < math.inf:
        raise ValueError(f"step_size is {solver.step_size}; it must be positive and finite, or None")
    if not 0 <= solver.momentum < 1:
        raise ValueError(f"momentum is {solver.momentum}; it must lie in [0, 1)")


@eqx.filter_jit
def product_in_float64(operator: AbstractOperator, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
    """A V, entries of K evaluated afresh and summed in float64, in V's dtype: of residuals."""
    return operator.keeping(0).matvec(V, read=wide)
