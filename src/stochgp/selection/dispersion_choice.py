"""likelihood="auto": the distribution of observations around their predictions, from training rows that are left out."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import AS_ASKED, choice, too_few
from stochgp.data.rows import Rows
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import SplineCurve
from stochgp.families.left_out import SEED, predicted_by_others, search_bytes, some_rows
from stochgp.families.likelihoods import AUTO, KERNEL, Asked, df_entries, starting_noise
from stochgp.learning.sampling import host_inputs
from stochgp.likelihoods import AbstractNoise, constant_noise
from stochgp.objectives.dispersion import LEAST_DF
from stochgp.observations import Dispersion
from stochgp.parameters import frozen, value_of
from stochgp.selection.curves import CURVED, chosen_curve
from stochgp.selection.dispersion import GAUSSIAN, LeftOut, choose, fitted, split
from stochgp.training_data.run import Run

AS_BEFORE = "as an earlier fit chose"
ROWS = 65_536  # left out: half as many lost 0.01 nats on the flights, twice as many gained 0.001
TYPICAL_SECONDS, SECONDS_PER_NUMBER = 4.0, 2e-5  # to choose, compilation included; for each input of each row
BYTES_PER_NUMBER = 64  # of trees, for each input of each row


def start_noise(asked: Asked, given: float | None, spread: float, dtype: str) -> AbstractNoise:
    """The noise of a likelihood; or the variance given, which nothing trains; or `starting_noise`.

    Raises ValueError for a variance that the dtype cannot hold, and where both are given.
    """
    if asked.noise is not None:
        if given is not None:
            raise ValueError(
                "noise_variance and the noise of likelihood are both given: leave one of them out"
            )
        return asked.noise
    if given is None:
        return starting_noise(KERNEL, spread, dtype)
    kind = jnp.dtype(dtype)
    if float(jnp.finfo(kind).tiny) <= given <= float(jnp.finfo(kind).max):
        return constant_noise(frozen(np.asarray(given, kind)))
    raise ValueError(f"noise_variance is {given!r}, which {dtype} cannot hold")


def dispersion_of(
    asked: Asked, posterior: Any, gp: Any, data: TrainingData, run: Run
) -> tuple[Dispersion | None, dict[str, Any]]:
    """(How errors are distributed, as asked for, or as chosen for "auto"; what `plan_` says of it). None = N(m, V) as the posterior has it.

    "auto" chooses by left-out rows. It also recalibrates probabilities where these rows clearly gain by it (`chosen_curve`), but only where they
    are predicted as the posterior predicts new rows. On pol, where neighbours stood in for all rows, recalibration made the density of test rows
    0.04 nats worse. Of transformed targets it compares Student-t errors only where the mean of T⁻¹(z) is sure to exist: not for logarithms.

    Raises ValueError, with both numbers, for a choice by the user that the memory does not allow.
    """
    why = AS_BEFORE if asked.again else AS_ASKED
    if asked.name == GAUSSIAN and not asked.curved:
        return _constant(why)
    chooses = asked.name == AUTO
    refusal = (
        _refusal(gp, data, run.budget) if chooses else "there are no others" if data.n_rows < 2 else None
    )
    if refusal is not None:
        return _constant(refusal)
    run.budget.require(_need_bytes(gp, data), "the distribution of left-out errors")
    try:
        with deadline.granted(-math.inf if chooses else math.inf):
            rows, as_new = _left_out(posterior, gp, data)
    except TimeIsUpError:
        return _constant("the fit was ended before another was chosen")
    if chooses:
        return _chosen(rows, as_new, data)
    dispersion, others = _fitted(asked.name, rows, asked.df)
    curve = SplineCurve.of(_probabilities(dispersion, others), others.weight) if asked.curved else None
    return _with_curve(asked.name, dispersion, curve, why)


def _chosen(rows: LeftOut, as_new: bool, data: TrainingData) -> tuple[Dispersion | None, dict[str, Any]]:
    """What these rows choose, with a correction of its probabilities only where they are predicted `as_new` rows are."""
    heavy = data.transform is None or data.transform.growth < LEAST_DF
    found = choose(rows, SEED, heavy_tails=heavy)
    name, why, curve = found.name or GAUSSIAN, f"by left-out rows: {found.why}", None
    dispersion, others = _fitted(name, rows, None)
    if found.name is not None and as_new:
        u = _probabilities(dispersion, others)
        curve, more = chosen_curve(u, others.cells(), SEED, weight=others.weight)
        why = f"{why}; its probabilities: {more}"
    return _with_curve(name, dispersion, curve, why)


def _constant(why: str) -> tuple[None, dict[str, Any]]:
    return None, {"likelihood": choice(GAUSSIAN, why)}


def _fitted(name: str, rows: LeftOut, df: float | None) -> tuple[Dispersion, LeftOut]:
    """(The dispersion, the rows that no tree was fitted to): three quarters fit trees, the last stops them; the constant Gaussian stays as it is."""
    if name == GAUSSIAN:
        return Dispersion(), rows
    part = split(rows, SEED)
    most, last = (rows.some(np.flatnonzero(where)) for where in (part != 0, part == 0))
    dispersion = fitted(name, most, last, SEED, df=df)
    return dispersion, rows if dispersion.trees is None else last


def _probabilities(dispersion: Dispersion, rows: LeftOut) -> Float[np.ndarray, " R"]:
    """F(y) of each row."""
    return dispersion.probability(rows.z * np.exp(-dispersion.log_scale(rows.X) / 2))


def _with_curve(
    name: str, dispersion: Dispersion, curve: SplineCurve | None, why: str
) -> tuple[Dispersion | None, dict[str, Any]]:
    """(The dispersion with that correction, None where it changes nothing; what `plan_` says of it)."""
    if curve is None and name == GAUSSIAN:
        return _constant(why)
    found = choice(name if curve is None else name + CURVED, why)
    return dataclasses.replace(dispersion, curve=curve), {"likelihood": found} | _entries(dispersion)


def _refusal(gp: Any, data: TrainingData, budget: Budget) -> str | None:
    """Why nothing is compared with constant Gaussian noise, where that is so."""
    if few := too_few(data.n_rows, data.rows.group):
        return few
    numbers = min(data.n_rows, ROWS) * data.n_inputs
    if deadline.left() < TYPICAL_SECONDS + SECONDS_PER_NUMBER * numbers:
        return "there was no time to choose another"
    if _need_bytes(gp, data) > budget.free():
        return "there was no memory to choose another"
    return None


def _need_bytes(gp: Any, data: TrainingData) -> int:
    """Of the rows in float64, the search of neighbours where there is a kernel, and trees."""
    R = min(data.n_rows, ROWS)
    search = search_bytes(gp, data, R) if hasattr(gp, "kernel") else 8 * R * data.n_inputs
    return search + BYTES_PER_NUMBER * R * data.n_inputs


def _left_out(posterior: Any, gp: Any, data: TrainingData) -> tuple[LeftOut, bool]:
    """(Random rows, whether they are predicted as that posterior predicts new ones).

    From all others where it knows its Q_ii and there are no groups, from their nearest ones where it is local; else from neighbours that stand in
    for all rows, with z² of mean 1, rows weighing ρ, as calibrated variances have.
    """
    rows = some_rows(data.n_rows, int(min(ROWS, posterior.most_left_out)))
    group, weight = (
        None if part is None else np.asarray(part)[rows] for part in (data.rows.group, data.rows.weight)
    )
    z = None
    if group is None or posterior.leaves_groups_out:
        noise = float(value_of(gp.noise_variance))
        every = Rows(data.X, data.y, data.weight, data.rows.group)
        z = posterior.errors_of_left_out(rows, every, noise)
    if z is not None:
        return LeftOut(np.asarray(data.X[rows], np.float64), z, group, weight), True
    source = data.source(False)
    X = host_inputs(source)
    z = np.asarray(predicted_by_others(gp, source, X, rows).z, np.float64)
    z = z / math.sqrt(max(float(np.average(np.square(z), weights=weight)), 1e-300))
    return LeftOut(np.asarray(X[rows], np.float64), z, group, weight), False


def _entries(dispersion: Dispersion) -> dict[str, Any]:
    entries = {
        "likelihood_scale": choice(
            dispersion.factor, "of the variances of observations, by the left-out rows"
        )
    }
    if dispersion.trees is not None:
        entries["likelihood_trees"] = choice(
            len(dispersion.trees.leaves),
            "of 2^5 leaves, whose sum is the logarithm of the scale of the input",
        )
    if dispersion.df is not None:
        entries |= df_entries(dispersion.df, "by the left-out rows")
    return entries
