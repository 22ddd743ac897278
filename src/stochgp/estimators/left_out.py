"""Training rows predicted without themselves, from their neighbours."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int32

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.estimators.units import TrainingData
from stochgp.kernels.nearest import NearestRows, nearest_bytes
from stochgp.learners.conditionals import N_NEIGHBOURS
from stochgp.learners.sampling import host_inputs
from stochgp.objectives.conditionals import Conditional, evaluate, is_small
from stochgp.solvers.sizes import SMALL

SEED = 0
SOME = 100  # rows that tell how small the noise is
TYPICAL_ROWS = 1000
TYPICAL_SECONDS = 5.0
TYPICAL = 1.4826  # standard deviations of a Gaussian in its median absolute deviation


def some_rows(n_rows: int, most: int) -> Int32[np.ndarray, " P"]:
    """At most so many of the rows, at random, in their order."""
    return np.sort(np.random.default_rng(SEED).permutation(n_rows)[:most]).astype(np.int32)


def predicted_by_others(
    gp: Any, data: TrainingData, rows: Int32[np.ndarray, " P"]
) -> tuple[Float[np.ndarray, "P D"], Conditional]:
    """(The inputs of these rows, each given its neighbours among the rows of other groups)."""
    source = data.source(False)
    X = host_inputs(source)
    with jax.enable_x64(True):
        near = NearestRows(gp.kernel, X).others(rows, min(N_NEIGHBOURS, data.n_rows - 1), source.group)
        near = np.concatenate([near, rows[:, None]], axis=1)
        found = evaluate(gp, source, near, is_small(gp, source.take(rows[:SOME])))
    return np.asarray(X[rows], np.float64), found


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
    _, found = predicted_by_others(gp, data, some_rows(data.n_rows, TYPICAL_ROWS))
    return TYPICAL * float(np.median(np.abs(found.z) * np.sqrt(found.variance)))
