"""The function `fit`, which runs any learner, and its requirements of memory and time."""

import math
import os
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.data.memory import MemorySource
from stochgp.deadline import Pace, within
from stochgp.learners.base import AbstractLearner
from stochgp.learning.run import Report, Run
from stochgp.models import AbstractGP, FeatureGP
from stochgp.objectives.moments import add_up, chunk_rows
from stochgp.results import RESULTS, FitResult
from stochgp.sharding import together

SHARE_FOR_ROWS = 0.25  # maximum share of free memory for rows that stay on the device
COMPILER_BYTES = 150_000_000  # memory that remains in use after compilation
STEPS_COMPILER_BYTES = 350_000_000  # the same memory for a feature GP, with a margin
SHARE_OF_PASS = 0.1  # maximum share of the remaining time for a pass over the rows of a feature GP
MIN_SECONDS = 1e-6  # shortest time that a clock can measure
MIN_ROWS = 200  # number of rows for learning if there is no time for more
DONE = (RESULTS.successful, RESULTS.not_settled)


def fit(
    learner: AbstractLearner,
    gp: AbstractGP,
    source: MemorySource,
    *,
    key: PRNGKeyArray,
    progress: Report | None = None,
    checkpoint: str | os.PathLike | None = None,
    time_limit: float | None = None,
    prior: AbstractGP | None = None,
) -> FitResult:
    """Learn the parameters θ of `gp` from the rows of `source`.

    The learner's evaluator computes a criterion after each block of steps. The run has diverged if the
    criterion is not finite, or more than 1 nat per datum above its lowest value. Then the run continues from
    the best state with 0.3 times the learning rate. This happens at most 6 times.

    Raises CheckpointError (a ValueError) if the checkpoint is damaged or belongs to another run.

    Parameters
    ----------
    learner, gp : AbstractLearner, AbstractGP
        The learner, and the model with the parameters at the start of the run.
    source : MemorySource
        All rows. The evaluator may hold out some of them.
    key : JAX key
        The key of all random numbers.
    progress : function or None
        A function that receives every entry of the history. If the function returns True, the run ends.
    checkpoint : path or None
        The path of a checkpoint file. If the file exists, the run resumes with the same result.
    time_limit : float or None
        The time limit in seconds. At this limit or after Ctrl-C, the run ends with its current result.
    prior : AbstractGP or None
        The model whose parameters are the centre of the learner's prior; None = `gp`.
    """
    with jax.enable_x64(True), together(source.mesh), within(time_limit):
        return Run(learner, gp, source, key, progress, prior).result(checkpoint)


def continued(
    first: FitResult, gp: AbstractGP, learner: AbstractLearner, source: MemorySource,
    *, progress: Report | None = None, **options: Any,
) -> FitResult:  # fmt: skip
    """Continue the run `first` with another model and learner, and join their histories.

    `options` are options of `fit`. If `key` is the key of `first`, the same rows are held out.
    """
    later = lambda entry: entry | {"step": entry["step"] + first.n_iter, "stage": 1.0}
    report = None if progress is None else lambda entry: progress(later(entry))
    second = fit(learner, gp, source, progress=report, **options)
    history = [*first.history, *map(later, second.history)]
    n_iter, seconds = first.n_iter + second.n_iter, first.seconds + second.seconds
    return second._replace(n_iter=n_iter, history=history, seconds=seconds, plan=first.plan)


def place(
    learner: AbstractLearner, gp: AbstractGP, n_rows: int, n_inputs: int, itemsize: int,
    budget: Budget, mesh: Mesh | None = None,
) -> tuple[bool, int]:  # fmt: skip
    """Return True if all rows fit on the device, and the peak bytes of the run.

    Raises ValueError if the run needs more memory than the limit.
    """
    need = STEPS_COMPILER_BYTES if gp.has_moments else COMPILER_BYTES
    need += learner.peak_bytes(gp, n_rows, n_inputs)
    need += learner.evaluator_for(gp).peak_bytes(gp, n_rows, n_inputs)
    if mesh is not None and isinstance(gp, FeatureGP):  # gather sums and rows in one memory
        M = gp.n_features
        need += mesh.size * 8 * (3 * M**2 + 2 * chunk_rows(M) * (n_inputs + 2))
    rows = 2 * n_rows * itemsize * (n_inputs + 2)
    on_device = rows / 2 <= SHARE_FOR_ROWS * max(budget.free() - need, 0)
    need += rows if on_device else 0
    budget.require(need, f"learning from {n_rows} rows with {type(learner).__name__}")
    return on_device, need


def rows_in_time(learner: AbstractLearner, gp: AbstractGP, source: MemorySource) -> int:
    """Return the number of rows for which there is time; all rows without a deadline."""
    seconds = deadline.left()
    if not seconds < math.inf:
        return source.size
    rows = learner.rows_within(gp, source.size, source.n_inputs, seconds)
    if isinstance(gp, FeatureGP):
        size, pace = min(chunk_rows(gp.n_features), source.size), Pace()
        for _ in range(2):
            with pace.piece():
                jax.block_until_ready(add_up(gp, [next(source.blocks(size))]))
        share = SHARE_OF_PASS * max(deadline.left(), 0.0)
        rows = min(rows, int(share / max(pace.expected, MIN_SECONDS) * size))
    return min(source.size, max(rows, MIN_ROWS))
