"""What a solver of A α = b is: a frozen value with pure `init` and `step`. `solve` owns the loop."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stochgp.operators import KernelOperator


class AbstractSolver(eqx.Module):
    """How (K + Σ) α = b is solved; b is [N, S], all columns at once."""


class Arranged(NamedTuple):
    """An operator as a solver wants it, and what it prepared once."""

    operator: KernelOperator
    order: (
        np.ndarray | None
    )  # the rows of `operator` are those of the given one in this order; None = as they are
    extra: Any  # factors, preconditioners
    jitter: float  # added where a factorisation failed


class StepInfo(NamedTuple):
    """What a step says of the residual of the point that it started from."""

    residual_squares: Float[Array, " S"]  # an estimate of ‖b − A α‖², for each column
    energies: Float[Array, " S"] | None = (
        None  # of rᵀA⁻¹r, r = b − A α, where the solver has one: it falls where ‖r‖ need not
    )


class AbstractIterativeSolver(AbstractSolver):
    """A solver that approaches α step by step.

    `epochs` is how often, at most, every row of A is used, `check_every` after how many epochs the residual is measured on all rows
    (which costs one epoch), beside the checks that estimates within the tolerance cause.
    """

    epochs: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]

    @abc.abstractmethod
    def arrange(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Arranged:
        """What is done once, before the first step; runs on the host."""

    @abc.abstractmethod
    def init(self, arranged: Arranged, b: Float[Array, "P S"], start: Float[Array, "P S"] | None) -> PyTree:
        """The state before the first step, at `start` or at 0. Both are in the arranged order."""

    def more_careful(self, arranged: Arranged, epoch: int, n_failures: int) -> Arranged:
        """The arrangement after another divergence: as it is, unless the solver has a remedy there."""
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
        """What the steps first … first + n_steps − 1 take in turn: arrays [n_steps, …], the same however a run is cut."""

    @abc.abstractmethod
    def step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: PyTree, batch: PyTree
    ) -> tuple[PyTree, StepInfo]:
        """(State after one step, Info). Pure; fit for jit and scan."""

    @abc.abstractmethod
    def regroup(self, state: PyTree) -> PyTree:
        """The same point in numbers of ordinary size."""

    @abc.abstractmethod
    def value(self, state: PyTree) -> Float[Array, "P S"]:
        """α of the state."""

    @abc.abstractmethod
    def at_epoch(self, arranged: Arranged, state: PyTree, epoch: int, n_failures: int) -> PyTree:
        """The state with the settings that hold from this epoch on (counted from the start or the last divergence), after so many divergences."""

    @property
    def knows_residual(self) -> bool:
        """Whether the estimate of an epoch is the residual itself, but for rounding."""
        return False

    @property
    def tolerance_share(self) -> float:
        """Of an estimator's tolerance, to which this solver has to solve for predictions that are as good as others'.

        Predictions hardly depend on what a residual has in the small eigenvalues' directions, where steps by random blocks leave most of
        it and conjugate gradients do not.
        """
        return 1.0

    @property
    def measured_share(self) -> float:
        """What a measured residual is expected to be of the estimate of its epoch; below 1 where `value` averages what steps pass."""
        return 1.0

    @property
    @abc.abstractmethod
    def patience(self) -> int | None:
        """So many measured residuals in a row that do not fall mean that precision is exhausted; None = they never do."""

    @abc.abstractmethod
    def after_check(self, state: PyTree) -> PyTree:
        """The state to go on from, after a residual measured on all rows did not end the run."""
