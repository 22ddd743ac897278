"""Whether a fit helps: rows predicted by it against a constant, and rows of a stream against those that came first."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.exceptions import ConvergenceWarning

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import prefer, too_few
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import AbstractDistribution, Counts, Normal
from stochgp.estimators.checks import FEW_ROWS, named_columns
from stochgp.estimators.fitted import Fitted
from stochgp.numerics.clustered import clusters
from stochgp.numerics.seeds import random_rows
from stochgp.posteriors import Request
from stochgp.results import RESULTS, FitResult
from stochgp.warning import warn

ROWS = 512  # that are predicted
SECONDS = 2.0  # of a time limit, for predicting them
LEVEL, INSIDE = 0.95, 0.8  # of intervals, and the share of rows in them below which they are too narrow
BEFORE = "these rows, by what was learned before,"  # of a stream
SHIFT, CERTAIN = 1.0, 4.0  # in standard deviations of the first rows, and of the mean of the new ones
MAX_RANGES = 100.0  # distance of a new row from the training range; float32 kernels lose digits of all rows from about 10,000
MAX_DEVIATIONS = 1_000.0  # of a new target from the training mean, in training standard deviations


class Scores(NamedTuple):
    """Of some rows: log p(y) in nats by the model, and by the distribution of these targets taken as one; whether y was in its interval."""

    model: Float[np.ndarray, " n"]
    constant: Float[np.ndarray, " n"]
    inside: Float[np.ndarray, " n"]


def scores(fitted: Fitted, rows: Data) -> Scores:
    """Of rows whose targets are not all equal."""
    found, y = fitted.distribution(rows.X), rows.y
    low, high = found.interval(LEVEL).T
    constant = constant_of(y, rows.weights, fitted.observation.rounding or isinstance(found, Counts))
    return Scores(found.logpdf(y), constant.logpdf(y), ((low <= y) & (y <= high)) * 1.0)


def constant_of(
    y: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"], is_counts: bool
) -> AbstractDistribution:
    """The normal distribution of mean and variance of y at each row; of counts one of a log-normal rate, of the same mean and variance."""
    mean = float(np.average(y, weights=weight))
    variance = float(np.average((y - mean) ** 2, weights=weight))
    alike = lambda value: np.full(len(y), value)
    if not is_counts:
        return Normal(alike(mean), alike(math.sqrt(variance)))
    v = math.log1p(max(variance - mean, 0.0) / mean**2)
    return Counts(alike(math.log(mean) - v / 2), alike(v))


def caution_of(found: Scores, cell: Int[np.ndarray, " n"], weight: Float[np.ndarray, " n"], what: str) -> str:
    """What to say of a model to which a constant is preferred by these rows, or that predicts them too surely; "" of any other.

    The constant knows the mean and the variance of these rows: its gain has to be 2/n nats a row more.
    """
    constant = found.constant - 2 / weight.sum()
    mean = lambda values: float(np.average(values, weights=weight))
    if prefer(found.model, {"a constant": constant}, cell, weight, fewest=FEW_ROWS).name is not None:
        return (
            f"{what} are predicted worse than by a constant: {-mean(found.model):.3f} nats per row, against {-mean(found.constant):.3f} "
            "for their mean and variance. Predictions and their uncertainty may be useless"
        )
    inside = mean(found.inside)
    if inside < INSIDE:
        return f"{inside:.0%} of {what} lie within their {LEVEL:.0%} intervals: standard deviations are too small"
    return ""


def caution_after_fit(
    fitted: Fitted,
    learned: FitResult,
    rows: Data,
    score: Callable[[Fitted, Data], Scores],
    budget: Budget,
) -> str:
    """Of training rows, where there is time and memory to predict some: what to say of the fit, "" of one that helps."""
    if learned.n_iter == 0 and learned.result is RESULTS.time_limit:
        return "the time limit left no time to learn: no step was taken, parameters are as they began, and predictions may be those of the prior"
    rows = rows.counted()
    rows = rows.take(random_rows(len(rows), ROWS))
    need = fitted.posterior.need_bytes(Request(len(rows.y)))
    if not _is_telling(rows) or deadline.left() < SECONDS or need > budget.free():
        return ""
    return caution_of(score(fitted, rows), cells_of(rows, fitted), rows.weights, "training rows")


def caution_of_rows(fitted: Fitted, rows: Data, what: str) -> str:
    """`caution_of` the first of these rows, "" where they say nothing of a model."""
    rows = rows.counted().take(slice(ROWS))
    if not _is_telling(rows):
        return ""
    return caution_of(scores(fitted, rows), cells_of(rows, fitted), rows.weights, what)


def cells_of(rows: Data, fitted: Fitted) -> Int[np.ndarray, " n"]:
    """The groups of rows in the user's units, where they are enough to tell, else cells of near rows."""
    few = rows.group is None or too_few(len(rows), rows.group, 0)
    X = np.asarray(fitted.inputs.transform(rows.X, np.float64), np.float64)
    return clusters(X, None if few else rows.group)


def _is_telling(rows: Data) -> bool:
    """Whether they say anything of a model: as many as are not warned of for being few, whose targets differ."""
    return len(rows) >= FEW_ROWS and bool(np.ptp(rows.y) > 0)


def shift_of(fitted: Fitted, X: Float[np.ndarray, "n D"], y: Float[np.ndarray, " n"]) -> str:
    """What to say of rows of a stream whose targets or inputs are on average far from those that came first; "" of others."""
    if len(y) == 0:
        return ""
    standardisers, far = {"inputs": fitted.inputs, "targets": fitted.targets}, []
    for name, part in drift(fitted, X, y).items():
        if not np.any((standardisers[name].mean != 0) | (standardisers[name].scale != 1)):
            continue  # nothing is known of the first rows
        mean, std = np.abs(np.atleast_1d(part["mean"])), np.maximum(np.atleast_1d(part["std"]), 1.0)
        moved = np.flatnonzero(mean > SHIFT + CERTAIN * std / math.sqrt(len(y)))
        if len(moved):
            first = np.arange(len(mean)) == moved[0]
            which = named_columns(fitted.encoder, first) if name == "inputs" else name
            far.append(f"{which} by {mean[moved[0]]:.3g}")
    if not far:
        return ""
    return (
        f"these rows are on average far from the first ones, in standard deviations of those: {', '.join(far)}. They are standardised as the "
        "first ones were, and what was learned of lengthscales and noise is of those: fit again on rows of both kinds"
    )


def within_reach(fitted: Fitted, rows: Data, stacklevel: int) -> Data:
    """New rows that cannot spoil the predictions of other rows.

    Inputs are clipped to [low − c r, high + c r], r = max(high − low, s) with the training range [low, high] and scale s of a column, and
    c = MAX_RANGES. Rows whose targets lie more than MAX_DEVIATIONS training standard deviations from the mean are left out. Warns of both (UserWarning).
    """
    if fitted.seen is not None and len(rows):
        seen = fitted.seen
        reach = MAX_RANGES * np.maximum(seen.high - seen.low, np.asarray(fitted.inputs.scale, np.float64))
        X = np.clip(rows.X, seen.low - reach, seen.high + reach)
        if (far := X != rows.X).any():
            i, d = np.argwhere(far)[0]
            name = named_columns(fitted.encoder, np.arange(X.shape[1]) == d)
            warn(
                f"{int(far.any(axis=1).sum())} new row(s) lie more than {MAX_RANGES:g} training ranges outside the training rows and were moved to that "
                f"distance; the first: row {i + 1}, {name} is {rows.X[i, d]:g}, moved to {X[i, d]:g}",
                UserWarning,
                stacklevel=stacklevel + 1,
            )
            rows = dataclasses.replace(rows, X=X)
    if fitted.targets.mean == 0 and fitted.targets.scale == 1:
        return rows  # the scale of the training targets is not known
    far = ~(np.abs(fitted.observation.to_model(rows.X, rows.y)) <= MAX_DEVIATIONS)
    if far.any():
        i = int(np.argmax(far))
        warn(
            f"{int(far.sum())} new row(s) were left out: their targets lie more than {MAX_DEVIATIONS:g} training standard deviations from the "
            f"training mean; the first: row {i + 1}, {rows.y[i]:g}",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
    return rows.take(~far)


def drift(fitted: Fitted, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"]) -> dict[str, Any]:
    """Mean and standard deviation of rows in standardised units: 0 and 1 where they are like those of the fit."""
    Z, z = fitted.inputs.transform(X), fitted.observation.to_model(X, y)
    return {
        "inputs": {"mean": Z.mean(axis=0).tolist(), "std": Z.std(axis=0).tolist()},
        "targets": {"mean": float(z.mean()), "std": float(z.std())},
    }


def warned(said: list[str], context: FitContext, stacklevel: int) -> None:
    """Warn of each, and record them."""
    for text in said:
        warn(text, ConvergenceWarning, stacklevel=stacklevel)
    if said:
        context.record("caution", "; ".join(said), "of rows of the stream")
