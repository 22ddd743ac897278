"""Calibrations of a pool's distributions, fitted to held-out rows: truncation at 0, a curve of probabilities, a temperature."""

import dataclasses
from typing import Any

import numpy as np

from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import (
    Categorical,
    PITRecalibration,
    TemperatureScaling,
    recalibration,
    temperature_scaling,
)
from stochgp.distributions.transformed import truncated
from stochgp.pools.targets import shift_of
from stochgp.pools.weights import HeldOutPredictions, PoolWeights

MAX_BELOW = 1e-3  # probability of numbers below 0, of positive targets
IN_TIME = "rows of later times are not exchangeable with those held out"


def keep_probabilities(context: FitContext, why: str) -> None:
    """Record that the probabilities of the pool have no calibration."""
    context.record("probabilities", "as they are", why)


def truncate(weights: PoolWeights, predictions: HeldOutPredictions, context: FitContext) -> PoolWeights:
    """Distributions of positive numbers for positive, skew targets, if the CRPS of held-out rows is not higher."""
    y = predictions.y
    if y.min() <= 0 or shift_of(predictions.rows) is None:
        return weights
    found = predictions.mixed(weights)
    if found.has_masses or not (found.cdf(0.0) > MAX_BELOW).any():
        return weights
    before, after = (
        float(np.average(d.crps(y), weights=predictions.weight)) for d in (found, truncated(found))
    )
    why = f"whether distributions are cut at 0, as all targets are positive: CRPS of held-out rows {after:.5g} with the cut, {before:.5g} without"
    context.record("positive", after <= before, why)
    return dataclasses.replace(weights, positive=after <= before)


def calibrate(
    weights: PoolWeights, predictions: HeldOutPredictions, near_only: bool, context: FitContext
) -> PITRecalibration | None:
    """The curve of the probabilities of the pool (a beta-transformed pool: Ranjan and Gneiting 2010), if held-out rows clearly gain.

    In tables with a time it is learned from rows between the training rows, and has no strength far from them.
    """
    rows, found, strength = predictions.rows, predictions.mixed(weights), None
    if found.has_masses:
        return keep_probabilities(context, "a curve is of continuous distributions")
    if near_only:
        assert predictions.far is not None
        i = np.flatnonzero(~predictions.far)
        rows, found = dataclasses.replace(rows, group=None).take(i), found[i]
        strength = weights.strength(rows.X)
    try:
        curve = recalibration(found, rows.y, groups=rows.group, weight=rows.weight, strength=strength)
    except ValueError as refusal:
        return keep_probabilities(context, str(refusal))
    where = " near the training rows, of later ones F" if near_only else ""
    return _if_clear(curve, f"Beta({curve.a:.3g}, {curve.b:.3g}) of F{where}", "curve", context)


def calibrate_classes(
    found: Categorical, held: Data, in_time: bool, context: FitContext
) -> TemperatureScaling | None:
    """The temperature of the pool, if held-out rows clearly gain; none in tables with a time."""
    if in_time:
        return keep_probabilities(context, IN_TIME)
    try:
        made = temperature_scaling(found, held.y, groups=held.group, weight=held.weight)
    except ValueError as refusal:
        return keep_probabilities(context, str(refusal))
    return _if_clear(made, f"temperature {made.temperature:.3g}", "temperature", context)


def _if_clear(made: Any, name: str, kind: str, context: FitContext) -> Any:
    if made.is_identity:
        return keep_probabilities(context, f"held-out rows do not clearly gain by another {kind}")
    why = f"gains {made.gain:.4f} nats a row on {made.n_rows:,} held-out rows"
    context.record("probabilities", name, why)
    return made
