"""Corrections of observations' distributions by rows that the fit has not seen."""

import dataclasses
from typing import Any

import numpy as np

from stochgp.context import FitContext
from stochgp.data.rows import Rows
from stochgp.distributions import ConformalScores, recalibration
from stochgp.distributions.calibrating import FEWEST, rows_for
from stochgp.estimators.fitted import Fitted
from stochgp.numerics.arrays import effective_number
from stochgp.numerics.clustered import divisible, reaching

PIT, CONFORMAL = "pit", "conformal"
SHARE, MOST = 0.1, 2000  # of the rows, and rows
LEAST_KEPT = 200  # rows that the fit is to have
TIED = 0.002  # of all pairs of targets, which may be equal: rounded numbers are, now and then, atoms often
LEVEL = 0.95  # at which the coverage of conformal intervals is stated


def set_aside(rows: Rows, method: str, target: str, seed: Any) -> tuple[Rows, Rows]:
    """(The rows of the fit, those for the calibration): random ones, whole groups where there are groups.

    Raises ValueError, in one line, where there are too few of them, and for targets that are repeated: their F(y) are no continuous numbers.
    """
    N = len(rows.y)
    if N < FEWEST + LEAST_KEPT:
        raise ValueError(
            f"calibration={method!r} wants at least {FEWEST + LEAST_KEPT} different rows, of which {FEWEST} are left out of the fit; there are {N}"
        )
    tied = _tied(rows.y)
    if target == "count" or tied > TIED:
        raise ValueError(
            f"calibration={method!r} takes targets that are hardly ever repeated, and {tied:.2%} of all pairs are equal; at most {TIED:.1%} may be"
        )
    n = int(np.clip(SHARE * N, FEWEST, MOST))
    generator = np.random.default_rng(seed)
    if rows.group is None:
        left = np.isin(np.arange(N), generator.permutation(N)[:n])
    else:
        left = _groups(rows.group, n, generator)
    aside = rows.some(left)
    if method == CONFORMAL and rows.group is None and aside.weight is not None:
        counted, wanted = effective_number(aside.weight), rows_for(LEVEL)
        if counted < wanted:
            raise ValueError(
                f"calibration={method!r} wants at least {wanted} rows, and the {n} set aside count as {counted:.3g}: a few weights are far above the others"
            )
    return rows.some(~left), aside


def _tied(y: np.ndarray) -> float:
    """The share of pairs of rows whose targets are equal."""
    counts = np.unique(y, return_counts=True)[1].astype(np.float64)
    return float(np.sum(counts * (counts - 1)) / (len(y) * (len(y) - 1)))


def calibrated(fitted: Fitted, left_out: Rows, method: str | None, context: FitContext) -> Fitted:
    """The model with the correction. Record what one half of the left-out rows brings the other half."""
    found, halves = fitted.distribution(left_out.X), _halves(len(left_out.y), left_out.group)
    y, group, weight = left_out.y, left_out.group, left_out.weight
    if method == PIT:
        made = recalibration(found, y, groups=group, weight=weight)
        scores = [_nlpd(found, left_out, fit, score) for fit, score in (halves, halves[::-1])]
        before, after = np.mean(scores, axis=0)
        what = f"NLPD of left-out rows {before:.4f} before and {after:.4f} after, half by half"
        name = "identity" if made.is_identity else f"Beta({made.a:.3g}, {made.b:.3g}) of F"
        why = f"by {made.n_rows} left-out rows; {what}"
    else:
        made = ConformalScores.of(found, y, groups=group, weight=weight)
        scores = [_coverages(found, left_out, fit, score) for fit, score in (halves, halves[::-1])]
        before, after = np.mean(scores, axis=0)
        name = CONFORMAL
        why = f"intervals, by {len(made.scores)} left-out rows; {LEVEL:.0%} of them held {before:.1%} before and {after:.1%} after, half by half"
    observation = dataclasses.replace(fitted.observation, correction=made)
    context.record("calibration", name, why)
    return dataclasses.replace(fitted, observation=observation)


def _nlpd(found: Any, rows: Rows, fit: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """(Before, after), of the rows `score`, which weigh ρ; as before where a half is too small to correct by."""
    half, new = rows.some(fit), rows.some(score)
    mean = lambda of: -float(np.average(of.logpdf(new.y), weights=new.weight))
    before = mean(found[score])
    if len(fit) < FEWEST or (half.group is not None and len(np.unique(half.group)) < FEWEST):
        return before, before
    made = recalibration(found[fit], half.y, groups=half.group, weight=half.weight)
    return before, mean(made(found[score]))


def _coverages(found: Any, rows: Rows, fit: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    half, new = rows.some(fit), rows.some(score)
    share = lambda low, high: float(np.average((low <= new.y) & (new.y <= high), weights=new.weight))
    before = share(*found[score].interval(LEVEL).T)
    made = ConformalScores.of(found[fit], half.y, groups=half.group, weight=half.weight)
    if made.number < rows_for(LEVEL):
        return before, before
    return before, share(*made.at(LEVEL).interval(found[score]).T)


def _halves(n: int, group: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a random half, or of half of the groups, and the others."""
    group = np.arange(n) if group is None else group
    labels = np.random.default_rng(0).permutation(np.unique(group))
    first = np.isin(group, labels[: len(labels) // 2])
    return np.flatnonzero(first), np.flatnonzero(~first)


def _groups(group: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
    """Random whole groups: enough for `n` rows, FEWEST of them at least, and at most half of all."""
    labels, number = np.unique(group), divisible(group)
    if len(labels) < 2 * FEWEST:
        raise ValueError(
            f"calibration wants at least {2 * FEWEST} groups, of which {FEWEST} are left out of the fit; there are {len(labels)}"
        )
    sizes = np.bincount(number)
    order = generator.permutation(len(sizes))
    enough = reaching(sizes[order], n)
    return np.isin(number, order[: min(max(enough, FEWEST), len(sizes) // 2)])
