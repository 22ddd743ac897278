"""Weights of the members of a pool, by how each predicts rows that none of them has seen."""

import abc
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp, softmax

from stochgp.choosing import prefer, too_few
from stochgp.data.neighbours import Neighbours
from stochgp.data.rows import Rows
from stochgp.distributions import AbstractDistribution, mixture
from stochgp.distributions.curves import truncated
from stochgp.numerics.seeds import random_rows

SLOPES = 0.01  # nats a row that a slope of ±1 costs: without it slopes of weights that are all but 0 run off
LEAST_WEIGHT = 0.03  # on average: a member that has less is left out
MOST_NEAR = 50_000  # training rows that distances are measured to
QUANTILES = (0.01, 0.99)  # of the distances of held-out rows, beyond which weights stay as they are there
WIDTHS = tuple(1.1**k for k in range(40))  # 1 to 41, factors of variances
LEAST_OF_ANY = 1e-3  # near or far, of a member that has a weight at the other end


class Predicted(NamedTuple):
    """Held-out rows as each of K members predicts them."""

    log_density: Float[np.ndarray, "R K"]
    mean: Float[np.ndarray, "R K"]
    y: Float[np.ndarray, " R"]
    weight: Float[np.ndarray, " R"]
    cell: Int[np.ndarray, " R"]  # their sums over a cell are taken as independent
    distance: Float[np.ndarray, " R"]  # as `Distance`, 0 where there is none
    constant: Float[np.ndarray, " R"]  # the mean of the targets that the members had seen

    def in_units(self, scale: float) -> "Predicted":
        """Of y/scale in place of y."""
        log_density, mean, y = self.log_density + np.log(scale), self.mean / scale, self.y / scale
        return self._replace(log_density=log_density, mean=mean, y=y, constant=self.constant / scale)

    def some(self, rows: Any) -> "Predicted":
        return Predicted(*(part[rows] for part in self))

    def of(self, members: Sequence[int]) -> "Predicted":
        chosen = list(members)
        return self._replace(log_density=self.log_density[:, chosen], mean=self.mean[:, chosen])

    def informative(self) -> list[int]:
        """The members whose means the constant does not clearly beat (`prefer`), all of them if it beats each."""
        of_means = lambda mean: scores(np.zeros(len(self.y)), mean, self.y, self.weight)
        rival = {"a constant": of_means(self.constant)}
        members = range(self.mean.shape[1])
        beaten = [prefer(of_means(self.mean[:, k]), rival, self.cell, self.weight).name for k in members]
        return [k for k in members if beaten[k] is None] or list(members)


@dataclass(frozen=True, eq=False)
class Distance:
    """d(x) = log of the Euclidean distance to the nearest of these rows in units of `scale`, from `low` to `high`, less the middle of these."""

    rows: Float[np.ndarray, "n D"]  # in those units
    scale: Float[np.ndarray, " D"]
    low: float = -np.inf
    high: float = np.inf
    column: int | None = None  # by which alone distances are measured: D is 1

    @functools.cached_property
    def _tree(self) -> Neighbours:
        return Neighbours(self.rows)

    def joined(self, X: Float[np.ndarray, "N D"]) -> "Distance":
        """To these rows too."""
        return replace(self, rows=np.concatenate([self.rows, self._in_units(X)]))

    def __call__(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        Z = self._in_units(X)
        nearest = self.rows[self._tree.query(Z, 1)[:, 0]]
        found = np.log(np.maximum(np.linalg.norm(Z - nearest, axis=1), 1e-12))
        middle = (self.low + self.high) / 2 if np.isfinite(self.high - self.low) else 0.0
        return np.clip(found, self.low, self.high) - middle

    def _in_units(self, X: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N D"]:
        return _in_units(X if self.column is None else X[:, [self.column]], self.scale)


class AbstractPooling(abc.ABC):
    """Weights of K members."""

    def strength(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"] | None:
        """How much of the correction of probabilities a row has, from 0 to 1; None: all of them all of it."""
        return None

    is_joint: bool = False  # whether one member generates the observations of all rows, as models of one f do; else each observation has its own indicator
    positive: bool = False  # whether the mixture is truncated at 0

    def mixed(self, parts: Sequence[AbstractDistribution], X: Float[np.ndarray, "N D"]) -> Any:
        """The distribution of an observation at each row, of those of the members."""
        found = parts[0] if len(parts) == 1 else mixture(tuple(parts), self.weights(X))
        return truncated(found) if self.positive else found

    @property
    @abc.abstractmethod
    def by_row(self) -> bool:
        """Whether weights are of each row."""

    @abc.abstractmethod
    def weights(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " K"] | Float[np.ndarray, "N K"]:
        """Of each row, or [K] of all."""


@dataclass(frozen=True, eq=False)
class Pooling(AbstractPooling):
    """w_k(x) = softmax_k(level_k + slope_k d(x)); where slopes are 0 the same for all rows.

    Where corrections are `near_only`, they have all their strength at the low end of the distances and none at the high end; between it is linear in d.
    """

    level: Float[np.ndarray, " K"]
    slope: Float[np.ndarray, " K"]
    distance: Distance | None = None
    near_only: bool = False
    positive: bool = False
    is_joint: ClassVar[bool] = True

    @property
    def by_row(self) -> bool:
        return self.distance is not None and bool(self.slope.any())

    def strength(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"] | None:
        if self.distance is None or not self.near_only:
            return None
        return 0.5 - self.distance(X) / (self.distance.high - self.distance.low)

    def weights(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " K"] | Float[np.ndarray, "N K"]:
        if self.distance is None or not self.by_row:
            return softmax(self.level)
        return softmax(self.level + self.distance(X)[:, None] * self.slope, axis=1)


class Chosen(NamedTuple):
    """The members that stay, the weights of these, the mean of each member's over the held-out rows, why."""

    members: list[int]
    level: Float[np.ndarray, " K"]
    slope: Float[np.ndarray, " K"]
    average: Float[np.ndarray, " K"]
    why: str


class Compared(NamedTuple):
    """The members that stay and their weights, the distance these may depend on, and the held-out rows and their distributions by each member that was tried.

    `folds`: of rows that were held out fold by fold, those of each fold by number, and their distributions by each member; `table` has these rows.
    `widths` are factors of variances that these members have since they were learned. `far` says which of the rows are far from the training rows,
    where both kinds were held out and the distance lies between those of both.
    """

    picked: Chosen
    distance: Distance | None = None
    distributions: Sequence[Any] = ()
    rows: Rows | None = None
    widths: Mapping[str, float] = MappingProxyType({})
    far: Bool[np.ndarray, " R"] | None = None
    folds: Sequence[tuple[Int[np.ndarray, " R"], Sequence[Any]]] = ()
    positive: bool = False
    table: Rows | None = None

    @property
    def pooling(self) -> Pooling:
        """Of the members that stay."""
        near_only = self.far is not None
        of_rows = near_only or bool(self.picked.slope.any())
        distance = self.distance if of_rows else None
        return Pooling(self.picked.level, self.picked.slope, distance, near_only, self.positive)

    def mixed(self) -> Any:
        """What the members that stay predict of the held-out rows, as one."""
        assert self.rows is not None
        return self._as_one(self.distributions, self.rows)

    def held_out(self, rows: Rows) -> Iterator[tuple[Rows, Any]]:
        """(Held-out rows, what the members that stay predict of them), fold by fold where there are folds."""
        for part, distributions in self.folds:
            new = rows.some(part)
            yield new, self._as_one(distributions, new)
        if self.rows is not None:
            yield self.rows, self.mixed()

    def _as_one(self, distributions: Sequence[Any], rows: Rows) -> Any:
        return self.pooling.mixed([distributions[k] for k in self.picked.members], rows.X)


def alone(member: int, why: str) -> Chosen:
    """One member."""
    return Chosen([member], np.zeros(1), np.zeros(1), np.ones(1), why)


def lowest(scores: Mapping[str, Mapping[str, float]], names: Iterable[str], score: str) -> int:
    """The number of the one of these members that has the lowest score."""
    values = [scores[name][score] for name in names]
    return values.index(min(values))


def chosen(found: Predicted, names: Sequence[str], *, by_distance: bool) -> Chosen:
    """The pool, unless held-out rows prefer one member; weights that depend on the distance, where they prefer these.

    Both are compared by the densities and by the means (`scores`), weights being those of the other half of the rows. Members that have less
    than 3 % of the weight are left out, and those whose means are clearly worse than a constant.
    """
    able, n_tried = found.informative(), len(names)
    found, names = found.of(able), [names[k] for k in able]
    singles = {
        name: scores(found.log_density[:, k], found.mean[:, k], found.y, found.weight)
        for k, name in enumerate(names)
    }
    best = max(singles, key=lambda name: float(np.average(singles[name], weights=found.weight)))
    few = too_few(len(found.y), found.cell)
    if len(names) == 1 or few:
        return alone(able[names.index(best)], few or "there is no other member")
    constant = _half_by_half(found, False)
    choice = prefer(constant, singles, found.cell, found.weight)
    if choice.name is not None:
        why = (
            f"{choice.name!r} alone predicts held-out rows better than the pool: {choice.gains[choice.name]}"
        )
        return alone(able[names.index(choice.name)], why)
    gate = by_distance and _gains(constant, _half_by_half(found, True), found)
    kept = list(range(len(names)))
    level, slope, average = np.zeros(1), np.zeros(1), np.ones(1)
    while len(kept) > 1:
        part = found.of(kept)
        level, slope = fitted_weights(part, gate)
        average = np.average(_weights(level, slope, part.distance), axis=0, weights=part.weight)
        if average.min() >= LEAST_WEIGHT:
            break
        kept = [k for k, share in zip(kept, average, strict=True) if share > average.min()]
        level, slope, average = np.zeros(1), np.zeros(1), np.ones(1)
    gained = prefer(singles[best], {"the pool": constant}, found.cell, found.weight)
    gain = (
        f"the pool {gained.gains['the pool']} over {best!r}, densities and means together"
        if gained.gains
        else gained.why
    )
    why = f"{gain}{'; weights depend on the distance to the nearest rows' if gate else ''}"
    if len(able) < n_tried:
        why += f"; {n_tried - len(able)} members predict worse than a constant"
    return Chosen([able[k] for k in kept], level, slope, average, why)


def near_and_far(found: Predicted, names: Sequence[str], far: Bool[np.ndarray, " R"]) -> Chosen:
    """The pool of rows near the training rows and that of `far` ones, each `chosen` by held-out rows of its kind; between both log w_k is linear in d.

    Distances are limited by `between`, so that the first has the weights at the low end and the second those at the high end and beyond. One fit to
    both kinds of rows gave members that were learned for near rows a third of the weight far from them: on the last fifth of CO2 0.3 nats were lost.
    """
    ends = [chosen(found.some(rows), names, by_distance=False) for rows in (~far, far)]
    kept = sorted({k for end in ends for k in end.members})
    why = f"near training rows {ends[0].why}; far from them {ends[1].why}"
    if len(kept) == 1:
        return alone(kept[0], why)
    at = np.full((2, len(kept)), LEAST_OF_ANY)
    for row, end in zip(at, ends, strict=True):
        row[[kept.index(k) for k in end.members]] = np.maximum(softmax(end.level), LEAST_OF_ANY)
    low, high = np.log(at / at[:, :1])
    level, slope = (high + low) / 2, (high - low) / max(float(np.ptp(found.distance)), 1e-12)
    average = np.average(_weights(level, slope, found.distance), axis=0, weights=found.weight)
    return Chosen(kept, level, slope, average, why)


def scores(
    log_density: Float[np.ndarray, " R"],
    mean: Float[np.ndarray, " R"],
    y: Float[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"],
) -> Float[np.ndarray, " R"]:
    """log p(y_i) + log N(y_i | m_i, S), S the mean square of y − m: their sum is that of log densities and −n log RMSE.

    The log score alone takes a member for its tails that makes the mean worse.
    """
    squares = (y - mean) ** 2
    S = max(float(np.average(squares, weights=weight)), 1e-300)
    return log_density - 0.5 * (np.log(2 * np.pi * S) + squares / S)


def log_density_of_wider(
    found: AbstractDistribution, y: Float[np.ndarray, " R"], c: float
) -> Float[np.ndarray, " R"]:
    """log p(m + (y − m)/√c) − ½ log c: that of distributions whose errors are √c times as large as these."""
    mean = found.mean
    return found.logpdf(mean + (y - mean) / np.sqrt(c)) - np.log(c) / 2


def width(
    found: AbstractDistribution,
    y: Float[np.ndarray, " N"],
    rows: Bool[np.ndarray, " N"],
    weight: Float[np.ndarray, " N"],
) -> float:
    """The c ≥ 1, a factor of variances, of the highest mean log density of these rows."""
    gain = lambda c: np.average(log_density_of_wider(found, y, c)[rows], weights=weight[rows])
    return WIDTHS[int(np.argmax([gain(c) for c in WIDTHS]))]


def fitted_weights(found: Predicted, by_distance: bool) -> tuple[np.ndarray, np.ndarray]:
    """(Levels, slopes) of the highest mean of `scores` of the pool, less 0.01 Σ slope². The first member's are 0."""
    K, share = found.mean.shape[1], found.weight / found.weight.sum()
    peak = found.log_density.max(axis=1, keepdims=True)
    p = np.exp(np.maximum(found.log_density - peak, -700.0))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        level, slope = _unpacked(theta, K)
        w = _weights(level, slope, found.distance)
        density = np.sum(w * p, axis=1, keepdims=True)
        m = np.sum(w * found.mean, axis=1, keepdims=True)
        e = found.y - m[:, 0]
        S = max(float(share @ e**2), 1e-300)
        value = -float(share @ np.log(density[:, 0])) + 0.5 * np.log(S) + SLOPES * float(slope @ slope)
        by_logit = -(w * p / density - w) - (e / S)[:, None] * w * (found.mean - m)
        by_logit *= share[:, None]
        by_slope = by_logit.T @ found.distance + 2 * SLOPES * slope
        return value, np.concatenate([by_logit.sum(axis=0)[1:], by_slope[1:]])

    start = np.zeros(2 * (K - 1))
    bounds = [(-12.0, 12.0)] * (K - 1) + [(-12.0, 12.0) if by_distance else (0.0, 0.0)] * (K - 1)
    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return _unpacked(best.x, K)


def distance_of(
    X: Float[np.ndarray, "N D"], scale: Float[np.ndarray, " D"], seed: int, column: int | None = None
) -> Distance:
    """To at most 50,000 of these rows, at random; by one `column` alone, where one is given."""
    some = random_rows(len(X), MOST_NEAR, seed)
    of = slice(None) if column is None else [column]
    return Distance(_in_units(X[some][:, of], scale[of]), scale[of], column=column)


def column_of_time(X: Float[np.ndarray, "N D"], block: Int[np.ndarray, " N"]) -> int | None:
    """The first column whose values rise from each block of time to the next: dates, or a counter; None where several together say the time, as year and month."""
    order = np.argsort(block, kind="stable")
    first = np.flatnonzero(np.diff(block[order], prepend=-1))
    low, high = (part.reduceat(X[order], first) for part in (np.minimum, np.maximum))
    rises = np.all(low[1:] > high[:-1], axis=0)
    return int(np.argmax(rises)) if rises.any() else None


def _in_units(X: Float[np.ndarray, "N D"], scale: Float[np.ndarray, " D"]) -> Float[np.ndarray, "N D"]:
    return np.ascontiguousarray(X / scale, np.float64)


def limited(distance: Distance, X: Float[np.ndarray, "R D"]) -> Distance:
    """Between quantiles of the distances of these held-out rows, so that no weight is extrapolated."""
    low, high = np.quantile(distance(X), QUANTILES)
    return replace(distance, low=float(low), high=float(high))


def between(
    distance: Distance, near: Float[np.ndarray, "n D"], far: Float[np.ndarray, "m D"]
) -> Distance | None:
    """Between the medians of the distances of these rows; None where those of the `far` ones are not larger."""
    low, high = (float(np.median(distance(X))) for X in (near, far))
    return replace(distance, low=low, high=high) if low < high else None


def _unpacked(theta: np.ndarray, K: int) -> tuple[np.ndarray, np.ndarray]:
    level, slope = np.zeros(K), np.zeros(K)
    level[1:], slope[1:] = theta[: K - 1], theta[K - 1 :]
    return level, slope


def _weights(level: np.ndarray, slope: np.ndarray, distance: np.ndarray) -> Float[np.ndarray, "R K"]:
    return softmax(level + distance[:, None] * slope, axis=1)


def _half_by_half(found: Predicted, by_distance: bool) -> Float[np.ndarray, " R"]:
    """`scores` of the pool, each half of the cells with the weights of the other."""
    labels = np.random.default_rng(0).permutation(np.unique(found.cell))
    first = np.isin(found.cell, labels[: len(labels) // 2])
    log_density, mean = np.empty(len(found.y)), np.empty(len(found.y))
    for fit, score in ((first, ~first), (~first, first)):
        w = _weights(*fitted_weights(found.some(fit), by_distance), found.distance[score])
        with np.errstate(divide="ignore"):
            log_density[score] = logsumexp(found.log_density[score] + np.log(w), axis=1)
        mean[score] = np.sum(w * found.mean[score], axis=1)
    return scores(log_density, mean, found.y, found.weight)


def _gains(base: np.ndarray, rival: np.ndarray, found: Predicted) -> bool:
    return prefer(base, {"by distance": rival}, found.cell, found.weight).name is not None
