"""Whether a fit helps: rows predicted by it against a constant, and rows of a stream against those that came first."""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import SURE, choice
from stochgp.distributions import AbstractDistribution, Counts, Normal
from stochgp.estimators.cautions import FEW_ROWS
from stochgp.estimators.fitted import Fitted
from stochgp.estimators.streaming import drift
from stochgp.learners.judge import SETTLED_BY
from stochgp.posteriors import Request
from stochgp.results import RESULTS, FitResult

ROWS = 512  # that are predicted
SECONDS = 2.0  # of a time limit, for predicting them
LEVEL, INSIDE = 0.95, 0.8  # of intervals, and the share of rows in them below which they are too narrow
BEFORE = "these rows, by what was learned before,"  # of a stream
SHIFT, CERTAIN = 1.0, 4.0  # in standard deviations of the first rows, and of the mean of the new ones


class Scores(NamedTuple):
    """Of some rows: −log p(y) in nats by the model, and by the distribution of these targets taken as one; whether y was in its interval."""

    model: Float[np.ndarray, " n"]
    constant: Float[np.ndarray, " n"]
    inside: Float[np.ndarray, " n"]


def scores(fitted: Fitted, X: Float[np.ndarray, "n D"], y: Float[np.ndarray, " n"]) -> Scores:
    """Of rows in the user's units, whose targets are not all equal."""
    found = fitted.distribution(X)
    low, high = found.interval(LEVEL).T
    is_counts = fitted.counts or isinstance(found, Counts)
    return Scores(-found.logpdf(y), -constant_of(y, is_counts).logpdf(y), ((low <= y) & (y <= high)) * 1.0)


def constant_of(y: Float[np.ndarray, " n"], is_counts: bool) -> AbstractDistribution:
    """The normal distribution of mean and variance of y at each row; of counts one of a log-normal rate, of the same mean and variance."""
    mean, variance = float(np.mean(y)), float(np.var(y))
    alike = lambda value: np.full(len(y), value)
    if not is_counts:
        return Normal(alike(mean), alike(math.sqrt(variance)))
    v = math.log1p(max(variance - mean, 0.0) / mean**2)
    return Counts(alike(math.log(mean) - v / 2), alike(v))


def caution_of(found: Scores, what: str) -> str:
    """What to say of a model that predicts rows worse than a constant does, by two standard errors, or too surely; "" of any other.

    The constant knows the mean and the variance of these rows, which two numbers fitted to n rows are worth 1/n nats a row.
    """
    n, more = len(found.model), found.model - found.constant
    excess, error = float(np.mean(more)), float(np.std(more)) / math.sqrt(n)
    if not excess <= SETTLED_BY + 2 / n + (SURE * error if math.isfinite(error) else 0.0):
        return (
            f"{what} are predicted worse than by a constant: {np.mean(found.model):.3f} nats per row, against {np.mean(found.constant):.3f} "
            "for their mean and variance. Predictions and their uncertainty may be useless"
        )
    inside = float(np.mean(found.inside))
    if inside < INSIDE:
        return f"{inside:.0%} of {what} lie within their {LEVEL:.0%} intervals: standard deviations are too small"
    return ""


def caution_after_fit(estimator: Any, learned: FitResult, X: np.ndarray, y: np.ndarray) -> str:
    """Of training rows, where there is time and memory to predict some: what to say of the fit, "" of one that helps."""
    if learned.n_iter == 0 and learned.result is RESULTS.time_limit:
        return "the time limit left no time to learn: no step was taken, parameters are as they began, and predictions may be those of the prior"
    some = np.sort(np.random.default_rng(0).permutation(len(y))[:ROWS])
    X, y, budget = X[some], y[some], Budget.of(estimator.memory_limit)
    need = estimator._fitted.posterior.need_bytes(Request(len(y)))
    if not is_judged(y) or deadline.left() < SECONDS or need > budget.free():
        return ""
    return caution_of(estimator._scores(X, y), "training rows")


def caution_of_rows(
    fitted: Fitted, X: Float[np.ndarray, "n D"], y: Float[np.ndarray, " n"], what: str
) -> str:
    """`caution_of` the first of these rows, "" where they say nothing of a model."""
    return caution_of(scores(fitted, X[:ROWS], y[:ROWS]), what) if is_judged(y) else ""


def is_judged(y: Float[np.ndarray, " n"]) -> bool:
    """Whether rows say anything of a model: as many as are not warned of for being few, whose targets differ."""
    return len(y) >= FEW_ROWS and bool(np.ptp(y) > 0)


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
            which = f"input column {moved[0] + 1}" if name == "inputs" else name
            far.append(f"{which} by {mean[moved[0]]:.3g}")
    if not far:
        return ""
    return (
        f"these rows are on average far from the first ones, in standard deviations of those: {', '.join(far)}. They are standardised as the "
        "first ones were, and what was learned of lengthscales and noise is of those: fit again on rows of both kinds"
    )


def warned(said: list[str], stacklevel: int) -> dict[str, Any]:
    """Warns of each; what `plan_` says of them."""
    for text in said:
        warnings.warn(text, ConvergenceWarning, stacklevel=stacklevel)
    return {"caution": choice("; ".join(said), "of rows of the stream")} if said else {}
