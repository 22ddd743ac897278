"""Predictions of held-out rows by the members of a pool, and the weights of the members."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
from jaxtyping import Bool, Float, Int
from scipy.special import softmax

from stochgp import deadline
from stochgp.choosing import too_few
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.data.time_order import increasing
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import (
    AbstractDistribution,
    Categorical,
    PITRecalibration,
    Rounded,
    TemperatureScaling,
    mixture,
)
from stochgp.distributions.transformed import truncated
from stochgp.numerics import clustered
from stochgp.pools.division import BLOCK, SINGLE, Roles
from stochgp.pools.members import BY_BLOCKS
from stochgp.results import RESULTS

Inputs = Float[np.ndarray, "N D"]
PerRow = Float[np.ndarray, " N"]
Mask = Bool[np.ndarray, " N"]
SECONDS_IN_HASTE = 10.0  # maximum for comparing members after Ctrl-C
MAX_BELOW = 1e-3  # with larger probabilities of targets below 0, truncation is tried
MIN_WEIGHT = 0.1  # members with smaller weights are dropped
MIN_END_WEIGHT = 1e-3  # minimum weight of a member before and after the last training time


@dataclass(frozen=True, eq=False)
class PoolWeights:
    """The weights of the K members `names`, and corrections of their mixture.

    If `positive` is True, the mixture is truncated at 0. After that, `calibration` is applied, if it is not
    None. If `later` is not None, rows after the last training time use the weights `later`. `after` is a
    pair: the columns that contain the time, such as year and month, and their last values.
    """

    names: list[str]
    values: Float[np.ndarray, " K"]
    why: str = ""
    positive: bool = False
    calibration: PITRecalibration | TemperatureScaling | None = None
    later: Float[np.ndarray, " K"] | None = None
    after: tuple[Sequence[int], Sequence[float]] = ((), ())
    is_joint: ClassVar[bool] = True  # all observations of a sampled function use the same member

    @property
    def by_row(self) -> bool:
        """True if weights depend on the row."""
        return self.later is not None

    def weights(self, X: Inputs) -> Float[np.ndarray, " K"] | Float[np.ndarray, "N K"]:
        """Return weights for each row, or weights [K] that all rows share."""
        if self.later is None:
            return self.values
        is_later, is_equal = np.zeros(len(X), bool), np.ones(len(X), bool)
        for column, last in zip(*self.after, strict=True):  # in lexicographic order
            is_later |= is_equal & (X[:, column] > last)
            is_equal &= X[:, column] == last
        return np.where(is_later[:, None], self.later, self.values)


def mixed(weights: Any, parts: Sequence[AbstractDistribution], each: Any) -> Any:
    """Return the distribution of the pool at each row, for members with the weights `each`."""
    found = parts[0] if len(parts) == 1 else mixture(tuple(parts), each)
    found = truncated(found) if weights.positive else found
    return found if weights.calibration is None else weights.calibration(found)


@dataclass(frozen=True, eq=False)
class HeldOutPredictions:
    """Predictions of K members for R held-out rows."""

    names: list[str]
    rows: Data
    distributions: Sequence[AbstractDistribution]
    mean: Float[np.ndarray, "R K"]
    log_density: Float[np.ndarray, "R K"]
    weight: PerRow  # for scores; single rows and rows of blocks have equal sums of weights
    far: Mask | None = None  # rows of held-out blocks of time

    @property
    def y(self) -> PerRow:
        return self.rows.y

    def rmse(self, mean: Any) -> float:
        """Return the weighted root mean square error of predicted means, or of one number."""
        return float(np.average((self.y - mean) ** 2, weights=self.weight)) ** 0.5

    def take(self, i: Any) -> "HeldOutPredictions":
        """Return the predictions of some rows, without distributions."""
        names = "mean", "log_density", "weight"
        arrays = {name: getattr(self, name)[i] for name in names}
        return replace(self, rows=self.rows.take(i), distributions=[], far=None, **arrays)

    def of(self, names: Sequence[str]) -> "HeldOutPredictions":
        """Return the predictions of some members."""
        k = [self.names.index(name) for name in names]
        distributions = [self.distributions[j] for j in k] if self.distributions else []
        columns = {"mean": self.mean[:, k], "log_density": self.log_density[:, k]}
        return replace(self, names=list(names), distributions=distributions, **columns)

    def mixed(self, weights: PoolWeights) -> Any:
        """Return the distributions of the pool. Rows of held-out blocks have the weights of later rows."""
        w, later, far, parts = weights.values, weights.later, self.far, self.of(weights.names).distributions
        each = w if later is None or far is None else np.where(far[:, None], later, w)
        return mixed(weights, parts, each)

    def coverage(self, weights: PoolWeights, level: float) -> float:
        """Return the share of targets inside the pool's central intervals of probability `level`."""
        found, tail = self.mixed(weights), (1 - level) / 2
        below = found.cdf(np.nextafter(self.y, -np.inf))  # P(Y < y), also for discrete distributions
        return float(np.average((found.cdf(self.y) >= tail) & (below < 1 - tail), weights=self.weight))

    @property
    def best(self) -> str:
        """The member with the highest mean log density."""
        return self.names[int(np.argmax(np.average(self.log_density, axis=0, weights=self.weight)))]


def predict_held_out(
    members: dict[str, Any], rows: Data, role: Roles, fold: Roles | None, context: FitContext
) -> HeldOutPredictions | None:
    """Return the members' predictions of held-out rows; None if there is no time."""
    for _ in range(2):
        with deadline.within(SECONDS_IN_HASTE if context.is_interrupted else None):
            try:
                with context.interruptible("the comparison"):
                    return _predict(members, rows, role, fold)
            except TimeIsUpError:
                context.end(RESULTS.time_limit, "there was no time to compare members")
                return None
    return None


def _predict(members: dict[str, Any], rows: Data, role: Roles, fold: Roles | None) -> HeldOutPredictions:
    """Predict held-out rows, or each fold from the other folds."""
    is_scored = np.isin(role, (SINGLE, BLOCK))
    held, far = (rows, None) if fold is not None else (rows.take(is_scored), role[is_scored] == BLOCK)
    distributions = []
    for member in members.values():
        deadline.require()
        fitted = member._fitted
        distributions.append(fitted.distribution(held.X) if fold is None else fitted.fold_out(rows, fold))
    mean = np.stack([found.mean for found in distributions], axis=1)
    density = np.stack([found.logpdf(held.y) for found in distributions], axis=1)
    weight = held.weights.astype(np.float64)
    if far is None or far.all() or not far.any():
        far = None
    else:  # gives single rows and rows of blocks equal sums of weights
        totals = weight[~far].sum(), weight[far].sum()
        weight = weight / np.where(~far, *totals) * weight.sum() / 2
    return HeldOutPredictions(list(members), held, distributions, mean, density, weight, far)


def held_out_clusters(members: dict[str, Any], held: Data) -> Int[np.ndarray, " R"]:
    """Return the groups of held-out rows, or clusters of nearby rows."""
    inputs = next(iter(members.values()))._fitted.inputs
    return clustered.clusters(np.asarray(inputs.transform(held.X, np.float64)), held.group)


def record_scores(predictions: HeldOutPredictions, scores: dict[str, dict[str, float]]) -> None:
    """Add NLPD and RMSE of each member, in target units; for classes, log loss and accuracy."""
    average = lambda values: float(np.average(values, weights=predictions.weight))
    for k, (name, found) in enumerate(zip(predictions.names, predictions.distributions, strict=True)):
        loss = -average(predictions.log_density[:, k])
        if isinstance(found, Categorical):
            is_right = np.argmax(found.log_probabilities, axis=1) == predictions.y
            scores[name] |= {"log_loss": loss, "accuracy": average(is_right)}
        else:
            scores[name] |= {"nlpd": loss, "rmse": predictions.rmse(predictions.mean[:, k])}


def widen_for_later_times(
    members: dict[str, Any], predictions: HeldOutPredictions, context: FitContext
) -> HeldOutPredictions:
    """Increase variances of members if that improves their score on blocks of time."""
    far, factors = predictions.far, dict[str, float]()
    assert far is not None
    distributions, density = list(predictions.distributions), predictions.log_density.copy()
    for k, name in enumerate(predictions.names):
        takes_width = name.endswith(BY_BLOCKS) and members[name]._fitted.observation.takes_width
        factor = best_width(distributions[k], predictions.y, far, predictions.weight) if takes_width else 1.0
        if factor > 1:
            members[name]._fitted = members[name]._fitted.widened(factor)
            factors[name], root = factor, math.sqrt(factor)
            distributions[k] = distributions[k].affine(root, distributions[k].mean * (1 - root))
            # Scores on blocks stay unchanged, because the width was fitted to them.
            density[~far, k] = distributions[k].logpdf(predictions.y)[~far]
    context.report["widths"] = factors
    return replace(predictions, distributions=distributions, log_density=density)


def best_width(found: AbstractDistribution, y: PerRow, i: Mask, weight: PerRow) -> float:
    """Return the factor of variances, from 1 to 41, with the best score on rows `i`."""
    m = found.mean
    density = lambda c: found.logpdf(m + (y - m) / np.sqrt(c)) - np.log(c) / 2
    return max((1.1**k for k in range(40)), key=lambda c: np.average(density(c)[i], weights=weight[i]))


def weigh(predictions: HeldOutPredictions, ensemble: bool, rows: Data | None = None) -> PoolWeights:
    """Return the weights of the pool, or of the best member if members cannot be mixed."""
    is_mixed = all(
        not d.is_discrete or isinstance(d, Categorical | Rounded) for d in predictions.distributions
    )
    if ensemble and is_mixed:
        return stack(predictions) if rows is None else stack_by_time(predictions, rows)
    why = (
        "discrete distributions of these kinds cannot be mixed"
        if ensemble
        else "ensemble=False: only the best member is used"
    )
    return alone(predictions.best, why)


def alone(name: str, why: str) -> PoolWeights:
    """Return weights for a pool of one member."""
    return PoolWeights([name], np.ones(1), why)


def stack(predictions: HeldOutPredictions) -> PoolWeights:
    """Return the weights of the mixture. Members with weights below 10 % are dropped, the smallest first."""
    if few := too_few(len(predictions.y)):
        return alone(predictions.best, few)
    while True:
        w = stacking_weights(predictions.log_density, predictions.mean, predictions.y, predictions.weight)
        if len(w) == 1 or w.min() >= MIN_WEIGHT:
            return PoolWeights(predictions.names, w, f"best scores of {len(predictions.y):,} held-out rows")
        names = [name for name, share in zip(predictions.names, w, strict=True) if share > w.min()]
        predictions = predictions.of(names)


def stack_by_time(predictions: HeldOutPredictions, rows: Data) -> PoolWeights:
    """Return weights from single rows and, for rows after the last time, from blocks of time.

    A member whose errors are calibrated on single rows has the smallest later weight. If no columns increase
    with time, all held-out rows together determine one set of weights.
    """
    columns, far = columns_of_time(rows), predictions.far
    if not columns or far is None:
        return stack(predictions)
    by_blocks = [name for name in predictions.names if name.endswith(BY_BLOCKS)] or predictions.names
    ends = [stack(predictions.take(~far)), stack(predictions.of(by_blocks).take(far))]
    names = [name for name in predictions.names if any(name in end.names for end in ends)]
    shares = [dict(zip(end.names, end.values, strict=True)) for end in ends]
    w = np.array([[max(share.get(name, 0.0), MIN_END_WEIGHT) for name in names] for share in shares])
    values, later = w / w.sum(axis=1, keepdims=True)
    why = f"weights until the last training time: {ends[0].why}; later weights: {ends[1].why}"
    last = rows.X[np.lexsort(rows.X[:, columns[::-1]].T)[-1], columns]
    return PoolWeights(names, values, why, later=later, after=(tuple(columns), tuple(last.tolist())))


def columns_of_time(rows: Data) -> list[int]:
    """Return a column, or columns such as year and month, that increase from group to group; [] if none."""
    order = np.argsort(rows.group, kind="stable")
    first = np.flatnonzero(np.diff(np.asarray(rows.group)[order], prepend=-1))
    low, high = (part.reduceat(rows.X[order], first) for part in (np.minimum, np.maximum))
    rising = np.flatnonzero(np.all(low[1:] > high[:-1], axis=0))
    return [int(rising[0])] if len(rising) else increasing(rows.X[order], True)[0]


def stacking_weights(
    log_density: Float[np.ndarray, "R K"], mean: Float[np.ndarray, "R K"], y: PerRow, weight: PerRow
) -> Float[np.ndarray, " K"]:
    """Return the weights [K] that maximise the mean of log p(y_i) + log N(y_i | m_i, S) of the mixture.

    S is the mean square of y − m. The method is stacking of predictive distributions (Yao et al. 2018), plus
    a term for the mean.
    """
    K, share = mean.shape[1], weight / weight.sum()
    if K == 1:
        return np.ones(1)
    scale = max(float(np.sqrt(share @ (y - share @ y) ** 2)), 1e-300)
    y, mean = y / scale, mean / scale
    peak = log_density.max(axis=1, keepdims=True)
    p = np.exp(np.maximum(log_density - peak, -700.0))

    def loss(level: np.ndarray) -> tuple[float, np.ndarray]:
        w = softmax(np.concatenate([[0.0], level]))
        density, m = p @ w, mean @ w
        e = y - m
        S = max(float(share @ e**2), 1e-300)
        value = -float(share @ np.log(density)) + 0.5 * np.log(S)
        slope = -(w * p / density[:, None] - w) - (e / S)[:, None] * w * (mean - m[:, None])
        return value, (share @ slope)[1:]

    best = scipy.optimize.minimize(
        loss, np.zeros(K - 1), jac=True, method="L-BFGS-B", bounds=[(-12.0, 12.0)] * (K - 1)
    )
    return softmax(np.concatenate([[0.0], best.x]))


def truncate(weights: PoolWeights, predictions: HeldOutPredictions, context: FitContext) -> PoolWeights:
    """Truncate distributions of positive targets at 0 if the CRPS does not increase."""
    y, found = predictions.y, predictions.mixed(weights)
    if y.min() <= 0 or found.has_masses or not (found.cdf(0.0) > MAX_BELOW).any():
        return weights
    before, after = (
        float(np.average(d.crps(y), weights=predictions.weight)) for d in (found, truncated(found))
    )
    why = f"all targets are positive: the CRPS of held-out rows is {after:.5g} with truncation at 0 and {before:.5g} without truncation"
    context.record("positive", after <= before, why)
    return replace(weights, positive=after <= before)


def calibrated(
    weights: PoolWeights, predictions: HeldOutPredictions, kind: Any, context: FitContext
) -> PoolWeights:
    """Calibrate the distributions with held-out rows, if that clearly improves the score.

    `kind` is `PITRecalibration` (a beta-transformed pool: Ranjan and Gneiting 2010) or `TemperatureScaling`.
    """
    made, rows, found = None, predictions.rows, predictions.mixed(weights)
    if rows.group is not None:  # a random row of each group, with probability ∝ ρ
        order = np.argsort(np.random.default_rng(0).exponential(size=len(rows)) / rows.weights)
        first = order[np.unique(rows.group[order], return_index=True)[1]]
        rows, found = Data(rows.X[first], rows.y[first]), found[first]
    why = "calibration does not clearly improve the log density of held-out rows"
    if kind is PITRecalibration and found.has_masses:
        why = "calibration needs continuous distributions"
    else:
        try:
            made = kind.fit(found, rows.y, rows.weight)
        except ValueError as refusal:
            why = str(refusal)
    if made is not None:
        why = f"calibration gains {made.gain:.4f} nats per row on {len(rows):,} held-out rows"
    context.record("probabilities", "as they are" if made is None else made.name, why)
    return replace(weights, calibration=made)
