"""What the members of a pool of regressors learn: counts, or real numbers under one transform."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stochgp import deadline
from stochgp.budget import MemoryLimitError
from stochgp.choosing import Preference, prefer
from stochgp.context import FitContext
from stochgp.data.rows import Rows
from stochgp.data.standardise import Standardiser
from stochgp.data.time_order import BETWEEN
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import AbstractDistribution
from stochgp.families.kernel import KernelGPRegressor
from stochgp.families.likelihoods import GAUSSIAN
from stochgp.numerics.clustered import clusters
from stochgp.numerics.seeds import random_rows
from stochgp.objectives.warping import fit_transforms
from stochgp.pools.held_out import held_out
from stochgp.pools.refit import raise_interrupt_of
from stochgp.transforms import Log
from stochgp.warning import silent

REAL, COUNT = "real", "count"
# Whole numbers of which most are small, and one frequent: for large ones a step of 1 matters little.
MAX_MEDIAN, MIN_SHARE, MIN_VALUES = 30, 0.02, 3
MIN_GAIN_OF_COUNTS = 0.02  # of the CRPS: of marks from 1 to 5 counts had 1.1 % less
TAILS = (0.1, 0.5, 0.9)  # quantiles, whose distances say which way targets are skew
MIN_GAIN_OF_LOG, MAX_ZEROS = 0.05, 0.01  # nats a row; share
MIN_ROWS, MAX_ROWS = 400, 2_000  # half of them are predicted
EPOCHS = 30
SECONDS = 30.0  # both models of counts, compiled for the first time


def choose_counts(rows: Rows, settings: dict[str, Any], context: FitContext) -> str:
    """Return "count" if small kernel GPs of log(y + ½), rounded, have clearly lower CRPS than ones of y; else "real".

    Counts have probabilities in place of a density, so the log score does not compare them with real targets. Half of at most 2,000 rows is predicted.
    """
    if not may_be_counts(rows):
        return REAL
    if len(rows) < MIN_ROWS or deadline.left() < SECONDS:
        why = "rows are too few" if len(rows) < MIN_ROWS else "there was no time"
        context.record("target", REAL, f"{why} to compare models of counts and of real numbers")
        return REAL
    rows = rows.some(random_rows(len(rows), MAX_ROWS, context.seed("counts")))
    new = held_out(rows, np.random.default_rng(context.seed("counts")), share=0.5).all
    model = KernelGPRegressor(
        likelihood=GAUSSIAN, rotate_inputs=False, epochs=EPOCHS, missing="refuse", new_rows=BETWEEN,
        target_outliers="keep", **settings,
    )  # fmt: skip
    seen, held = rows.some(~new), rows.some(new)
    try:
        real, count = (_predicted(model.set_params(target=target), seen, held) for target in (REAL, COUNT))
    except (MemoryLimitError, TimeIsUpError, ValueError) as refused:  # the members will meet it too
        context.record("target", REAL, str(refused))
        return REAL
    cluster = clusters(np.asarray(model._fitted.inputs.transform(held.X, np.float64)), held.group)
    found = prefer_by_crps(real, {COUNT: count}, held, cluster, MIN_GAIN_OF_COUNTS)
    context.record("target", found.name or REAL, f"small kernel GPs: {found.why}")
    return found.name or REAL


def choose_transform(rows: Rows, context: FitContext) -> Log | None:
    """log(y + c) for all members, if small GPs of it predict held-out rows clearly better (`fit_transforms`), by at least 0.05 nats; c of `shift_of`.

    Recorded if targets are skew.
    """
    shift = shift_of(rows)
    if shift is None:
        return None
    X = np.asarray(Standardiser.fit(rows.X, rows.weight).transform(rows.X, np.float64))
    tried = {"log": Log(shift)}
    found = fit_transforms(
        tried, X, rows.y, seed=context.seed("transform"), group=rows.group, weight=rows.weight
    )[1]
    gain = found.gains.get("log")
    chosen = (
        tried["log"] if found.name is not None and gain is not None and gain.mean > MIN_GAIN_OF_LOG else None
    )
    what = None if chosen is None else f"log(y + {shift:.4g})"
    context.record("transform", what, f"of the targets, for all members; small GPs: {found.why}")
    return chosen


def prefer_by_crps(
    base: AbstractDistribution,
    rivals: dict[str, AbstractDistribution],
    rows: Rows,
    cluster: Int[np.ndarray, " R"],
    least: float,
) -> Preference:
    """`prefer` by CRPS in units of the base's mean CRPS, for models of which one has probabilities and another a density."""
    of_base = base.crps(rows.y)
    unit = float(np.average(of_base, weights=rows.weights))
    scored = {name: -rival.crps(rows.y) / unit for name, rival in rivals.items()}
    found = prefer(-of_base / unit, scored, cluster, rows.weights, least=least)
    words = [
        f"{name!r} changes the CRPS by {-gain.mean:+.1%} ± {gain.error:.1%}"
        for name, gain in found.gains.items()
    ]
    return found._replace(why="; ".join(words) or found.why)


def may_be_counts(rows: Rows) -> bool:
    """Whether the targets are whole numbers from 0 on, of several values, with a frequent one of a share of 2 %, and a median of at most 30."""
    y = rows.y
    if y.min() < 0 or np.median(y) > MAX_MEDIAN or np.any(y != np.floor(y)):
        return False
    _, which = np.unique(y, return_inverse=True)
    share = np.bincount(which.ravel(), rows.weights) / rows.weights.sum()
    return bool(len(share) >= MIN_VALUES and share.max() >= MIN_SHARE)


def shift_of(rows: Rows) -> float | None:
    """c, half of the least positive target, if no target is negative, targets are skew, log(y + c) are less skew, and at most 1 % are 0; else None.

    Many zeros lie far from the others in log(y + c), and make means as large as 39,000 targets (medical expenses).
    """
    y = rows.y
    if y.min() < 0 or np.average(y == 0, weights=rows.weights) > MAX_ZEROS:
        return None
    shift = float(y[y > 0].min()) / 2
    return shift if _skewness(y) > abs(_skewness(np.log(y + shift))) else None


def _skewness(y: Float[np.ndarray, " N"]) -> float:
    """((q₉₀ − q₅₀) − (q₅₀ − q₁₀))/(q₉₀ − q₁₀), from −1 to 1 (Kelly)."""
    low, middle, high = np.quantile(y, TAILS)
    return float((high + low - 2 * middle) / max(high - low, np.finfo(float).tiny))


def _predicted(model: Any, seen: Rows, held: Rows) -> AbstractDistribution:
    with silent():
        model.fit(seen.X, seen.y, seen.weight, groups=seen.group)
        raise_interrupt_of(model)
        return model.predict_distribution(held.X)
