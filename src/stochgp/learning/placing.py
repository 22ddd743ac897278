"""Where the rows of a run lie, what the run takes of memory, and from how many rows it has time to learn."""

import math
from typing import NamedTuple

import jax

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.data.streams import AbstractSource
from stochgp.deadline import Pace
from stochgp.devices import ONE, Devices
from stochgp.learning.base import AbstractLearner
from stochgp.learning.fit import judge_of
from stochgp.models import AbstractGP, FeatureGP
from stochgp.objectives.moments import add_up, chunk_rows

SHARE_FOR_ROWS = 0.25  # of what is free: standardised rows that fit are kept on the device
COMPILER_BYTES = 150_000_000  # what compiling and running a learner leaves behind
STEPS_COMPILER_BYTES = (
    350_000_000  # the same where steps and evaluations of features are compiled, and a margin
)
SHARE_OF_PASS = 0.1  # of the time that is left, for one of the passes over the rows of a feature GP
SHORTEST = 1e-6  # seconds of a piece that a clock can tell from none
FEWEST_ROWS = 200  # to learn from, where there is time for none


class Placement(NamedTuple):
    """How a run uses memory. Bytes are on top of what is in use."""

    learner: AbstractLearner  # within the memory that is free
    on_device: bool  # whether all rows lie there
    need: int  # bytes that the run takes


def place(
    learner: AbstractLearner,
    gp: AbstractGP,
    n_rows: int,
    n_inputs: int,
    itemsize: int,
    budget: Budget,
    devices: Devices = ONE,
) -> Placement:
    """The learner within the memory limit, where the rows lie, and what the run needs.

    Raises ValueError, with both numbers, where the run exceeds the limit.
    """
    compiler = STEPS_COMPILER_BYTES if gp.has_moments else COMPILER_BYTES
    free = int(devices.least(max(budget.free() - compiler, 0)))
    learner = learner.within(gp, n_rows, n_inputs, free)
    evaluations = judge_of(learner, gp).need_bytes(gp, n_rows, n_inputs)
    need = (
        compiler
        + learner.need_bytes(gp, n_rows, n_inputs)
        + evaluations
        + shared_bytes(gp, n_inputs, devices)
    )
    rows = 2 * n_rows * itemsize * (n_inputs + 2)
    on_device = rows / 2 <= SHARE_FOR_ROWS * max(devices.least(budget.free()) - need, 0)
    need += rows if on_device else 0
    budget.require(need, f"learning from {n_rows} rows by {type(learner).__name__}")
    return Placement(learner, on_device, need)


def shared_bytes(gp: AbstractGP, n_inputs: int, devices: Devices) -> int:
    """What passes over the rows take on several devices beyond those on one: sums of each virtual shard, here and on the host, and its rows."""
    if devices.mesh is None or not isinstance(gp, FeatureGP):
        return 0
    M, shards = gp.n_features, devices.shards
    return 3 * shards * 8 * M**2 + 2 * shards * chunk_rows(M) * 8 * (n_inputs + 2)


def rows_in_time(learner: AbstractLearner, gp: AbstractGP, source: AbstractSource) -> int:
    """From how many of the rows there is time to learn: all of them without a deadline. A pass of a feature GP is timed on some rows."""
    seconds = deadline.left()
    if not seconds < math.inf:
        return source.size
    rows = learner.rows_within(gp, source.size, source.n_inputs, seconds)
    if isinstance(gp, FeatureGP):
        size, pace = min(chunk_rows(gp.n_features), source.size), Pace()
        for _ in range(2):
            with pace.piece():
                jax.block_until_ready(add_up(gp, [next(source.chunks(size))]))
        rows = min(rows, int(SHARE_OF_PASS * max(deadline.left(), 0.0) / max(pace.expected, SHORTEST) * size))
    return min(source.size, max(rows, FEWEST_ROWS))
