"""What one call of `fit` was given beside its data."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, PRNGKeyArray

from stochgp.budget import Budget
from stochgp.devices import ONE, Devices
from stochgp.learning.log import Report
from stochgp.learning.run import Going
from stochgp.numerics.seeds import key_of, random_rows, seed_of, split
from stochgp.storage.checkpoint import key_of_run
from stochgp.storage.writing import check_can_write

STARTING_BYTES = 130_000_000  # of the first programs that any fit compiles, before its own need is known


class Run(NamedTuple):
    """What one call of `fit` was given beside its data."""

    learn_key: PRNGKeyArray
    solve_key: PRNGKeyArray
    start_key: PRNGKeyArray
    budget: Budget
    checkpoint: str | os.PathLike | None
    callback: Callable[[dict[str, float]], object] | None
    devices: Devices = ONE

    @classmethod
    def of(cls, estimator: Any, checkpoint: Any, callback: Any, devices: Devices) -> "Run":
        """By the settings of the estimator. Raises ValueError where there is no memory to begin, and ValueError or OSError where no checkpoint can be written."""
        if checkpoint is not None:
            check_can_write(checkpoint)
        learn, solve, start = map(
            key_of, split(key_of_run(checkpoint if devices.is_writer else None, estimator.random_state), 3)
        )
        budget = Budget.of(estimator.memory_limit)
        budget.require(STARTING_BYTES, "to begin, a fit")
        return cls(learn, solve, start, budget, checkpoint, callback, devices)

    def going(self, report: Report, part: str) -> Going:
        """How learning goes on after its first run, with a checkpoint of that part beside the run's."""
        return Going(self.learn_key, report, self.beside(part), self.devices)

    def beside(self, part: str) -> str | None:
        """The file of that part beside the run's checkpoint."""
        return None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}.{part}"

    @property
    def may_choose(self) -> bool:
        """Whether a time limit may change what is done: not where a checkpoint may have to be resumed."""
        return self.checkpoint is None

    @property
    def sample_seed(self) -> int:
        """Of the sample of rows in files."""
        return seed_of(split(self.learn_key, 6)[5])[0]

    def some(self, n_rows: int, n_all: int) -> Int[np.ndarray, " n"]:
        """Random rows, in order."""
        seed = seed_of(split(self.learn_key, 5)[4])  # the learner has the words before it
        return random_rows(n_all, n_rows, seed).astype(np.int32)
