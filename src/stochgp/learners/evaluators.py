"""The plan of a run's steps, and evaluations of its states using the loss of its steps.

An evaluation is a pytree, so that checkpoints can hold it, with `gp`, `criterion` (nats per datum, lower is better; not finite if the run has diverged), `error`
(the criterion's standard error, 0 if it is exact) and `numbers()` for the history. If `is_exact`, evaluations are passes over all rows, and a run returns the
one of the lowest criterion. Otherwise they cost nothing, and it returns its last good one.

Numbers of steps in one compiled scan are powers of two, so that runs of many sizes share compiled code.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np

from stochgp.data.memory import MemorySource
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import packed

Seed = tuple[int, ...]
Numbers = dict[str, float]

SETTLED_BY = 0.01  # nats per datum
CHUNK_BYTES = 16_000_000  # of stacked batches on the device
FEWEST_STEPS_PER_EVALUATION = 100
LONGEST_CHUNK = 512
FEWEST_CHUNKS = 16  # of a run: steps are rounded to whole chunks
FEWEST_EVALUATIONS, SHORTEST_STRETCH, LONGEST_STRETCH = 40, 64, 4096
FEWEST_HELD_OUT, ENOUGH_HELD_OUT = 5, 100
MOST_HELD_OUT = 30_000  # enough for a mean density; each row holds its features in float64
FEW_ROWS = 400  # with fewer training rows, fewer steps are taken and evaluations use more care
STEPS_PER_FEW_ROW = 3  # with more, 60 to 300 rows predicted no better, with too small standard deviations
HARDLY_ANY_ROWS = 20  # fewer training rows determine at most the two variances, and no features
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # the middle one is tried first
MORE_STEPS, MOST_PATIENT_STEPS = 2.5, 20_000
LONGER, CYCLES = 3, 13  # growth of a cycle over the one before; 1 + 3 + 9 first cycles in all
RATE_OF_FEW = 3e-2


class StepPlan(NamedTuple):
    """Numbers of steps: in all, between two evaluations, and in one compiled scan (a chunk)."""

    batch_size: int
    steps_per_epoch: int
    total_steps: int
    steps_per_evaluation: int
    chunk_steps: int = 1
    first_cycle: int = 0  # steps of the first cycle, more follow while they pay; 0 = one cycle


Evaluator = Any  # ByLoss, or ByEvidence
Division = tuple[MemorySource, MemorySource | None]  # the training rows, and those held out for evaluations


class LossEvaluation(NamedTuple):
    """The model, and the average loss per datum of the last steps (NaN before the first step)."""

    gp: AbstractGP
    loss: float
    error: float = 0.0

    @property
    def criterion(self) -> float:
        return self.loss if np.isfinite(packed(self.gp)).all() else np.nan

    def numbers(self) -> Numbers:
        gp: Any = self.gp
        return {"noise_variance": float(gp.noise_variance)} if hasattr(gp, "noise") else {}


class ByLoss(eqx.Module):
    """Evaluations with the mean loss of the learner's own steps.

    A run returns its last good state. It has settled if the mean losses of the last two fifths of the evaluations differ by less than 0.01 nats per datum, or by less than two
    standard errors.

    Parameters
    ----------
    trial_rates : tuple of float
        Learning rates to try if the learner has none. They are compared on the same batches; () = the learner's default.
    """

    is_exact: ClassVar[bool] = False
    trial_rates: tuple[float, ...] = ()

    def divide(self, source: MemorySource, seed: Seed) -> Division:
        """Return the training rows and, if the evaluator needs them, held-out rows."""
        return source, None

    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        """Plan the steps of a mini-batch learner, with at least 40 evaluations, one per 64 to 4,096 steps."""
        batch_size = min(batch_size, n_rows)
        per_epoch = max(1, n_rows // batch_size)
        steps = default_steps if epochs is None else epochs * per_epoch
        if steps < SHORTEST_STRETCH:
            return StepPlan(batch_size, per_epoch, steps, steps, steps)
        longest = power_of_two(max(LONGEST_STRETCH // max(1, batch_size // 16) ** 2, SHORTEST_STRETCH))
        stretch = min(max(power_of_two(steps // FEWEST_EVALUATIONS), SHORTEST_STRETCH), longest)
        chunk = min(stretch, power_of_two(CHUNK_BYTES // (batch_size * bytes_per_row)))
        return StepPlan(batch_size, per_epoch, round(steps / stretch) * stretch, stretch, chunk)

    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """Return the memory of evaluations."""
        return 0

    def evaluate(self, gp: AbstractGP, numbers: Numbers, division: Division) -> LossEvaluation:
        """Evaluate a state with model `gp` and the `numbers` of the last steps (none at first)."""
        return LossEvaluation(gp, float(numbers.get("loss", np.nan)), float(numbers.get("loss_error", 0.0)))

    def rates(self, n_rows: int) -> tuple[float, ...]:
        """Learning rates to try if the learner has none; () = its default. One needs no trial."""
        return self.trial_rates

    def settled(self, history: list[Numbers]) -> bool:
        """Return True if a run that has taken all its steps was no longer moving."""
        losses = np.array([e["loss"] for e in history if "loss" in e and not e["recovered"]])
        n = len(losses) // 5 if len(losses) >= 10 else 1
        if len(losses) < 2:
            return False
        before, last = losses[-2 * n : -n], losses[-n:]
        error = np.sqrt((np.var(before) + np.var(last)) / max(n - 1, 1))
        return bool(abs(np.mean(before) - np.mean(last)) < max(SETTLED_BY, 2 * error))

    def finalize(self, at: LossEvaluation, division: Division) -> tuple[AbstractGP, None]:
        """Return the final model, and None for the exact evidence of all rows."""
        return at.gp, None


def steps_by_epochs(n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None) -> StepPlan:
    """Return a plan for evaluations on all rows: one per epoch, or one per 100 steps.

    A batch has at most all rows, a chunk at most 512 steps and 16 MB of batches. The number of steps is rounded to whole chunks, by at most 3 %.
    """
    batch_size = min(batch_size, n_rows)
    per_epoch = max(1, n_rows // batch_size)
    asked = per_epoch * (default_epochs(per_epoch) if epochs is None else epochs)
    per_evaluation = min(asked, per_epoch * -(-FEWEST_STEPS_PER_EVALUATION // per_epoch))
    fitting = CHUNK_BYTES // (batch_size * bytes_per_row)
    chunk = power_of_two(min(LONGEST_CHUNK, fitting, per_evaluation, max(1, asked // FEWEST_CHUNKS)))
    n_chunks, n_evaluations = round(asked / chunk), max(1, round(asked / per_evaluation))
    return StepPlan(batch_size, per_epoch, n_chunks * chunk, -(-n_chunks // n_evaluations) * chunk, chunk)


def power_of_two(n: int) -> int:
    """Return the largest power of two that is at most max(n, 1)."""
    return 1 << (max(n, 1).bit_length() - 1)


def default_epochs(steps_per_epoch: int) -> int:
    """Return 40 epochs, or fewer (at least 5) if that exceeds 80,000 steps.

    Small data sets get more: 100 steps for each step of an epoch, between 1,500 and 3,000 steps.
    """
    fewest = min(max(1_500, 100 * steps_per_epoch), 3_000)
    if steps_per_epoch * 40 < fewest:
        return -(-fewest // steps_per_epoch)
    return max(5, min(40, 80_000 // steps_per_epoch))


def few_epochs(n_rows: int, batch_size: int) -> int | None:
    """Return the epochs of about 3N steps for N < 400 rows, 1 epoch for N < 20, else None."""
    if n_rows < HARDLY_ANY_ROWS:
        return 1
    per_epoch = max(1, n_rows // min(batch_size, n_rows))
    return -(-STEPS_PER_FEW_ROW * n_rows // per_epoch) if n_rows < FEW_ROWS else None


def held_out_rows(n_rows: int, fraction: float) -> int:
    """Return the number of held-out rows, max(min(fraction · N, 30,000), min(100, N/3)); 0 if below 5."""
    if fraction == 0:
        return 0
    n_held_out = max(min(round(n_rows * fraction), MOST_HELD_OUT), min(ENOUGH_HELD_OUT, n_rows // 3))
    return n_held_out if n_held_out >= FEWEST_HELD_OUT else 0


def trial_steps(plan: StepPlan) -> int:
    """Return the steps of a trial: 1/16 of the run's, from 100 to 1,000. Shorter trials would prefer large rates."""
    asked = min(max(plan.total_steps // 16, 100), 1_000, plan.total_steps)
    return max(1, round(asked / plan.chunk_steps)) * plan.chunk_steps


def in_cycles(plan: StepPlan) -> StepPlan:
    """Return the plan in cycles of c, 3c, 9c steps, 13c = max(T, min(2.5 T, 20,000, N))."""
    rows = plan.batch_size * plan.steps_per_epoch
    asked = max(plan.total_steps, min(round(MORE_STEPS * plan.total_steps), MOST_PATIENT_STEPS, rows))
    first = max(1, round(asked / CYCLES / plan.chunk_steps)) * plan.chunk_steps
    return plan._replace(total_steps=CYCLES * first, first_cycle=first)
