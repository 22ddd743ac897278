"""What a learner is: a frozen value that says how θ is learned. `fit` owns the loop."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.devices import ONE, Devices
from stochgp.learning.descent import Optimizer, decaying, slowed
from stochgp.learning.judge import AbstractJudge, Numbers, Seed
from stochgp.learning.schedules import Schedule
from stochgp.learning.standard_errors import StandardErrors
from stochgp.learning.step_plan import StepPlan
from stochgp.models import AbstractGP


class Problem(NamedTuple):
    """What does not change during a run.

    Parameters
    ----------
    source : AbstractSource
        The training rows, on the device or on the host.
    plan : StepPlan
        Batch size, number of steps, and steps between two evaluations of the state.
    prepared : any
        What the learner's `prepare` computed once before the first step.
    rate : float or None
        The learning rate that short trials chose; None = the learner's own.
    devices : Devices
        Over which the rows of a batch are spread, where `devices.steps` is True.
    """

    source: AbstractSource
    plan: StepPlan
    prepared: Any
    rate: float | None = None
    devices: Devices = ONE


class AbstractLearner(eqx.Module):
    """How θ of a model is learned.

    Everything that a state needs to go on is in its arrays, and `advance` is a deterministic function of its arguments: so a killed run
    resumes to the same bits. All methods are called on the host, where x64 is enabled, and may jit inside. A learner of mini-batches is a
    `steps.AbstractBatchLearner`, which asks it for a pure `step(state, batch, *, key)`.

    Attributes
    ----------
    batch_size : int or None
        B; None = all rows at every step.
    epochs : int or None
        Passes over the data (of a learner that takes all rows: steps); None = chosen by `plan`.
    learning_rate : float, rule of the step, or None
        None: of a learner of mini-batches chosen by short trials, where the judge has rates to try; else the learner's own.
    optimizer : function or None
        Any optax rule, as a function of its learning rate: `optax.adam`, `optax.adadelta`, `optax.sgd`, …
    decay : function
        Factor on a numeric learning rate, as a function of the fraction of the planned steps taken.
    judge : AbstractJudge or None
        How the states of a run are evaluated; None = what suits the model: `ByEvidence()` for feature GPs, `ByLoss()` for others.
    """

    shares_steps: ClassVar[bool] = False  # whether devices can share the rows of a batch
    batch_size: eqx.AbstractVar[int | None]
    epochs: eqx.AbstractVar[int | None]
    learning_rate: eqx.AbstractVar[float | Schedule | None]
    optimizer: eqx.AbstractVar[Optimizer | None]
    decay: eqx.AbstractVar[Schedule]
    judge: eqx.AbstractVar[AbstractJudge | None]

    @abc.abstractmethod
    def plan(self, n_rows: int, n_inputs: int, judge: AbstractJudge) -> StepPlan:
        """How many steps, and how many between evaluations. An evaluation is where time limit, Ctrl-C and checkpoint act."""

    @abc.abstractmethod
    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """The memory that learning takes at its peak, beside the rows, the judge's evaluations and what compiling leaves behind."""

    def within(self, gp: AbstractGP, n_rows: int, n_inputs: int, free: int) -> "AbstractLearner":
        """The learner that makes use of `free` bytes, where it can."""
        return self

    def rows_within(self, gp: AbstractGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        """Return how many of the rows it can learn from in so many seconds."""
        return n_rows

    @abc.abstractmethod
    def prepare(self, gp: AbstractGP, source: AbstractSource, plan: StepPlan, seed: Seed) -> Any:
        """What is computed once, such as lists of neighbours: deterministic, since a resumed run computes it again."""

    @abc.abstractmethod
    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> Any:
        """The state before the first step: a pytree."""

    @abc.abstractmethod
    def advance(
        self, state: Any, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[Any, Numbers]:
        """(State after the steps first_step … first_step + n_steps − 1, numbers of them for the history).

        `fit` asks for at most `plan.chunk_steps` at a time. The numbers contain "loss", per datum: the average over these steps.
        """

    def after_evaluation(self, state: Any, evaluation: Any) -> Any:
        """The state to go on from after an evaluation, which may know more than the steps do."""
        return state

    def model(self, state: Any) -> AbstractGP:
        """θ of the state."""
        return state.gp

    @property
    def loss_shift(self) -> float:
        """c, where the loss of targets s·y and variances s²·v is loss(y, v) + c log s: 1 of a negative log density per datum, 0 of a difference of two."""
        return 1.0

    @property
    def first_seconds(self) -> float:
        """What the first piece of its steps takes at least, since it has to be compiled: with less time left it is not begun."""
        return 0.0

    def slower(self, state: Any, factor: float) -> Any:
        """The state with its learning rate multiplied by `factor`."""
        return eqx.tree_at(lambda s: s.descent, state, slowed(state.descent, factor))

    def decaying(self, state: Any, n_steps: int | None) -> Any:
        """The state with a learning rate that decays over the next `n_steps` steps; None = one that does not."""
        return eqx.tree_at(lambda s: s.descent, state, decaying(state.descent, n_steps))

    def finished(self, entry: Numbers) -> bool:
        """Whether the last entry of the history says that there is nothing left to do: the run has converged."""
        return False

    def exhausted(self, entry: Numbers) -> bool:
        """Whether the last entry says that all steps were taken, though fewer than planned."""
        return False

    def standard_errors(self, state: Any) -> StandardErrors | None:
        """Of the unconstrained parameters at a state, and of the loss; None where unknown."""
        return None

    def to_go_on(self, state: Any) -> Any:
        """What is kept of a run's last state to learn from further rows; None where the learner learns from no stream."""
        return None

    def seen_rows(self, n_rows: int) -> int:
        """How many of so many rows it learns from."""
        return n_rows

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        """("exact", "unbiased", "estimated", "biased" or "unknown"; how so) of the gradients that θ follows; `entry` is the history's last."""
        return "unknown", "the learner does not say"

    @property
    def unread(self) -> dict[str, Any]:
        """Values of fields that no step reads, the same for all learners that take the same steps."""
        return {}

    def of_steps(self) -> Any:
        """The learner as a compiled step knows it: what no step reads is no part of the program's key. A numeric rate is in the state."""
        rate = self.learning_rate if callable(self.learning_rate) else None
        return dataclasses.replace(self, **{"epochs": None, "learning_rate": rate, **self.unread})

    def check_common(self, *counts: str) -> None:
        """Raises ValueError, naming the field, for impossible settings; `counts` are further fields that are whole numbers from 1 on, or None."""
        for name in ("batch_size", "epochs", *counts):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
                raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
        rate = self.learning_rate
        if rate is not None and not callable(rate) and (isinstance(rate, str) or not 0 < rate < float("inf")):
            raise ValueError(f"learning_rate is {rate!r}; it must be positive and finite")
        spread = getattr(self, "spread", None)  # of a prior, of learners that have one
        if spread is not None and not 0 < spread < float("inf"):
            raise ValueError(f"spread is {spread}; it must be positive and finite, or None")
