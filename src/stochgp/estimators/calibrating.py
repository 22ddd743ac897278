"""Corrections of observations' distributions by rows that the fit has not seen."""

import dataclasses
from typing import Any

import numpy as np

from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import ConformalScores, PITRecalibration
from stochgp.distributions.calibrating import FEWEST, rows_for
from stochgp.estimators.fitted import Fitted
from stochgp.numerics.arrays import effective_number
from stochgp.numerics.clustered import divisible, reaching

PIT, CONFORMAL = "pit", "conformal"
SHARE, MOST = 0.1, 2000  # of the rows, and rows
LEAST_KEPT = 200  # rows that the fit is to have
TIED = 0.002  # of all pairs of targets, which may be equal: rounded numbers are, now and then, atoms often
LEVEL = 0.95  # at which the coverage of conformal intervals is stated


def set_aside(rows: Data, method: str, target: str, seed: Any) -> tuple[Data, Data]:
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
    aside = rows.take(left)
    if method == CONFORMAL and rows.group is None and aside.weight is not None:
        counted, wanted = effective_number(aside.weight), rows_for(LEVEL)
        if counted < wanted:
            raise ValueError(
                f"calibration={method!r} wants at least {wanted} rows, and the {n} set aside count as {counted:.3g}: a few weights are far above the others"
            )
    return rows.take(~left), aside


def _tied(y: np.ndarray) -> float:
    """The share of pairs of rows whose targets are equal."""
    counts = np.unique(y, return_counts=True)[1].astype(np.float64)
    return float(np.sum(counts * (counts - 1)) / (len(y) * (len(y) - 1)))


def calibrated(fitted: Fitted, left_out: Data, method: str, context: FitContext) -> Fitted:
    """The model with the correction by these rows, which is recorded."""
    found, kind = fitted.distribution(left_out.X), PITRecalibration if method == PIT else ConformalScores
    made = kind.fit(found, left_out.y, groups=left_out.group, weight=left_out.weight)
    if made is None:
        context.record("calibration", "identity", "left-out rows do not clearly gain by a curve")
        return fitted
    what = "the probabilities of" if method == PIT else "intervals, by"
    context.record("calibration", getattr(made, "name", CONFORMAL), f"{what} {made.n_rows} left-out rows")
    observation = dataclasses.replace(fitted.observation, correction=made)
    return dataclasses.replace(fitted, observation=observation)


def calibrate_pool(kind: Any, found: Any, rows: Data, context: FitContext) -> Any:
    """Fit a `PITRecalibration` (a beta-transformed pool: Ranjan and Gneiting 2010) or `TemperatureScaling` to a pool's distributions of held-out rows.

    None unless these clearly gain, and for a curve of probabilities with masses. The choice is recorded.
    """
    made, why = None, "held-out rows do not clearly gain by a calibration"
    if kind is PITRecalibration and found.has_masses:
        why = "a curve is of continuous distributions"
    else:
        try:
            made = kind.fit(found, rows.y, groups=rows.group, weight=rows.weight)
        except ValueError as refusal:
            why = str(refusal)
    if made is not None:
        why = f"gains {made.gain:.4f} nats a row on {made.n_rows:,} held-out rows"
    context.record("probabilities", "as they are" if made is None else made.name, why)
    return made


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
