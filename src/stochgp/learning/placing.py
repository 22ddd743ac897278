"""Memory of a run, the place of its rows, and the number of rows that there is time for."""

import math

import jax
from jax.sharding import Mesh

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.data.memory import MemorySource
from stochgp.deadline import Pace
from stochgp.learners.base import AbstractLearner
from stochgp.models import AbstractGP, FeatureGP
from stochgp.objectives.moments import add_up, chunk_rows

SHARE_FOR_ROWS = 0.25  # of what is free: standardised rows that fit are kept on the device
COMPILER_BYTES = 150_000_000  # left behind by compiling and running a learner
STEPS_COMPILER_BYTES = 350_000_000  # the same with steps and evaluations of features, and a margin
SHARE_OF_PASS = 0.1  # of the time that is left, for one of the passes over the rows of a feature GP
MIN_SECONDS = 1e-6  # of a piece that a clock can tell from none
MIN_ROWS = 200  # to learn from, if there is time for none


def place(
    learner: AbstractLearner,
    gp: AbstractGP,
    n_rows: int,
    n_inputs: int,
    itemsize: int,
    budget: Budget,
    mesh: Mesh | None = None,
) -> tuple[bool, int]:
    """(True if all rows are kept on the device, the bytes that the run takes on top of what is in use).

    Raises ValueError, with both numbers, if the run exceeds the limit.
    """
    need = STEPS_COMPILER_BYTES if gp.has_moments else COMPILER_BYTES
    need += learner.need_bytes(gp, n_rows, n_inputs)
    need += learner.evaluator_for(gp).need_bytes(gp, n_rows, n_inputs)
    if mesh is not None and isinstance(gp, FeatureGP):  # own sums of each device, and its rows, in one memory
        M = gp.n_features
        need += mesh.size * 8 * (3 * M**2 + 2 * chunk_rows(M) * (n_inputs + 2))
    rows = 2 * n_rows * itemsize * (n_inputs + 2)
    on_device = rows / 2 <= SHARE_FOR_ROWS * max(budget.free() - need, 0)
    need += rows if on_device else 0
    budget.require(need, f"learning from {n_rows} rows by {type(learner).__name__}")
    return on_device, need


def rows_in_time(learner: AbstractLearner, gp: AbstractGP, source: MemorySource) -> int:
    """The number of rows that there is time to learn from; all without a deadline. A pass of a feature GP is timed on some rows."""
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
