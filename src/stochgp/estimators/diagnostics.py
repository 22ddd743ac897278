"""Warnings about data, poor fits, and new rows far from the training rows."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.exceptions import ConvergenceWarning

from stochgp import deadline
from stochgp.choosing import prefer, too_few
from stochgp.context import FitContext
from stochgp.data.reading import Encoder, read_rows
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.distributions import AbstractDistribution, Counts, Normal
from stochgp.estimators.fitted import Fitted
from stochgp.learners.evaluators import SETTLED_BY
from stochgp.numerics.clustered import clusters
from stochgp.numerics.seeds import random_rows
from stochgp.results import RESULTS, FitResult
from stochgp.transforms import Log
from stochgp.warning import warn

# In simulations with fewer different rows, intervals were sometimes too narrow.
FEW_ROWS = 40
OFTEN, SELDOM = 1.5, 0.5  # a mean weight outside this range causes a warning
SAME = 1e-6  # maximum relative difference of equal values
MOST_NAMED = 5
MOST_ALIKE = 0.5  # share of counts with the smallest value that causes a warning
ROWS, SECONDS = 512, 2.0  # maximum rows, and minimum remaining seconds, for the check of a fit
LEVEL, INSIDE = 0.95, 0.8  # level of the checked intervals; coverage below this causes a warning
Scores = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]
SHIFT, CERTAIN = 1.0, 4.0  # a larger shift of a mean warns: standard deviations plus standard errors
MAX_RANGES = 100.0  # maximum distance from the training range, as a multiple of its length
MAX_DEVIATIONS = 1_000.0  # maximum distance of a new target from the mean, in standard deviations


def warn_of_data(data: TrainingData, *, learns: bool) -> None:
    """Warn about few rows, unusual weights, equal targets, and counts that are mostly equal."""
    n, rho, alike = data.n_rows, data.rows.weights, 0.0
    if isinstance(data.transform, Log) and data.transform.shift:
        counts = data.given_targets(True)
        alike = float(np.average(counts == counts.min(), weights=rho))
    many = f"the {n} different rows count as {rho.sum():.6g} row(s)"
    uncertain = f"with fewer than {FEW_ROWS} rows, hyperparameters and intervals are uncertain"
    agree = "a repeated row counts as several equal observations; if rows are copies or averages, the noise is underestimated"
    compare = "if only the ratios of weights matter, scale the weights to the mean 1"
    too_little = "the rounded Gaussian model may fit the larger counts badly; try SparseGPRegressor with likelihood='poisson' or 'negative-binomial'"
    checks = {
        f"only {n} different row(s): {uncertain}": learns and n < FEW_ROWS,
        f"{many}: {agree}": learns and rho.mean() >= OFTEN,
        f"{many}, and intervals are as wide as for that number; {compare}": learns and rho.mean() <= SELDOM,
        "all targets are equal, so their scale is unknown, and standard deviations assume a scale of 1": data.standardized
        and np.ptp(data.rows.y) == 0,
        f"{alike:.0%} of the counts have the smallest value: {too_little}": alike > MOST_ALIKE,
    }
    for text, holds in checks.items():
        if holds:
            warn(text, UserWarning, stacklevel=3)


@dataclass(frozen=True, eq=False)
class Seen:
    """The smallest and largest training value of each input column."""

    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]

    def with_rows(self, X: Float[np.ndarray, "n D"]) -> "Seen":
        """Return the ranges of all training rows: the earlier rows and X."""
        if len(X) == 0:
            return self
        return Seen(np.minimum(self.low, X.min(axis=0)), np.maximum(self.high, X.max(axis=0)))

    def varying(self, encoder: Encoder | None, X: Float[np.ndarray, "N D"]) -> str:
        """Return a warning if constant training columns vary in X, else ""."""
        moved, held = np.zeros(len(self.low), bool), np.flatnonzero(self.low == self.high)
        moved[held] = ~np.isclose(X[:, held], self.low[held], rtol=SAME, atol=0, equal_nan=True).all(axis=0)
        if not moved.any():
            return ""
        return (
            f"{named_columns(encoder, moved)}: constant in the training data, but not here. The effect of the change is unknown, and the predicted "
            "uncertainty does not include this effect"
        )

    def extrapolation(self, encoder: Encoder | None, X: Float[np.ndarray, "N D"]) -> tuple[str, bool]:
        """Return a warning about rows outside the training range, and whether many are far away."""
        width, size = self.high - self.low, np.maximum(np.abs(self.low), np.abs(self.high))
        columns = np.flatnonzero(width > 0)
        if len(X) and len(columns):
            inside = (X.min(axis=0) >= self.low) & (X.max(axis=0) <= self.high)
            columns = columns[~inside[columns]]
        if not (len(X) and len(columns)):
            return "", False
        low, high, x = self.low[columns], self.high[columns], X[:, columns]
        excess = np.nan_to_num(np.maximum(low - x, x - high)) / width[columns]
        outside = (excess * width[columns] > SAME * size[columns]).any(axis=1)
        if not outside.any():
            return "", False
        row, j = np.unravel_index(np.argmax(excess), excess.shape)
        name = named_columns(encoder, np.arange(X.shape[1]) == columns[j])
        return (
            f"{outside.sum()} of {len(X)} rows are outside the training range (worst: {name} is {x[row, j]:.6g} at data row {row + 1}, "
            f"trained on {low[j]:.6g} to {high[j]:.6g}). Predictions for these rows are extrapolations"
        ), bool((2 * np.sum(excess > 0.5, axis=0) >= len(X)).any())


def named_columns(encoder: Encoder | None, which: np.ndarray) -> str:
    """Return the names of at most 5 columns, or their numbers starting from 1."""
    indices = np.flatnonzero(which)
    names = [
        repr(encoder.output_names[i]) if encoder is not None and encoder.named else str(i + 1)
        for i in indices
    ]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"input column {', '.join(names[:MOST_NAMED])}{more}"


def scores(fitted: Fitted, rows: Data) -> Scores:
    """Return for each row log p(y) of model and constant, and 1 if y is in its interval."""
    found, y = fitted.distribution(rows.X), rows.y
    low, high = found.interval(LEVEL).T
    constant = constant_of(y, rows.weights, fitted.observation.rounding or isinstance(found, Counts))
    return found.logpdf(y), constant.logpdf(y), ((low <= y) & (y <= high)) * 1.0


def constant_of(
    y: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"], is_counts: bool
) -> AbstractDistribution:
    """Return one distribution for all rows, with the mean and the variance of y."""
    mean = float(np.average(y, weights=weight))
    variance = float(np.average((y - mean) ** 2, weights=weight))
    alike = lambda value: np.full(len(y), value)
    if not is_counts:
        return Normal(alike(mean), alike(math.sqrt(variance)))
    v = math.log1p(max(variance - mean, 0.0) / mean**2)
    return Counts(alike(math.log(mean) - v / 2), alike(v))


def caution_of(
    fitted: Fitted, rows: Data, what: str, score: Callable[[Fitted, Data], Scores] | None = None
) -> str:
    """Return a warning if a constant predicts better or intervals contain few rows, else "".

    The check uses the first 512 rows. The two parameters of the constant are fitted to the same n rows, so
    2/n nats per row are subtracted from its log score. Fewer than 40 rows or equal targets: no warning.
    """
    rows = rows.counted().take(slice(ROWS))
    if len(rows) < FEW_ROWS or np.ptp(rows.y) == 0:
        return ""
    weight, found = rows.weights, (score or scores)(fitted, rows)
    model, constant, within = (np.average(part, weights=weight) for part in found)
    rivals = {"a constant": found[1] - 2 / weight.sum()}
    if prefer(found[0], rivals, cells_of(rows, fitted), weight, fewest=FEW_ROWS).name is not None:
        return (
            f"{what} are predicted worse than by a constant: negative log density {-model:.3f} per row, against {-constant:.3f} "
            "for a distribution with the mean and variance of these targets. Predictions and uncertainties may be useless"
        )
    if within < INSIDE:
        return f"only {within:.0%} of {what} lie within their {LEVEL:.0%} intervals: standard deviations are too small"
    return ""


def caution_after_fit(
    fitted: Fitted,
    learned: FitResult,
    data: TrainingData,
    score: Callable[[Fitted, Data], Scores] | None,
    is_optimal: bool,
    context: FitContext,
) -> str:
    """Return a warning if the fit predicts worse than a constant, else "".

    The check uses held-out rows if there are any, otherwise some training rows if time and memory allow.
    If `is_optimal`, training rows are not checked: an optimal fit predicts them as well as a constant.
    """
    held_out, constant = (context.report.get(name, math.nan) for name in ("held_out_nlpd", "constant_nlpd"))
    if is_optimal or (not math.isnan(held_out) and learned.n_iter > 0):
        if data.mean_function is not None or not held_out > constant + SETTLED_BY:
            return ""
        return (
            f"held-out rows are predicted worse than by a constant: NLPD {held_out:.3f}, against {constant:.3f} for a distribution with "
            "the mean and variance of the training targets. Predictions and uncertainties may be useless"
        )
    if learned.n_iter == 0 and learned.result is RESULTS.time_limit:
        return "the time limit ended the fit before the first step: hyperparameters keep their initial values, and predictions may be poor"
    rows = dataclasses.replace(data.rows, y=data.given_targets(fitted.observation.rounding)).counted()
    rows = rows.take(random_rows(len(rows), ROWS))
    if deadline.left() < SECONDS or fitted.posterior.need_bytes(len(rows)) > context.budget.free():
        return ""
    return caution_of(fitted, rows, "training rows", score)


def further_rows(estimator: Any, X: Any, y: Any, sample_weight: Any, context: FitContext) -> Data:
    """Return rows for an update. Warn if rows are far from the first rows or predicted poorly."""
    fitted = estimator._fitted
    rows = read_rows(estimator._read(X, learns=True), y, sample_weight, joins=fitted.encoder)
    rows = within_reach(fitted, rows, stacklevel=3)
    context.plan_ = estimator.plan_.without("caution")
    caution = shift_of(fitted, rows) or caution_of(fitted, rows, "new rows, before the update,")
    if caution:
        warn(caution, ConvergenceWarning, stacklevel=3)
        context.record("caution", caution, "new rows were compared with the earlier fit")
    return rows


def cells_of(rows: Data, fitted: Fitted) -> Int[np.ndarray, " n"]:
    """Return the group of each row, or clusters of similar rows if there are too few groups."""
    few = rows.group is None or too_few(len(rows), rows.group, 0)
    X = np.asarray(fitted.inputs.transform(rows.X, np.float64), np.float64)
    return clusters(X, None if few else rows.group)


def shift_of(fitted: Fitted, rows: Data) -> str:
    """Return a warning if new rows have a different mean from the first rows, else ""."""
    far = []
    for name, part in drift(fitted, rows).items() if len(rows) else ():
        units = fitted.inputs if name == "inputs" else fitted.targets
        mean, std = np.abs(np.atleast_1d(part["mean"])), np.maximum(np.atleast_1d(part["std"]), 1.0)
        moved = mean > SHIFT + CERTAIN * std / math.sqrt(len(rows))
        if moved.any() and np.any((units.mean != 0) | (units.scale != 1)):  # otherwise the scale is unknown
            first = np.arange(len(mean)) == np.argmax(moved)
            which = named_columns(fitted.encoder, first) if name == "inputs" else name
            far.append(f"{which} {mean[first][0]:.3g}")
    if not far:
        return ""
    return (
        f"the mean of the new rows is far from the first rows (distance: {', '.join(far)} standard deviations). Scaling and "
        "hyperparameters were learned from the first rows: call fit again on all rows"
    )


def within_reach(fitted: Fitted, rows: Data, stacklevel: int) -> Data:
    """Clip distant inputs and drop rows with distant targets. Warn about each change.

    A column with the training range [low, high] and scale s is clipped to [low − c r, high + c r], where
    r = max(high − low, s) and c = MAX_RANGES. Rows with targets more than MAX_DEVIATIONS training standard
    deviations from the training mean are dropped.
    """
    seen, targets = fitted.seen, fitted.targets
    if seen is not None and len(rows):
        reach = MAX_RANGES * np.maximum(seen.high - seen.low, np.asarray(fitted.inputs.scale, np.float64))
        X = np.clip(rows.X, seen.low - reach, seen.high + reach)
        if (far := X != rows.X).any():
            i, d = np.argwhere(far)[0]
            name = named_columns(fitted.encoder, np.arange(X.shape[1]) == d)
            text = (
                f"{int(far.any(axis=1).sum())} new row(s) were farther outside the training range than {MAX_RANGES:g} times its length, and were moved to that "
                f"distance; in the first, row {i + 1}, {name} was changed from {rows.X[i, d]:g} to {X[i, d]:g}"
            )
            warn(text, UserWarning, stacklevel=stacklevel + 1)
            rows = dataclasses.replace(rows, X=X)
    if targets.mean != 0 or targets.scale != 1:  # otherwise the scale of the targets is unknown
        far = ~(np.abs(fitted.observation.to_model(rows.X, rows.y)) <= MAX_DEVIATIONS)
        if far.any():
            i = int(np.argmax(far))
            text = (
                f"{int(far.sum())} new row(s) were dropped: their targets are more than {MAX_DEVIATIONS:g} training standard deviations from the "
                f"training mean; the first of these rows is row {i + 1}, with the target {rows.y[i]:g}"
            )
            warn(text, UserWarning, stacklevel=stacklevel + 1)
            rows = rows.take(~far)
    return rows


def drift(fitted: Fitted, rows: Data) -> dict[str, Any]:
    """Return means and standard deviations of new inputs and targets, in standardised units."""
    Z, z = fitted.inputs.transform(rows.X), fitted.observation.to_model(rows.X, rows.y)
    return {
        "inputs": {"mean": Z.mean(axis=0).tolist(), "std": Z.std(axis=0).tolist()},
        "targets": {"mean": float(z.mean()), "std": float(z.std())},
    }
