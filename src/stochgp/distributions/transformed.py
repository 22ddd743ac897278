"""Distributions of transformed observations, and recalibrated distributions."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float64
from scipy.special import logsumexp

from stochgp.distributions.base import AbstractDistribution, PerRow, Points, inside
from stochgp.distributions.discrete import Categorical, Rounded
from stochgp.distributions.mixture import Mixture
from stochgp.transforms import AbstractTransform

Probabilities = Any  # arrays of equal shape with values in [0, 1]


class Warped(AbstractDistribution):
    """The distribution of Y if an increasing transform T(Y) has the distribution `base`.

    The density is p(y) = p_base(T(y)) T'(y). If the mean does not exist or is outside `support`, `mean`
    returns the median and warns. If the standard deviation does not exist, `std` is inf.

    Parameters
    ----------
    base : distribution
        The distribution of T(Y), continuous, with N rows.
    transform : `AbstractTransform`
        The transform T, an object of `stochgp.transforms`.
    support : (float, float)
        The range of plausible means, computed from the training targets, in the units of Y.
    """

    base: AbstractDistribution
    transform: AbstractTransform
    support: tuple[float, float] = (-math.inf, math.inf)

    @property
    def limits(self) -> tuple[float, float]:
        return self.support

    @property
    def tail_index(self) -> float:
        tails = self.base.tail_index
        return tails if math.isinf(tails) else tails / max(self.transform.growth, 1e-12)

    def _logpdf(self, y: Points) -> Points:
        possible, at = self._possible(y)
        found = self.base._logpdf(self.transform(at)) + self.transform.log_slope(at)
        return np.where(possible, found, -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        possible, at = self._possible(y)
        below, above = self.base._tails(self.transform(at))
        return np.where(possible, below, 0.0), np.where(possible, above, 1.0)

    def _possible(self, y: Points) -> tuple[np.ndarray, Points]:
        """Return a mask of y in the domain of T, and y with valid numbers in other places."""
        lower = self.transform.lower
        return y > lower, np.where(y > lower, y, lower + 1.0 if math.isfinite(lower) else 0.0)

    def _quantile(self, p: Points) -> Points:
        return self.transform.inverse(self.base._quantile(p))

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.transform.inverse(self.base._draw(generator, n))


class PositiveCurve(eqx.Module):
    """A curve R of probabilities that changes the quantiles of Y so that all are positive.

    Let c = P(Y ≤ 0) and h = (1 + c)/2. Then R(u) = h max(u − c, 0)/(h − c) for u < h, and R(u) = u for
    u ≥ h. Quantiles for probabilities above h do not change.

    Parameters
    ----------
    cut : array [N, 1]
        The probability c of each row.
    """

    lower: ClassVar[float] = 0.0
    tail_power: ClassVar[float] = 1.0
    cut: Float64[np.ndarray, "N 1"]

    @property
    def kinks(self) -> Float64[np.ndarray, "N 1"]:
        """The probability h of each row."""
        return (1 + self.cut) / 2

    @property
    def _slope(self) -> Float64[np.ndarray, "N 1"]:
        """The slope h/(h − c)."""
        return (1 + self.cut) / (1 - self.cut)

    def log_slope(self, below: Probabilities, above: Probabilities) -> Probabilities:
        found = np.where(below < self.kinks, np.log(self._slope), 0.0)
        return np.where(below >= self.cut, found, -np.inf)

    def tails(self, below: Probabilities, above: Probabilities) -> tuple[Probabilities, Probabilities]:
        lower, is_lower = np.maximum(below - self.cut, 0.0) * self._slope, below < self.kinks
        return np.where(is_lower, lower, below), np.where(is_lower, 1 - lower, above)

    def inverse(self, p: Probabilities) -> Probabilities:
        return np.where(p < self.kinks, self.cut + p / self._slope, p)


class Recalibrated(AbstractDistribution):
    """A distribution with P(Y ≤ y) = R(F(y)), where F is the distribution function of `base`.

    R is an increasing curve on [0, 1] (Kuleshov, Fenner and Ermon 2018).

    Parameters
    ----------
    base : distribution
        A continuous distribution of N rows.
    curve : PITRecalibration or PositiveCurve
        The curve R. A `PITRecalibration` is the same for all rows; a `PositiveCurve` has a `cut` per row.
    """

    base: AbstractDistribution
    curve: Any

    @property
    def tail_index(self) -> float:
        return self.base.tail_index * self.curve.tail_power

    def affine(self, scale: float, shift: float | PerRow) -> "Recalibrated":
        return Recalibrated(self.base.affine(scale, shift), self.curve)

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        kinks = np.broadcast_to(self.curve.kinks, (self.n_rows, self.curve.kinks.shape[-1]))
        found = self.base._breaks(inside(self.curve.inverse(p)))
        if kinks.shape[1]:  # exact quantiles; the breaks of a mixture are quantiles of its parts
            found = np.sort(np.concatenate([found, self.base._quantile(kinks)], axis=1), axis=1)
        return np.maximum(found, self.curve.lower)

    def _moments(self, low: float = -math.inf, high: float = math.inf) -> tuple[Points, Points]:
        return super()._moments(*self.limits)

    def _logpdf(self, y: Points) -> Points:
        return self.base._logpdf(y) + self.curve.log_slope(*self.base._tails(y))

    def _tails(self, y: Points) -> tuple[Points, Points]:
        return self.curve.tails(*self.base._tails(y))

    def _quantile(self, p: Points) -> Points:
        return self.base._quantile(inside(self.curve.inverse(p)))


def truncated(found: AbstractDistribution) -> Recalibrated:
    """Make a continuous distribution positive with `PositiveCurve`."""
    return Recalibrated(found, PositiveCurve(np.minimum(found.cdf(0.0)[:, None], 1 - 1e-9)))


def mixture(parts: Sequence[Any], weights: Float64[np.ndarray, " J"] | Float64[np.ndarray, "N J"]) -> Any:
    """Return the mixture Σ_j w_j p_j: `Categorical` or `Rounded` if all parts have this class."""
    if all(isinstance(part, Categorical) for part in parts):
        with np.errstate(divide="ignore"):
            log_w = np.log(weights).T.reshape(len(parts), -1, 1)
        logs = [part.log_probabilities for part in parts]
        return Categorical(np.asarray(logsumexp(np.stack(logs) + log_w, axis=0)))
    if all(isinstance(part, Rounded) for part in parts):
        return Rounded(Mixture([part.base for part in parts], weights))
    return Mixture(parts, weights)
