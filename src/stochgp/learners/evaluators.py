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
    has diverged), `error`, the criterion's standard error, 0 if it is no estimate, and `numbers()` for the history. If `is_exact`, evaluations are
    passes over all rows, and a run returns the one of the lowest criterion; else they cost nothing, and it returns its last good one.
    """

    is_exact: eqx.AbstractClassVar[bool]

    def divide(self, source: MemorySource, seed: Seed) -> Division:
        """Hold rows out, if the evaluator needs any."""
        return Division(source, None)

    @abc.abstractmethod
    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        """Steps and evaluations of a learner of mini-batches: as often as the cost of an evaluation allows."""

    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """The memory that its evaluations take."""
        return 0

    @abc.abstractmethod
    def evaluate(self, gp: AbstractGP, numbers: Numbers, division: Division) -> Any:
        """The evaluation of a state whose model is `gp`; `numbers` are those of the steps that led to it, none at θ₀."""

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

    def numbers(self) -> Numbers:
        gp: Any = self.gp
        return {"noise_variance": float(gp.noise_variance)} if hasattr(gp, "noise") else {}


class ByLoss(AbstractEvaluator):
    """Evaluations by the learner's own mean loss: no work that grows with the rows. A run returns its last good state.

    Settled: the mean loss of the last fifth of the evaluations differs from that of the fifth before by less than 0.01 nats per datum, or by
    less than twice its standard error.

    Parameters
    ----------
    trial_rates : tuple of float
        Learning rates that are tried for a learner without one, by the mean loss of the same batches; () = the learner's own.
    """

    is_exact: ClassVar[bool] = False
    trial_rates: tuple[float, ...] = ()

    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        return steps_by_stretches(n_rows, bytes_per_row, batch_size, epochs, default_steps)

    def evaluate(self, gp: AbstractGP, numbers: Numbers, division: Division) -> LossEvaluation:
        return LossEvaluation(gp, float(numbers.get("loss", np.nan)), float(numbers.get("loss_error", 0.0)))

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
