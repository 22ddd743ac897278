"""How an evaluation judges a state: by the loss of the steps that led to it, or by the exact evidence of all rows (`evidence`)."""

import abc
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np

from stochgp.data.streams import AbstractSource
from stochgp.devices import ONE, Devices
from stochgp.learning.step_plan import StepPlan, steps_by_stretches
from stochgp.models import AbstractGP

Seed = tuple[int, ...]
Numbers = dict[str, float]

SETTLED_BY = 0.01  # nats per datum


@runtime_checkable
class Evaluation(Protocol):
    """What a judge found: a pytree, so that checkpoints can hold it."""

    @property
    @abc.abstractmethod
    def gp(self) -> Any:
        """The model of the state."""

    @property
    @abc.abstractmethod
    def criterion(self) -> float:
        """Nats per datum, lower is better; not finite where the state is lost."""

    @property
    @abc.abstractmethod
    def error(self) -> float:
        """The standard error of the criterion; 0 where it is no estimate."""


class Division(NamedTuple):
    """The rows that a run learns from, and those held out for its judge."""

    train: AbstractSource
    held_out: AbstractSource | None
    devices: Devices = ONE  # over which passes are spread


class AbstractJudge(eqx.Module):
    """Judges the states of a run. `fit` asks it at every evaluation and knows nothing else of the model."""

    @abc.abstractmethod
    def divide(self, source: AbstractSource, seed: Seed) -> Division:
        """Holds rows out, if the judge needs any."""

    @abc.abstractmethod
    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        """Steps and evaluations of a learner that takes mini-batches: as often as an evaluation of this judge's cost allows."""

    @abc.abstractmethod
    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """The memory that its evaluations take."""

    @abc.abstractmethod
    def at_start(self, gp: AbstractGP, division: Division) -> Evaluation:
        """The evaluation of θ₀, before any step."""

    @abc.abstractmethod
    def look(self, gp: AbstractGP, numbers: Numbers, division: Division) -> Evaluation:
        """The evaluation of a state whose model is `gp`; `numbers` are what the steps that led to it say."""

    @abc.abstractmethod
    def entry(self, evaluation: Any) -> Numbers:
        """What the history says of an evaluation."""

    @property
    @abc.abstractmethod
    def evaluations_are_free(self) -> bool:
        """Whether an evaluation does no work that grows with the rows."""

    @property
    @abc.abstractmethod
    def returns_best(self) -> bool:
        """Whether a run returns the evaluation of the lowest criterion, or its last good one."""

    @abc.abstractmethod
    def rates(self, n_rows: int) -> tuple[float, ...]:
        """Learning rates that are tried on so many rows for a learner which names none; one is taken as it is; () = the learner's own."""

    @abc.abstractmethod
    def settled(self, history: list[Numbers]) -> bool:
        """Whether a run that has taken all its steps was no longer moving."""

    @abc.abstractmethod
    def conclude(self, at: Any, division: Division) -> tuple[AbstractGP, Any]:
        """(The model that a run ending with this evaluation returns, the exact evidence of all rows or None)."""


class LossEvaluation(NamedTuple):
    """The model, and the average loss per datum of the steps that led to it (NaN: none yet)."""

    gp: AbstractGP
    loss: float
    error: float = 0.0

    @property
    def criterion(self) -> float:
        return self.loss if _is_finite(self.gp) else np.nan


class ByLoss(AbstractJudge):
    """States are evaluated by the learner's own mean loss: no work that grows with the rows. A run returns its last good state.

    Settled: the mean loss of the last fifth of the evaluations differs from that of the fifth before by less than 0.01 nats per datum, or by
    less than twice its standard error.

    Parameters
    ----------
    trial_rates : tuple of float
        Learning rates that are tried for a learner which names none, by the mean loss of the same batches; () = the learner's own.
    """

    trial_rates: tuple[float, ...] = ()

    def divide(self, source: AbstractSource, seed: Seed) -> Division:
        return Division(source, None)

    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        return steps_by_stretches(n_rows, bytes_per_row, batch_size, epochs, default_steps)

    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        return 0

    def at_start(self, gp: AbstractGP, division: Division) -> LossEvaluation:
        return LossEvaluation(gp, np.nan)

    def look(self, gp: AbstractGP, numbers: Numbers, division: Division) -> LossEvaluation:
        return LossEvaluation(gp, float(numbers["loss"]), float(numbers.get("loss_error", 0.0)))

    def entry(self, evaluation: LossEvaluation) -> Numbers:
        return (
            {"noise_variance": float(evaluation.gp.noise_variance)} if hasattr(evaluation.gp, "noise") else {}
        )

    @property
    def evaluations_are_free(self) -> bool:
        return True

    @property
    def returns_best(self) -> bool:
        return False

    def rates(self, n_rows: int) -> tuple[float, ...]:
        return self.trial_rates

    def settled(self, history: list[Numbers]) -> bool:
        losses = np.array([e["loss"] for e in history if "loss" in e and not e["recovered"]])
        n = len(losses) // 5 if len(losses) >= 10 else 1
        if len(losses) < 2:
            return False
        before, last = losses[-2 * n : -n], losses[-n:]
        error = np.sqrt((np.var(before) + np.var(last)) / max(n - 1, 1))
        return bool(abs(np.mean(before) - np.mean(last)) < max(SETTLED_BY, 2 * error))

    def conclude(self, at: LossEvaluation, division: Division) -> tuple[AbstractGP, None]:
        return at.gp, None


def _is_finite(gp: AbstractGP) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves(gp) if eqx.is_inexact_array(leaf)]
    return all(np.all(np.isfinite(np.asarray(leaf))) for leaf in leaves)
