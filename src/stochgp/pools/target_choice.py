"""Which numbers targets are: by how small kernel GPs of each kind predict rows that they have not seen."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp import deadline
from stochgp.budget import MemoryLimitError
from stochgp.choosing import Preference, choice, prefer
from stochgp.data.rows import Rows
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import AbstractDistribution
from stochgp.families.kernel import KernelGPRegressor
from stochgp.likelihoods import Warped
from stochgp.numerics.clustered import clusters, paired
from stochgp.numerics.seeds import random_rows
from stochgp.pools.joining import raise_interrupt_of
from stochgp.pools.pool_division import held_out
from stochgp.pools.pooling import scores
from stochgp.selection.likelihood import GAUSSIAN
from stochgp.selection.metric import INPUTS
from stochgp.transforms import ShiftedLog
from stochgp.warning import silent

REAL, COUNT, POSITIVE, LOGARITHM = "real", "count", "positive", "logarithm"
# Whole numbers of which most are small, and one frequent: for large ones a step of 1 matters little.
LARGEST_MEDIAN, LEAST_SHARE, FEWEST_VALUES = 30, 0.02, 3
LEAST_OF_COUNTS = 0.02  # of the CRPS: of marks from 1 to 5 counts had 1.1 % less
TAILS = (0.1, 0.5, 0.9)  # quantiles, whose distances say which way targets are skew
# Nats a row, of densities and means, from which members of log(y + c) are tried: by 1,000 rows log y gained 0.16 to 1.3 where a pool of it was better (diamonds,
# california, forbes, SLID), 0.04 or less on computers, Tetouan and movies, where it was not; 1.9 on steel, where log y alone was far worse: a pool of both decides.
LEAST_OF_LOG, MOST_ZEROS = 0.05, 0.01
FEWEST_ROWS, MOST_ROWS = 400, 2_000  # half of them are predicted
EPOCHS = 30
SECONDS = 30.0  # both models, compiled for the first time


class Kind(NamedTuple):
    """What members learn: y, counts, or besides y the logarithm of y + shift; what `plan_` says of it."""

    target: str = REAL
    shift: float | None = None
    entries: Mapping[str, Any] = MappingProxyType({})


def kind_of_targets(rows: Rows, in_time: bool, seed: int, settings: dict[str, Any]) -> Kind:
    """Real targets, where they do not look like anything else, or rows are too few, or time is too short, to tell.

    Kernel GPs with Gaussian noise learn from at most 1,000 of the rows and predict as many others. Counts, log(y + ½) that is rounded, are taken where their CRPS
    is clearly lower: they have probabilities in place of a density. Of skew targets members of log(y + c) are tried, where these have the higher sum of
    log densities and of those of the means (`pooling.scores`); not of rows `in_time`: of the last fifth of PM2.5 a pool with such members had 10 % more RMSE,
    and on steel, by time and by single rows, it lost 0.2 nats.
    """
    counted = may_be_counts(rows)
    shift = None if in_time or counted else shift_of(rows)
    if not counted and shift is None:
        return Kind()
    entry = "target" if counted else LOGARITHM
    refusal = None
    if len(rows) < FEWEST_ROWS:
        refusal = f"{len(rows):,} rows are too few to tell"
    elif deadline.left() < SECONDS:
        refusal = "there is no time to tell"
    if refusal is not None:
        return Kind(entries={entry: choice(REAL if counted else None, refusal)})
    try:
        return _compared(rows.some(random_rows(len(rows), MOST_ROWS, seed)), shift, seed, settings)
    except (MemoryLimitError, TimeIsUpError, ValueError) as refused:  # what the members refuse they will say
        return Kind(entries={entry: choice(REAL if counted else None, str(refused))})


def _compared(rows: Rows, shift: float | None, seed: int, settings: dict[str, Any]) -> Kind:
    """Of log(y + shift), or without a shift of counts, with real targets."""
    new = held_out(rows, np.random.default_rng(seed), share=0.5).all
    seen, left = rows.some(~new), rows.some(new)
    model = KernelGPRegressor(likelihood=GAUSSIAN, metric=INPUTS, epochs=EPOCHS, **settings)
    of_real = _predicted(model, seen, left)
    cells = clusters(np.asarray(model._fitted.inputs.transform(left.X, np.float64)), left.group)
    if shift is None:
        found = _predicted(model.set_params(target=COUNT), seen, left)
        taken = prefer_by_crps(of_real, {COUNT: found}, left, cells, LEAST_OF_COUNTS)
        target = taken.name or REAL
        return Kind(target, None, {"target": choice(target, f"by small kernel GPs {taken.why}")})
    found = _predicted(model.set_params(likelihood=Warped(GAUSSIAN, ShiftedLog(shift))), seen, left)
    gains = _scores(found, left) - _scores(of_real, left)
    gain, error = paired(gains, cells, left.weights) if np.isfinite(gains).all() else (np.nan, np.nan)
    tried = shift if gain > LEAST_OF_LOG else None
    why = f"the shift: by small kernel GPs log(y + {shift:.4g}) gains {gain:.4f} ± {error:.4f} nats a row, densities and means together"
    return Kind(shift=tried, entries={LOGARITHM: choice(tried, why)})


def prefer_by_crps(
    base: AbstractDistribution,
    rivals: Mapping[str, AbstractDistribution],
    rows: Rows,
    cell: Int[np.ndarray, " R"],
    least: float,
) -> Preference:
    """Of rivals that predict these rows, the one whose CRPS is lowest where it is clearly lower, by a share of `least`, than that of the base (`prefer`).

    It compares models of which one has probabilities and another a density: a density says little of values that targets have again and again.
    """
    of_base = base.crps(rows.y)
    unit = float(np.average(of_base, weights=rows.weights))
    scored = {name: -rival.crps(rows.y) / unit for name, rival in rivals.items()}
    found = prefer(-of_base / unit, scored, cell, rows.weights, least=least)
    words = [
        f"{name!r} changes the CRPS by {-gain.mean:+.1%} ± {gain.error:.1%}"
        for name, gain in found.gains.items()
    ]
    return found._replace(why="; ".join(words) or found.why)


def may_be_counts(rows: Rows) -> bool:
    """Whether the targets are whole numbers from 0 on, of several values, of which a frequent one has a share of 2 %, with a median of at most 30."""
    y = rows.y
    if y.min() < 0 or np.median(y) > LARGEST_MEDIAN or np.any(y != np.floor(y)):
        return False
    _, which = np.unique(y, return_inverse=True)
    share = np.bincount(which.ravel(), rows.weights) / rows.weights.sum()
    return bool(len(share) >= FEWEST_VALUES and share.max() >= LEAST_SHARE)


def shift_of(rows: Rows) -> float | None:
    """c, half of the least positive target, where none is negative, they are skew, log(y + c) are less so, and at most 1 % are 0; else None.

    Zeros that are many lie far from the others in log(y + c): what they say of the noise made means as large as the targets of 39,000 (medical expenses).
    """
    y = rows.y
    if y.min() < 0 or np.average(y == 0, weights=rows.weights) > MOST_ZEROS:
        return None
    shift = float(y[y > 0].min()) / 2
    return shift if _skewness(y) > abs(_skewness(np.log(y + shift))) else None


def of_logarithm(member: Any, shift: float) -> Any:
    """The estimator, with the likelihood that it has for log(y + shift)."""
    return member.set_params(likelihood=Warped(member.likelihood, ShiftedLog(shift)))


def _skewness(y: Float[np.ndarray, " N"]) -> float:
    """((q₉₀ − q₅₀) − (q₅₀ − q₁₀))/(q₉₀ − q₁₀), from −1 to 1 (Kelly)."""
    low, middle, high = np.quantile(y, TAILS)
    return float((high + low - 2 * middle) / max(high - low, np.finfo(float).tiny))


def _predicted(model: Any, seen: Rows, left: Rows) -> AbstractDistribution:
    with silent():
        model.fit(seen.X, seen.y, seen.weight, groups=seen.group)
        raise_interrupt_of(model)
        return model.predict_distribution(left.X)


def _scores(found: AbstractDistribution, rows: Rows) -> Float[np.ndarray, " R"]:
    return scores(found.logpdf(rows.y), found.mean, rows.y, rows.weights)
