"""Leave-one-out predictions of training rows, and the distribution of their errors."""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import AS_ASKED, too_few
from stochgp.context import OPTIONAL_SECONDS, FitContext
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError
from stochgp.families.starts import AUTO, fixed_df, name_of
from stochgp.learners.conditionals import N_NEIGHBOURS
from stochgp.neighbours import Neighbours, neighbours_bytes
from stochgp.numerics.seeds import random_rows
from stochgp.objectives.conditionals import Conditional, evaluate, is_small
from stochgp.observations import Dispersion
from stochgp.observations.error_distribution import GAUSSIAN, MIN_DF, SCALED, choose, fit
from stochgp.solvers.base import SMALL
from stochgp.tables.molecules import is_packed

SEED = 0
SOME = 100  # rows for an estimate of the noise
TYPICAL_ROWS = 1000
TYPICAL = 1.4826  # standard deviation of a Gaussian per median absolute deviation
LEAST_DF = 2.2  # with smaller ν, standard deviations depend on the lower limit of ν
ROWS = 65_536  # maximum number of left-out rows
BYTES_PER_NUMBER = 64  # bytes of trees per row and input


def predicted_by_others(
    gp: Any, source: MemorySource, X: Float[np.ndarray, "N D"], rows: Int[np.ndarray, " P"]
) -> Conditional:
    """Return predictions of `rows` from neighbours in other groups. X contains all inputs."""
    with jax.enable_x64(True):
        near = beside_others(gp, source, X, rows, N_NEIGHBOURS)
        return evaluate(gp, source, near, is_small(gp, source.on_host(rows[:SOME])))


def beside_others(
    gp: Any, source: MemorySource, X: Float[np.ndarray, "N D"], rows: Int[np.ndarray, " P"], k: int
) -> Int[np.ndarray, "P m"]:
    """Return at most k neighbours of each row in other groups, then the row itself."""
    near = Neighbours(X, gp.kernel).others(rows, min(k, source.size - 1), source.group)
    return np.concatenate([near, rows[:, None]], axis=1)


def search_bytes(gp: Any, data: TrainingData, n_rows: int) -> int:
    """Return the bytes of the search for neighbours and of the rows in float64."""
    N, D = data.n_rows, data.n_inputs
    return neighbours_bytes(gp.kernel, N, D, n_rows, N_NEIGHBOURS + 1) + 8 * N * D


def some_left_out(gp: Any, data: TrainingData, budget: Budget) -> Conditional | None:
    """Return predictions of 1,000 rows from neighbours; None for few rows, time or memory."""
    if data.n_rows <= SMALL or deadline.left() < OPTIONAL_SECONDS:
        return None
    if search_bytes(gp, data, TYPICAL_ROWS) > budget.free():
        return None
    source = data.source(False)
    return predicted_by_others(gp, source, source.inputs(), random_rows(data.n_rows, TYPICAL_ROWS, SEED))


def typical_error(near: Conditional) -> float:
    """Return 1.48 times the median absolute error: a standard deviation robust to heavy tails."""
    return TYPICAL * float(np.median(np.abs(near.z) * np.sqrt(near.variance)))


def error_distribution(
    likelihood: Any, posterior: Any, gp: Any, data: TrainingData, context: FitContext,
    held_out: Data | None = None,
) -> Dispersion | None:  # fmt: skip
    """Return the distribution of errors, or None for the Gaussian of the posterior.

    "auto" compares the log density of left-out rows under the Gaussian and under a Student-t distribution
    whose scale depends on the inputs. For some transforms, the mean of a Student-t may not exist; a Gaussian
    with input-dependent scale then replaces the Student-t. Without `held_out`, leave-one-out errors are used.

    Raises MemoryLimitError if the comparison needs too much memory.
    """
    name, why = name_of(likelihood), AS_ASKED
    chooses, heavy, packed = name == AUTO, name != SCALED, is_packed(data.encoder)
    R, D = min(data.n_rows, ROWS) if held_out is None else len(held_out), data.n_inputs
    searched = search_bytes(gp, data, R) if held_out is None and hasattr(gp, "kernel") else 8 * R * D
    need = searched + BYTES_PER_NUMBER * R * D
    if chooses:
        few = None if held_out is not None else too_few(data.n_rows, data.rows.group)
        refusal = context.refusal(
            "other distributions are not available for fingerprints" if packed else few, need
        )
    else:
        refusal = "there are fewer than two rows" if data.n_rows < 2 and name != GAUSSIAN else None
    if refusal is not None or name == GAUSSIAN:
        context.record("likelihood", GAUSSIAN, refusal or why)
        return None
    context.budget.require(need, "the distribution of left-out errors")
    dispersion = None
    try:
        with deadline.granted(-math.inf if chooses else math.inf):
            rows = _left_out(posterior, gp, data) if held_out is None else held_out
            if chooses:
                heavy = data.transform is None or data.transform.growth < MIN_DF
                preference, dispersion = choose(rows, SEED, heavy_tails=heavy)
                name, why = preference.name or GAUSSIAN, f"compared on left-out rows: {preference.why}"
            if name != GAUSSIAN and dispersion is None:
                scaled = isinstance(likelihood, str) and not packed
                dispersion = fit(rows, SEED, heavy_tails=heavy, scaled=scaled, df=fixed_df(likelihood))
    except TimeIsUpError:
        name, why = GAUSSIAN, "there was no time to compare distributions"
    context.record("likelihood", name, why)
    if dispersion is not None:
        context.report["error_scale"] = dispersion.factor  # factor of the variances of observations
        context.report["error_trees"] = 0 if dispersion.trees is None else len(dispersion.trees.leaves)
    if dispersion is not None and dispersion.df is not None:
        bound = (
            "; the value is near its lower limit, so standard deviations depend on this limit, but quantiles do not"
            if dispersion.df < LEAST_DF
            else ""
        )
        why = f"degrees of freedom of the Student-t distribution, estimated from left-out rows{bound}"
        context.record("df", dispersion.df, why)
    return dispersion


def _left_out(posterior: Any, gp: Any, data: TrainingData) -> Data:
    """Return random rows with leave-one-out errors, in standard deviations.

    If the posterior allows it, each row is predicted from all other rows (with groups: from other groups).
    Otherwise each row is predicted from neighbours, and the errors are scaled to a mean square of 1.
    """
    rows = random_rows(data.n_rows, ROWS, SEED)
    group, weight = (
        None if part is None else np.asarray(part)[rows] for part in (data.rows.group, data.rows.weight)
    )
    z = None
    if group is None or posterior.leaves_groups_out:
        noise = float(gp.noise_variance)
        every = Data(data.X, data.y, data.rows.weights, data.rows.group)
        z = posterior.errors_of_left_out(rows, every, noise)
    if z is not None:
        return Data(np.asarray(data.X[rows], np.float64), z, weight, group)
    source = data.source(False)
    X = source.inputs()
    z = np.asarray(predicted_by_others(gp, source, X, rows).z, np.float64)
    z = z / math.sqrt(max(float(np.average(np.square(z), weights=weight)), 1e-300))
    return Data(np.asarray(X[rows], np.float64), z, weight, group)
