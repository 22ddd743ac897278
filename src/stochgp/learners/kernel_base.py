"""What a learner of kernel GPs is. `fit_kernel` owns the loop."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.learners.descent import Optimizer
from stochgp.learners.schedules import Schedule
from stochgp.models import KernelGP

Seed = tuple[int, ...]


class KernelPlan(NamedTuple):
    """`total_steps` steps, a multiple of `steps_per_visit`; the host visits after every `steps_per_visit` of them."""

    steps_per_epoch: int
    total_steps: int
    steps_per_visit: int


class KernelProblem(NamedTuple):
    """What does not change during a run."""

    source: AbstractSource  # the rows, on the device or on the host
    plan: KernelPlan
    prepared: Any  # what the learner computed once before the first step


class AbstractKernelLearner(eqx.Module):
    """How θ of a kernel GP is learned.

    Everything that a state needs to go on is in its arrays, and `advance` is a deterministic function of its arguments: so a killed
    run resumes to the same bits. `advance` and `prepare` are called on the host, where x64 is enabled, and may jit inside.

    batch_size     B; None = all rows at every step
    epochs         passes over the data (of a learner that takes all rows: steps); None = chosen by `plan`
    learning_rate  a number, a rule of the step, or None: the learner's own, stated in its docstring
    optimizer      any optax rule, as a function of its learning rate
    decay          factor on a numeric learning rate, as a function of the fraction of steps taken
    """

    batch_size: eqx.AbstractVar[int | None]
    epochs: eqx.AbstractVar[int | None]
    learning_rate: eqx.AbstractVar[float | Schedule | None]
    optimizer: eqx.AbstractVar[Optimizer]
    decay: eqx.AbstractVar[Schedule]

    @abc.abstractmethod
    def plan(self, n_rows: int) -> KernelPlan:
        """How many steps, and how many between visits. A visit is where time limit, Ctrl-C and checkpoint act: plan for a second or two."""

    @abc.abstractmethod
    def need_bytes(self, n_rows: int, n_inputs: int) -> int:
        """The memory that learning takes at its peak, beside the rows and what compiling leaves behind."""

    def within(self, n_rows: int, n_inputs: int, free: int) -> "AbstractKernelLearner":
        """The learner that makes use of `free` bytes, where it can."""
        return self

    @abc.abstractmethod
    def prepare(self, gp: KernelGP, source: AbstractSource, plan: KernelPlan, seed: Seed) -> Any:
        """What is computed once, such as lists of neighbours: deterministic, since a resumed run computes it again."""

    @abc.abstractmethod
    def init(self, gp: KernelGP, problem: KernelProblem, *, key: PRNGKeyArray) -> Any:
        """The state before the first step: a pytree."""

    @abc.abstractmethod
    def advance(
        self, state: Any, problem: KernelProblem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[Any, dict[str, float]]:
        """(State after the steps first_step … first_step + n_steps − 1, numbers of them for the history).

        The numbers contain "loss", per datum: the average over these steps, by which `fit_kernel` sees divergence and settling.
        """

    @abc.abstractmethod
    def model(self, state: Any) -> KernelGP:
        """θ of the state."""

    @abc.abstractmethod
    def slower(self, state: Any, factor: float) -> Any:
        """The state with its learning rate multiplied by `factor`."""

    @abc.abstractmethod
    def finished(self, entry: dict[str, float]) -> bool:
        """Whether the last entry of the history says that there is nothing left to do: the run has converged."""

    def exhausted(self, entry: dict[str, float]) -> bool:
        """Whether the last entry says that all steps were taken, though fewer than planned."""
        return False

    def check_common(self) -> None:
        """Raises ValueError, naming the field, for impossible settings."""
        for name in ("batch_size", "epochs"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
                raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
        rate = self.learning_rate
        if rate is not None and not callable(rate) and not 0 < rate < float("inf"):
            raise ValueError(f"learning_rate is {rate}; it must be positive and finite")
