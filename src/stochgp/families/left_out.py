"""Training rows predicted without themselves, from their neighbours."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, Int32

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import Preference, prefer
from stochgp.data.streams import AbstractSource
from stochgp.data.training import TrainingData
from stochgp.learners.conditionals import N_NEIGHBOURS
from stochgp.learners.sampling import host_inputs
from stochgp.neighbours import Neighbours, neighbours_bytes
from stochgp.numerics.clustered import clusters
from stochgp.numerics.seeds import random_rows
from stochgp.objectives.conditionals import Conditional, evaluate, is_small
from stochgp.solvers.sizes import SMALL

Scores = Float[np.ndarray, " R"]
SEED = 0
OVERHEAD = 5.0  # seconds of compiling for another learner, or another kind of kernel
SOME = 100  # rows that tell how small the noise is
TYPICAL_ROWS = 1000
TYPICAL_SECONDS = 5.0
TYPICAL = 1.4826  # standard deviations of a Gaussian in its median absolute deviation


def some_rows(n_rows: int, most: int) -> Int32[np.ndarray, " P"]:
    """Those that are left out, at most so many."""
    return random_rows(n_rows, most, SEED).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class JudgingRows:
    """Training rows that say which of two models is the better: each is predicted from its neighbours."""

    source: AbstractSource
    X: Float[np.ndarray, "N D"]  # of all rows
    rows: Int32[np.ndarray, " R"]
    cells: Int[np.ndarray, " R"]  # whose scores may have much in common
    weight: Float[np.ndarray, " R"]

    @classmethod
    def of(cls, source: AbstractSource, rows: Int32[np.ndarray, " R"]) -> "JudgingRows":
        X, group = host_inputs(source), None if source.group is None else source.group[rows]
        weight = np.asarray(source.on_host(rows).weight, np.float64)
        return cls(source, X, rows, clusters(X[rows], group), weight)

    def predicted(self, gp: Any) -> Conditional:
        """By this model."""
        return predicted_by_others(gp, self.source, self.X, self.rows)

    def preferred(self, old: Scores, new: Scores, name: str) -> Preference:
        """Whether the log densities `new`, of the rival of that name, are to be preferred to `old`."""
        return prefer(old, {name: new}, self.cells, self.weight)


def predicted_by_others(
    gp: Any, source: AbstractSource, X: Float[np.ndarray, "N D"], rows: Int32[np.ndarray, " P"]
) -> Conditional:
    """These rows, each given its neighbours among the rows of other groups. X are the inputs of all (`host_inputs`)."""
    with jax.enable_x64(True):
        near = beside_others(gp, source, X, rows, N_NEIGHBOURS)
        return evaluate(gp, source, near, is_small(gp, source.take(rows[:SOME])))


def beside_others(
    gp: Any, source: AbstractSource, X: Float[np.ndarray, "N D"], rows: Int32[np.ndarray, " P"], k: int
) -> Int32[np.ndarray, "P m"]:
    """At most k neighbours of each of these rows, of other groups, and then the row itself."""
    near = Neighbours(X, gp.kernel).others(rows, min(k, source.size - 1), source.group)
    return np.concatenate([near, rows[:, None]], axis=1)


def search_bytes(gp: Any, data: TrainingData, n_rows: int) -> int:
    """Of the rows in float64 and the search of neighbours."""
    N, D = data.n_rows, data.n_inputs
    return neighbours_bytes(gp.kernel, N, D, n_rows, N_NEIGHBOURS + 1) + 8 * N * D


def typical_error(gp: Any, data: TrainingData, budget: Budget) -> float | None:
    """1.48 median |y_i − m_i| over 1,000 rows, each predicted from its neighbours; None where rows are few, or time or memory short.

    Where tails are heavy it is far below the root-mean-square.
    """
    if data.n_rows <= SMALL or deadline.left() < 2 * TYPICAL_SECONDS:
        return None
    if search_bytes(gp, data, TYPICAL_ROWS) > budget.free():
        return None
    source = data.source(False)
    found = predicted_by_others(gp, source, host_inputs(source), some_rows(data.n_rows, TYPICAL_ROWS))
    return TYPICAL * float(np.median(np.abs(found.z) * np.sqrt(found.variance)))
