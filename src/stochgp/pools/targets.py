"""What the members of a pool of regressors learn: counts, or real numbers under one transform."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from stochgp.choosing import Preference, prefer
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import AbstractDistribution, Normal, Rounded, Warped
from stochgp.numerics.clustered import clusters
from stochgp.numerics.seeds import random_rows
from stochgp.observations.mean_function import boosted
from stochgp.pools.held_out import LEARNED, held_out
from stochgp.transforms import AbstractTransform, Log

REAL, COUNT = "real", "count"
# Whole numbers of which most are small, and one frequent: for large ones a step of 1 matters little.
MAX_MEDIAN, MIN_SHARE, MIN_VALUES = 30, 0.02, 3
MIN_GAIN_OF_COUNTS = 0.02  # of the CRPS: of marks from 1 to 5 counts had 1.1 % less
TAILS = (0.1, 0.5, 0.9)  # quantiles, whose distances say which way targets are skew
MIN_GAIN_OF_LOG, MAX_ZEROS = 0.05, 0.01  # nats a row; share
MIN_ROWS, MAX_ROWS = 400, 2_000  # half of them are predicted


def choose_counts(rows: Data, context: FitContext) -> str:
    """Return "count" if trees of log(y + ½), rounded, have clearly lower CRPS than trees of y; else "real".

    Counts have probabilities in place of a density, so the log score does not compare them with real targets. Half of at most 2,000 rows is predicted.
    """
    if not may_be_counts(rows):
        return REAL
    if len(rows) < MIN_ROWS:
        context.record("target", REAL, "rows are too few to compare models of counts and of real numbers")
        return REAL
    seen, held, cluster = _halves(rows, context.seed("counts"))
    real, count = _predicted(None, seen, held), Rounded(_predicted(Log(0.5), seen, held))
    found = prefer_by_crps(real, {COUNT: count}, held, cluster, MIN_GAIN_OF_COUNTS)
    context.record("target", found.name or REAL, f"trees: {found.why}")
    return found.name or REAL


def choose_transform(rows: Data, context: FitContext) -> Log | None:
    """log(y + c) for all members, if trees of it predict held-out rows clearly better, by at least 0.05 nats; c of `shift_of`.

    Recorded if targets are skew. Half of at most 2,000 rows is predicted.
    """
    shift = shift_of(rows)
    if shift is None:
        return None
    T, (seen, held, cluster) = Log(shift), _halves(rows, context.seed("transform"))
    base, rival = (_predicted(of, seen, held).logpdf(held.y) for of in (None, T))
    found = prefer(base, {"log": rival}, cluster, held.weights, least=MIN_GAIN_OF_LOG)
    what = None if found.name is None else f"log(y + {shift:.4g})"
    context.record("transform", what, f"of the targets, for all members; trees: {found.why}")
    return None if found.name is None else T


def prefer_by_crps(
    base: AbstractDistribution,
    rivals: dict[str, AbstractDistribution],
    rows: Data,
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


def may_be_counts(rows: Data) -> bool:
    """Whether the targets are whole numbers from 0 on, of several values, with a frequent one of a share of 2 %, and a median of at most 30."""
    y = rows.y
    if y.min() < 0 or np.median(y) > MAX_MEDIAN or np.any(y != np.floor(y)):
        return False
    _, which = np.unique(y, return_inverse=True)
    share = np.bincount(which.ravel(), rows.weights) / rows.weights.sum()
    return bool(len(share) >= MIN_VALUES and share.max() >= MIN_SHARE)


def shift_of(rows: Data) -> float | None:
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


def _halves(rows: Data, seed: int) -> tuple[Data, Data, Int[np.ndarray, " R"]]:
    """(Rows to learn from, rows to predict, clusters of these), of at most 2,000."""
    rows = rows.take(random_rows(len(rows), MAX_ROWS, seed))
    new = held_out(rows, np.random.default_rng(seed), share=0.5) != LEARNED
    held, spread = rows.take(new), np.std(rows.X, axis=0)
    return rows.take(~new), held, clusters(held.X / np.where(spread > 0, spread, 1.0), held.group)


def _predicted(T: AbstractTransform | None, seen: Data, held: Data) -> AbstractDistribution:
    """N(m, S) of T(y) at the rows `held`, S the mean square of errors there: m by boosting, ended when these rows no longer gain."""
    z, new = (rows.y if T is None else np.asarray(T(rows.y), np.float64) for rows in (seen, held))
    offset = np.average(z, weights=seen.weights)
    trees = boosted(dataclasses.replace(seen, y=z - offset), dataclasses.replace(held, y=new - offset))
    m = offset + (0.0 if trees is None else trees.on_host(held.X))
    S = np.average((new - m) ** 2, weights=held.weights) + np.finfo(float).tiny
    found = Normal(np.broadcast_to(m, new.shape), np.full(len(new), S**0.5))
    return found if T is None else Warped(found, T)
