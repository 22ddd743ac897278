"""Plans of the steps of a run, and the evaluator that uses the loss of the steps.

An evaluation is a pytree with the fields `gp`, `criterion` and `error` (the criterion's standard error), and
with `numbers()` for the history. Lower criteria are better; after divergence, the criterion is not finite. If
`is_exact` is True, a run returns the evaluation with the lowest criterion, else the last good evaluation.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np

from stochgp.data.memory import MemorySource
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import packed

Seed = tuple[int, ...]
Numbers = dict[str, float]

SETTLED_BY = 0.01  # nats per datum: a run has settled if its loss changes by less
CHUNK_BYTES = 16_000_000  # maximum size of stacked batches on the device
FEWEST_STEPS_PER_EVALUATION = 100
LONGEST_CHUNK = 512
FEWEST_CHUNKS = 16  # minimum number of compiled scans in a run
FEWEST_EVALUATIONS, SHORTEST_STRETCH, LONGEST_STRETCH = 40, 64, 4096
FEWEST_HELD_OUT, ENOUGH_HELD_OUT = 5, 100
MOST_HELD_OUT = 30_000  # enough for an accurate mean density
FEW_ROWS = 400  # with fewer training rows, runs take fewer steps and evaluations are more robust
STEPS_PER_FEW_ROW = 3  # more steps on 60 to 300 rows gave standard deviations that were too small
HARDLY_ANY_ROWS = 20  # with fewer training rows, only the two variances can be learned
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # trials begin with the middle rate
MORE_STEPS, MOST_PATIENT_STEPS = 2.5, 20_000
LONGER, CYCLES = 3, 13  # three cycles of c, 3c and 9c steps have 13c steps
RATE_OF_FEW = 3e-2


class StepPlan(NamedTuple):
    """The numbers of steps in a run, between two evaluations, and in one compiled scan."""

    batch_size: int
    steps_per_epoch: int
    total_steps: int
    steps_per_evaluation: int
    chunk_steps: int = 1
    first_cycle: int = 0  # number of steps in the first cycle; 0 = the run is one cycle


Evaluator = Any  # ByLoss, or ByEvidence
Division = tuple[MemorySource, MemorySource | None]  # the training rows and the held-out rows


class LossEvaluation(NamedTuple):
    """The model, and the mean loss per datum of the last steps (NaN before the first step)."""

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
    """Evaluator that uses the mean loss of the learner's steps.

    A run returns its last state that has not diverged. Let d be the mean loss of the last fifth of the
    evaluations minus the mean loss of the fifth before it. The run has settled if |d| is below 0.01 nats per
    datum or below two standard errors of d.

    Parameters
    ----------
    trial_rates : tuple of float
        Learning rates that short trials compare if the learner sets no rate. By default, there are no trials.
    """

    is_exact: ClassVar[bool] = False
    trial_rates: tuple[float, ...] = ()

    def divide(self, source: MemorySource, seed: Seed) -> Division:
        """Return all rows for training, and None for held-out rows."""
        return source, None

    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        """Return the plan of a mini-batch learner, with 64 to 4,096 steps per evaluation."""
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
        return 0

    def evaluate(self, gp: AbstractGP, numbers: Numbers, division: Division) -> LossEvaluation:
        """Return the evaluation of `gp` with the mean metrics `numbers` of the last steps."""
        return LossEvaluation(gp, float(numbers.get("loss", np.nan)), float(numbers.get("loss_error", 0.0)))

    def rates(self, n_rows: int) -> tuple[float, ...]:
        """Return the rates to try if the learner sets no rate; () = the learner's default."""
        return self.trial_rates

    def settled(self, history: list[Numbers]) -> bool:
        """Return True if the loss of a completed run no longer changed."""
        losses = np.array([e["loss"] for e in history if "loss" in e and not e["recovered"]])
        n = len(losses) // 5 if len(losses) >= 10 else 1
        if len(losses) < 2:
            return False
        before, last = losses[-2 * n : -n], losses[-n:]
        error = np.sqrt((np.var(before) + np.var(last)) / max(n - 1, 1))
        return bool(abs(np.mean(before) - np.mean(last)) < max(SETTLED_BY, 2 * error))

    def finalize(self, at: LossEvaluation, division: Division) -> tuple[AbstractGP, None]:
        """Return the final model, and None in place of exact evidence."""
        return at.gp, None


def steps_by_epochs(n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None) -> StepPlan:
    """Return a plan with evaluations at the end of epochs, at least 100 steps apart."""
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
    """Return the default number of epochs: 40, with limits on the number of steps."""
    fewest = min(max(1_500, 100 * steps_per_epoch), 3_000)
    if steps_per_epoch * 40 < fewest:
        return -(-fewest // steps_per_epoch)
    return max(5, min(40, 80_000 // steps_per_epoch))


def few_epochs(n_rows: int, batch_size: int) -> int | None:
    """Return the epochs of about 3N steps for 20 to 399 rows, 1 for fewer, None for more rows."""
    if n_rows < HARDLY_ANY_ROWS:
        return 1
    per_epoch = max(1, n_rows // min(batch_size, n_rows))
    return -(-STEPS_PER_FEW_ROW * n_rows // per_epoch) if n_rows < FEW_ROWS else None


def held_out_rows(n_rows: int, fraction: float) -> int:
    """Return the number max(min(fraction · N, 30,000), min(100, N/3)), or 0 if it is below 5."""
    if fraction == 0:
        return 0
    n_held_out = max(min(round(n_rows * fraction), MOST_HELD_OUT), min(ENOUGH_HELD_OUT, n_rows // 3))
    return n_held_out if n_held_out >= FEWEST_HELD_OUT else 0


def trial_steps(plan: StepPlan) -> int:
    """Return the number of steps in a trial: 1/16 of the run, between 100 and 1,000."""
    asked = min(max(plan.total_steps // 16, 100), 1_000, plan.total_steps)
    return max(1, round(asked / plan.chunk_steps)) * plan.chunk_steps


def in_cycles(plan: StepPlan) -> StepPlan:
    """Return the plan with three cycles of c, 3c and 9c steps.

    For N training rows and T = `plan.total_steps`, 13c is max(T, min(2.5 T, 20,000, N)), rounded to scans.
    """
    rows = plan.batch_size * plan.steps_per_epoch
    asked = max(plan.total_steps, min(round(MORE_STEPS * plan.total_steps), MOST_PATIENT_STEPS, rows))
    first = max(1, round(asked / CYCLES / plan.chunk_steps)) * plan.chunk_steps
    return plan._replace(total_steps=CYCLES * first, first_cycle=first)
