"""Weights of the members of a pool, from predictions of held-out rows."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp, softmax

from stochgp.choosing import prefer, too_few
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import AbstractDistribution, PITRecalibration, Rounded, mixture
from stochgp.distributions.transformed import truncated

Inputs = Float[np.ndarray, "N D"]
PerRow = Float[np.ndarray, " N"]
MAX_BELOW = 1e-3  # probability of numbers below 0, of positive targets
MIN_WEIGHT = 0.03  # a member with less is left out
SURE = 1.0  # standard errors of the gain over the best member: with 2, used cars lost 17 % of CRPS


@dataclass(frozen=True, eq=False)
class PoolWeights:
    """The weights [K] of the named members; if `positive`, the mixture is truncated at 0."""

    names: list[str]
    values: Float[np.ndarray, " K"]
    why: str = ""
    positive: bool = False
    is_joint: ClassVar[bool] = True  # one member generates the observations of all rows

    def weights(self, X: Inputs) -> Float[np.ndarray, " K"]:
        """Return the weights, which are the same for all rows."""
        return self.values


def mixed(weights: Any, parts: Sequence[AbstractDistribution], X: Inputs) -> Any:
    """The distribution of an observation at each row, from those of the members."""
    found = parts[0] if len(parts) == 1 else mixture(tuple(parts), weights.weights(X))
    return truncated(found) if weights.positive else found


@dataclass(frozen=True, eq=False)
class HeldOutPredictions:
    """Held-out rows [R] as each of K members predicts them.

    Sums over a `cluster` of rows are taken as independent.
    """

    names: list[str]
    rows: Data
    distributions: list[AbstractDistribution]
    mean: Float[np.ndarray, "R K"]
    log_density: Float[np.ndarray, "R K"]
    weight: PerRow  # for scores: in tables with a time single rows and blocks count alike
    cluster: Int[np.ndarray, " R"]
    constant: PerRow  # the mean target of the rows that the members learned from
    far: Bool[np.ndarray, " R"] | None = None  # in tables with a time, rows of held-out blocks

    @property
    def y(self) -> PerRow:
        return self.rows.y

    def take(self, i: Any) -> "HeldOutPredictions":
        """Some of the rows, without distributions."""
        arrays = {
            name: getattr(self, name)[i] for name in ("mean", "log_density", "weight", "cluster", "constant")
        }
        return replace(self, rows=self.rows.take(i), distributions=[], far=None, **arrays)

    def of(self, names: Sequence[str]) -> "HeldOutPredictions":
        """Some of the members."""
        k = [self.names.index(name) for name in names]
        distributions = [self.distributions[j] for j in k] if self.distributions else []
        columns = {"mean": self.mean[:, k], "log_density": self.log_density[:, k]}
        return replace(self, names=list(names), distributions=distributions, **columns)

    def mixed(self, weights: PoolWeights) -> Any:
        """The distributions of the pool."""
        return mixed(weights, self.of(weights.names).distributions, self.rows.X)

    @functools.cached_property
    def scores(self) -> dict[str, PerRow]:
        """`pool_scores` of each member."""
        return {
            name: pool_scores(self.log_density[:, k], self.mean[:, k], self.y, self.weight)
            for k, name in enumerate(self.names)
        }

    def informative(self) -> list[str]:
        """The members whose means a constant does not clearly beat; all members if it beats each of them."""
        of_mean = lambda mean: pool_scores(np.zeros(len(mean)), mean, self.y, self.weight)
        rival = {"a constant": of_mean(self.constant)}
        useful = [
            name
            for k, name in enumerate(self.names)
            if prefer(of_mean(self.mean[:, k]), rival, self.cluster, self.weight).name is None
        ]
        return useful or self.names

    @property
    def best(self) -> str:
        """The member of the highest score."""
        return max(self.names, key=lambda name: float(np.average(self.scores[name], weights=self.weight)))


def alone(name: str, why: str) -> PoolWeights:
    """One member."""
    return PoolWeights([name], np.ones(1), why)


def truncate(weights: PoolWeights, predictions: HeldOutPredictions, context: FitContext) -> PoolWeights:
    """Truncate distributions of positive targets at 0 if the CRPS of held-out rows is not higher."""
    y = predictions.y
    if y.min() <= 0:
        return weights
    found = predictions.mixed(weights)
    if found.has_masses or not (found.cdf(0.0) > MAX_BELOW).any():
        return weights
    before, after = (
        float(np.average(d.crps(y), weights=predictions.weight)) for d in (found, truncated(found))
    )
    why = f"all targets are positive: the CRPS of held-out rows is {after:.5g} with distributions cut at 0, {before:.5g} without"
    context.record("positive", after <= before, why)
    return replace(weights, positive=after <= before)


def calibrate_pool(kind: Any, found: Any, rows: Data, context: FitContext) -> Any:
    """Return the calibration of a pool's distributions by held-out rows; None without a clear gain.

    `kind` is `PITRecalibration` (a beta-transformed pool: Ranjan and Gneiting 2010; not of probabilities with masses) or `TemperatureScaling`.
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


def weigh(predictions: HeldOutPredictions, ensemble: bool) -> PoolWeights:
    """The pool, or its best member: without `ensemble`, or if their distributions cannot be mixed."""
    is_mixed = all(not d.is_discrete or isinstance(d, Rounded) for d in predictions.distributions)
    if ensemble and is_mixed:
        return stack(predictions)
    useful = predictions.of(predictions.informative())
    density = np.average(useful.log_density, axis=0, weights=useful.weight)
    why = "counts are predicted by one member" if ensemble else "ensemble=False: the highest held-out density"
    return alone(useful.names[int(np.argmax(density))], why)


def stack(predictions: HeldOutPredictions) -> PoolWeights:
    """The pool, if it predicts held-out rows better than its best member by one standard error (`prefer`); else that member.

    The pool is scored half by half, with the weights of the other half. With fewer than 10 groups, which tell little of either, it is the pool. Members with less
    than 3 % of the weight are left out, and members whose means are clearly worse than a constant.
    """
    useful = predictions.of(predictions.informative())
    useless = len(predictions.names) - len(useful.names)
    note = f"; {useless} members predict worse than a constant" if useless else ""
    best = useful.best
    few = too_few(len(useful.y))
    if len(useful.names) == 1 or few:
        return alone(best, (few or "there is no other useful member") + note)
    why = too_few(len(useful.y), useful.cluster)
    why = why and why + note
    if why is None:
        rival = {"the pool": _half_by_half(useful)}
        found = prefer(useful.scores[best], rival, useful.cluster, useful.weight, sure=SURE)
        why = f"against {best!r}, {found.why}, densities and means together{note}"
        if found.name is None:
            return alone(best, why)
    while True:
        w = stacking_weights(useful.log_density, useful.mean, useful.y, useful.weight)
        if len(w) == 1 or w.min() >= MIN_WEIGHT:
            return PoolWeights(useful.names, w, why)
        useful = useful.of([name for name, share in zip(useful.names, w, strict=True) if share > w.min()])


def pool_scores(
    log_density: PerRow,
    mean: PerRow,
    y: PerRow,
    weight: PerRow,
) -> PerRow:
    """log p(y_i) + log N(y_i | m_i, S), S the mean square of y − m: their sum is that of log densities and −n log RMSE.

    The log density alone would prefer a member for its tails that makes the mean worse.
    """
    squares = (y - mean) ** 2
    S = max(float(np.average(squares, weights=weight)), 1e-300)
    return log_density - 0.5 * (np.log(2 * np.pi * S) + squares / S)


def stacking_weights(
    log_density: Float[np.ndarray, "R K"],
    mean: Float[np.ndarray, "R K"],
    y: PerRow,
    weight: PerRow,
) -> Float[np.ndarray, " K"]:
    """The weights [K] of the highest mean of `pool_scores` of the mixture (stacking of predictive distributions, Yao et al. 2018, with a term for the mean)."""
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


def _half_by_half(predictions: HeldOutPredictions) -> PerRow:
    """`pool_scores` of the pool, each half of the clusters with the weights of the other."""
    labels = np.random.default_rng(0).permutation(np.unique(predictions.cluster))
    first = np.isin(predictions.cluster, labels[: len(labels) // 2])
    R = len(predictions.y)
    log_density, mean = np.empty(R), np.empty(R)
    for fitted, scored in ((first, ~first), (~first, first)):
        some = predictions.take(fitted)
        w = stacking_weights(some.log_density, some.mean, some.y, some.weight)
        with np.errstate(divide="ignore"):
            log_density[scored] = logsumexp(predictions.log_density[scored] + np.log(w), axis=1)
        mean[scored] = predictions.mean[scored] @ w
    return pool_scores(log_density, mean, predictions.y, predictions.weight)
