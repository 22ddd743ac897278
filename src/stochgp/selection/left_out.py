"""Training rows predicted without themselves, from their neighbours."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int32

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.data.streams import AbstractSource
from stochgp.kernels.nearest import NearestRows, nearest_bytes
from stochgp.learners.conditionals import N_NEIGHBOURS
from stochgp.learning.sampling import host_inputs
from stochgp.numerics.seeds import random_rows
from stochgp.objectives.conditionals import Conditional, evaluate, is_small
from stochgp.solvers.sizes import SMALL
from stochgp.training_data.units import TrainingData

SEED = 0
SOME = 100  # rows that tell how small the noise is
TYPICAL_ROWS = 1000
TYPICAL_SECONDS = 5.0
TYPICAL = 1.4826  # standard deviations of a Gaussian in its median absolute deviation


def some_rows(n_rows: int, most: int) -> Int32[np.ndarray, " P"]:
    """Those that are left out, at most so many."""
    return random_rows(n_rows, most, SEED).astype(np.int32)


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
    near = NearestRows(gp.kernel, X).others(rows, min(k, source.size - 1), source.group)
    return np.concatenate([near, rows[:, None]], axis=1)


def search_bytes(gp: Any, data: TrainingData, n_rows: int) -> int:
    """Of the rows in float64 and the search of neighbours."""
    N, D = data.n_rows, data.n_inputs
    return nearest_bytes(gp.kernel, N, D, n_rows, N_NEIGHBOURS + 1) + 8 * N * D


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
