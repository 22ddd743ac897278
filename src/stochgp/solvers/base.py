"""What a solver of A α = b is: a frozen value that `solve` runs, and that states what it needs and takes.

An iterative solver has pure `init` and `step`; `solve` owns the loop. A direct solver has a factor of A. To the planner both are the
same: bytes, seconds, and other settings to try. A new iterative solver need not state any of these; it then gets cautious figures.
"""

import abc
import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stochgp.numerics.dense_factor import Factor
from stochgp.operators import KernelOperator
from stochgp.results import Solution
from stochgp.solvers.costs import (
    Costs,
    compile_seconds,
    epoch_seconds,
    kept_seconds,
    prediction_seconds,
    prior_seconds,
)
from stochgp.solvers.sizes import (
    BLOCK,
    MARGIN,
    Layout,
    SystemSize,
    column_bytes,
    kept_bytes,
    left_by_compiler,
    working_bytes,
)

CHECKS = 2  # residuals that a run is expected to measure on all rows
COLUMNS = 24  # arrays [P, C] of a solver that does not state them
LEFT_BY_COMPILER = 170_000_000  # bytes, of a solver that does not state them
COMPILED = 12.0  # the same for the products that take as long to compile


class AbstractSolver(eqx.Module):
    """How (K + Σ) α = b is solved; b is [N, S], all columns at once."""

    @property
    def name(self) -> str:
        """What plans and errors call it."""
        return type(self).__name__.lower()

    @property
    @abc.abstractmethod
    def exact_variances(self) -> bool:
        """Whether exact variances come with the solution. Then no function samples are solved for."""

    @property
    @abc.abstractmethod
    def keeps_rows(self) -> bool:
        """Whether it is faster with rows of K kept in memory."""

    @property
    def tolerance_share(self) -> float:
        """The share of an estimator's tolerance that this solver solves to.

        It is below 1 where predictions are worse than another solver's at the same residual. Predictions hardly depend on the part of a
        residual that lies along eigenvectors of small eigenvalues. Steps by random blocks leave most of the residual there, conjugate
        gradients do not.
        """
        return 1.0

    def itemsize_for(self, size: SystemSize) -> int:
        """Bytes of a number in which such a system should be solved."""
        return size.itemsize

    def variants(self, size: SystemSize) -> Iterator[Self]:
        """This solver with each of the settings that a planner may try so that it fits or is faster. All of them solve to the tolerance."""
        yield self

    @abc.abstractmethod
    def need_bytes(self, size: SystemSize, layout: Layout) -> int:
        """Bytes of a solve and its predictions, on top of what is in use when the training rows are on the device."""

    @abc.abstractmethod
    def expected_seconds(
        self, size: SystemSize, layout: Layout, costs: Costs, tolerance: float, n_test: int
    ) -> float:
        """Everything from the right-hand sides to standard deviations at `n_test` rows, on a machine with these costs."""


class AbstractDirectSolver(AbstractSolver):
    """A solver that factorises A once and then solves for any right-hand side."""

    takes_filled: ClassVar[bool] = (
        False  # whether it has `solve_filled`, as `Cholesky` has it, for matrices filled by the caller
    )

    @property
    def exact_variances(self) -> bool:
        return True

    @property
    def keeps_rows(self) -> bool:
        return False

    @abc.abstractmethod
    def factorise(self, operator: KernelOperator) -> Factor:
        """The factor of A. Raises ValueError where A has none."""

    @abc.abstractmethod
    def solve(
        self, operator: KernelOperator, b: Any, tolerance: Any, factor: Factor | None = None
    ) -> Solution:
        """The solution with its measured residuals; `factor` saves the factorisation."""


class Arranged(NamedTuple):
    """An operator as a solver wants it, and what the solver prepared once."""

    operator: KernelOperator
    order: np.ndarray | None  # row i of `operator` is row order[i] of the one given; None = the same rows
    extra: Any  # factors, preconditioners
    jitter: float  # the largest that was added where a factorisation failed


class StepInfo(NamedTuple):
    """What a step says of the residual r = b − A α of the point that it started from."""

    residual_squares: Float[Array, " S"]  # an estimate of ‖r‖², for each column
    energies: Float[Array, " S"] | None = (
        None  # one of rᵀA⁻¹r, which falls even where ‖r‖ does not; None = not known
    )


class AbstractIterativeSolver(AbstractSolver):
    """A solver that approaches α step by step.

    An epoch is as many steps as use every row of A once. A run takes `epochs` of them at most. The residual is measured on all rows,
    which costs as much as an epoch, after every `check_every` epochs, and whenever the steps' own estimate is within the tolerance.
    """

    epochs: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]

    @property
    def exact_variances(self) -> bool:
        return False

    @property
    def keeps_rows(self) -> bool:
        return True

    # A run

    @abc.abstractmethod
    def arrange(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Arranged:
        """What is done once, before the first step; runs on the host."""

    @abc.abstractmethod
    def init(self, arranged: Arranged, b: Float[Array, "P S"], start: Float[Array, "P S"] | None) -> PyTree:
        """The state before the first step, at `start`, or at 0 for None. b and `start` have their rows in the arranged order."""

    def more_careful(self, arranged: Arranged, epoch: int, n_failures: int) -> Arranged:
        """The arrangement to go on with after the `n_failures`-th divergence, in this epoch. The default changes nothing."""
        return arranged

    @abc.abstractmethod
    def steps_per_epoch(self, size: int) -> int:
        """How many steps use every one of `size` rows once."""

    @property
    @abc.abstractmethod
    def steps_per_group(self) -> int:
        """Steps are taken in groups of so many, with `regroup` after each."""

    @abc.abstractmethod
    def batches(self, size: int, first: int, n_steps: int, seed: tuple[int, ...]) -> PyTree:
        """What the steps first … first + n_steps − 1 take: arrays [n_steps, …].

        What a step takes depends on its number and the seed alone, not on which steps are asked for together.
        """

    @abc.abstractmethod
    def step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: PyTree, batch: PyTree
    ) -> tuple[PyTree, StepInfo]:
        """(State after one step, Info). Pure; fit for jit and scan."""

    @abc.abstractmethod
    def regroup(self, state: PyTree) -> PyTree:
        """The same point, with scales that have grown or decayed multiplied out."""

    @abc.abstractmethod
    def value(self, state: PyTree) -> Float[Array, "P S"]:
        """α of the state."""

    @abc.abstractmethod
    def at_epoch(self, arranged: Arranged, state: PyTree, epoch: int, n_failures: int) -> PyTree:
        """The state with the settings for this epoch, after so many divergences."""

    @property
    def knows_residual(self) -> bool:
        """Whether the estimate of an epoch is the residual itself, but for rounding."""
        return False

    @property
    def measured_share(self) -> float:
        """The measured residual that is expected, as a share of the estimate of its epoch; below 1 where `value` averages the steps."""
        return 1.0

    @property
    @abc.abstractmethod
    def patience(self) -> int | None:
        """How many measured residuals in a row may fail to fall before the run ends, as this precision allows no more; None = any number."""

    @abc.abstractmethod
    def after_check(self, state: PyTree) -> PyTree:
        """The state to go on from, after a residual was measured on all rows and the run goes on."""

    # What it needs and takes

    @property
    def step_rows(self) -> int:
        """Rows of K that a step evaluates at once: the solver's `batch_size`; 512 for one that has no such field."""
        return getattr(self, "batch_size", BLOCK)

    @property
    def left_by_compiler(self) -> int:
        """Bytes that compiling the solver and its predictions leaves behind."""
        return LEFT_BY_COMPILER

    @property
    def compiled_products(self) -> float:
        """Compiling the solver and its predictions takes as long as compiling so many products of a block of K."""
        return COMPILED

    def array_bytes(self, size: SystemSize, layout: Layout) -> int:
        """The operator and all arrays of a run, but for kept rows and what a step evaluates of K."""
        return column_bytes(size, layout, COLUMNS)

    def wanted_epochs(self, n_rows: int, tolerance: float) -> float:
        """Epochs after which the residual is expected to be within the tolerance; inf = not known."""
        return math.inf

    def extra_seconds(self, size: SystemSize, costs: Costs, epochs: float) -> float:
        """What so many epochs take beside the products with K: factors, preconditioners, features."""
        return 0.0

    def expected_epochs(self, n_rows: int, tolerance: float) -> float:
        """Epochs that a run is expected to take: those wanted, and at most `epochs`."""
        return min(self.wanted_epochs(n_rows, min(tolerance, 0.5)), self.epochs)

    def need_bytes(self, size: SystemSize, layout: Layout) -> int:
        counted = self.array_bytes(size, layout) + working_bytes(size, layout, self.step_rows)
        fixed = left_by_compiler(size, layout, self.left_by_compiler) + kept_bytes(size, layout)
        return fixed + int(MARGIN * counted)

    def expected_seconds(
        self, size: SystemSize, layout: Layout, costs: Costs, tolerance: float, n_test: int
    ) -> float:
        epochs = self.expected_epochs(size.n_rows, tolerance) + CHECKS
        seconds = kept_seconds(size, layout, costs) + epochs * epoch_seconds(size, layout, costs)
        seconds += prediction_seconds(size, costs, n_test)
        seconds += (size.n_rows + n_test) * prior_seconds(size, costs)
        seconds += compile_seconds(size, costs, self.compiled_products)
        return seconds + self.extra_seconds(size, costs, epochs)
