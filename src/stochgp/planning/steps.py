"""What is chosen for the user: how many epochs, how many steps between visits, which learning rates to try."""

from typing import NamedTuple

CHUNK_BYTES = 16_000_000  # of stacked batches on the device
FEWEST_STEPS_PER_VISIT = 100
FEWEST_FULL_STEPS_PER_VISIT = 20
LONGEST_CHUNK = 500
FEWEST_HELD_OUT = 10
ENOUGH_HELD_OUT = 100
RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class StepPlan(NamedTuple):
    """`total_steps` steps; a visit after every `steps_per_visit` of them; `chunk_steps` in one compiled scan."""

    batch_size: int
    steps_per_epoch: int
    total_steps: int
    steps_per_visit: int
    chunk_steps: int


def plan_steps(n_rows: int, bytes_per_row: int, batch_size: int | None, epochs: int | None) -> StepPlan:
    """A visit per epoch, or per 100 steps where epochs are shorter (20 for a full batch); chunks of at most 500 steps and 16 MB of batches.

    A batch larger than the data becomes all of it. Where chunks do not divide an epoch, up to one chunk's remainder of its steps is
    left out, so that one compiled scan serves all of them.
    """
    fewest = FEWEST_FULL_STEPS_PER_VISIT if batch_size is None else FEWEST_STEPS_PER_VISIT
    batch_size = n_rows if batch_size is None else min(batch_size, n_rows)
    per_epoch = max(1, n_rows // batch_size)
    epochs = default_epochs(per_epoch) if epochs is None else epochs
    total = epochs * per_epoch
    per_visit = min(total, per_epoch * -(-fewest // per_epoch))
    longest = min(LONGEST_CHUNK, max(1, CHUNK_BYTES // (batch_size * bytes_per_row)))
    n_chunks = -(-per_visit // longest)
    chunk = per_visit // n_chunks
    total = n_chunks * chunk * (total // per_visit) + total % per_visit
    return StepPlan(batch_size, per_epoch, total, n_chunks * chunk, chunk)


def default_epochs(steps_per_epoch: int) -> int:
    """40; fewer above 80,000 steps in all, but at least 5; more below 3,000 steps."""
    if steps_per_epoch * 40 < 3_000:
        return -(-3_000 // steps_per_epoch)
    return max(5, min(40, 80_000 // steps_per_epoch))


def held_out_rows(n_rows: int, fraction: float) -> int:
    """The `fraction` of the rows; where that is fewer than 100, up to 100 but at most a fifth of them; none if that is fewer than 10."""
    if fraction == 0:
        return 0
    n_held_out = max(round(n_rows * fraction), min(ENOUGH_HELD_OUT, n_rows // 5))
    return n_held_out if n_held_out >= FEWEST_HELD_OUT else 0


def trial_steps(plan: StepPlan) -> int:
    """Steps of one trial of a learning rate: a tenth of the run, 200 to 2,000 of them, in whole chunks."""
    wanted = min(max(plan.total_steps // 10, 200), 2_000, plan.total_steps)
    return max(1, wanted // plan.chunk_steps) * plan.chunk_steps
