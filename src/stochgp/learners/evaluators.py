"""Evaluators of the states of a run: by the loss of the steps that led to it, or by the exact evidence of all rows (`evidence`)."""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np

from stochgp.data.memory import MemorySource
from stochgp.learners.step_plan import StepPlan, steps_by_stretches
from stochgp.models import AbstractGP

Seed = tuple[int, ...]
Numbers = dict[str, float]

SETTLED_BY = 0.01  # nats per datum


class Division(NamedTuple):
    """The rows that a run learns from, and those held out for its evaluations."""

    train: MemorySource
    held_out: MemorySource | None


class AbstractEvaluator(eqx.Module):
    """Evaluates the states of a run; `fit` knows nothing else of the model.

    An evaluation is a pytree, so that checkpoints can hold it, with `gp`, `criterion` (nats per datum, lower is better; not finite if the run
    has diverged) and `error`, the criterion's standard error, 0 if it is no estimate. `returns_best` says if a run returns the evaluation of the
    lowest criterion or its last good one, `evaluations_are_free` if an evaluation does no work that grows with the rows.
    """

    returns_best: eqx.AbstractClassVar[bool]
    evaluations_are_free: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def divide(self, source: MemorySource, seed: Seed) -> Division:
        """Hold rows out, if the evaluator needs any."""

    @abc.abstractmethod
    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        """Steps and evaluations of a learner of mini-batches: as often as the cost of an evaluation allows."""

    @abc.abstractmethod
    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """The memory that its evaluations take."""

    @abc.abstractmethod
    def initial(self, gp: AbstractGP, division: Division) -> Any:
        """The evaluation of θ₀, before any step."""

    @abc.abstractmethod
    def evaluate(self, gp: AbstractGP, numbers: Numbers, division: Division) -> Any:
        """The evaluation of a state whose model is `gp`; `numbers` are those of the steps that led to it."""

    @abc.abstractmethod
    def entry(self, evaluation: Any) -> Numbers:
        """The numbers of an evaluation for the history."""

    @abc.abstractmethod
    def rates(self, n_rows: int) -> tuple[float, ...]:
        """Learning rates that are tried on so many rows for a learner without one; a single rate is not tried; () = the learner's own."""

    @abc.abstractmethod
    def settled(self, history: list[Numbers]) -> bool:
        """Return True if a run that has taken all its steps was no longer moving."""

    @abc.abstractmethod
    def finalize(self, at: Any, division: Division) -> tuple[AbstractGP, Any]:
        """(The model that a run ending with this evaluation returns, the exact evidence of all rows or None)."""


class LossEvaluation(NamedTuple):
    """The model, and the average loss per datum of the steps that led to it (NaN: none yet)."""

    gp: AbstractGP
    loss: float
    error: float = 0.0

    @property
    def criterion(self) -> float:
        leaves = [leaf for leaf in jax.tree.leaves(self.gp) if eqx.is_inexact_array(leaf)]
        return self.loss if all(np.all(np.isfinite(np.asarray(leaf))) for leaf in leaves) else np.nan


class ByLoss(AbstractEvaluator):
    """Evaluations by the learner's own mean loss: no work that grows with the rows. A run returns its last good state.

    Settled: the mean loss of the last fifth of the evaluations differs from that of the fifth before by less than 0.01 nats per datum, or by
    less than twice its standard error.

    Parameters
    ----------
    trial_rates : tuple of float
        Learning rates that are tried for a learner without one, by the mean loss of the same batches; () = the learner's own.
    """

    returns_best: ClassVar[bool] = False
    evaluations_are_free: ClassVar[bool] = True
    trial_rates: tuple[float, ...] = ()

    def divide(self, source: MemorySource, seed: Seed) -> Division:
        return Division(source, None)

    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        return steps_by_stretches(n_rows, bytes_per_row, batch_size, epochs, default_steps)

    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        return 0

    def initial(self, gp: AbstractGP, division: Division) -> LossEvaluation:
        return LossEvaluation(gp, np.nan)

    def evaluate(self, gp: AbstractGP, numbers: Numbers, division: Division) -> LossEvaluation:
        return LossEvaluation(gp, float(numbers["loss"]), float(numbers.get("loss_error", 0.0)))

    def entry(self, evaluation: LossEvaluation) -> Numbers:
        gp: Any = evaluation.gp
        return {"noise_variance": float(gp.noise_variance)} if hasattr(gp, "noise") else {}

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

    def finalize(self, at: LossEvaluation, division: Division) -> tuple[AbstractGP, None]:
        return at.gp, None
