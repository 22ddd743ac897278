"""Distributions of transformed observations, and of such whose probabilities are corrected by a curve."""

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

Probabilities = Any  # arrays of one shape, in [0, 1]


class Warped(AbstractDistribution):
    """Y with T(Y) ~ base, T increasing: p(y) = p_base(T(y)) T'(y), and quantiles are T⁻¹ of the base's.

    `mean` and `std` are integrals, not T⁻¹ of the base's. If the tails are too heavy, `mean` is the median, with a warning, and `std` is inf.
    A mean outside of `support` is replaced by the median within it, with a warning, and a standard deviation above its width by that of
    observations clipped to it.

    Parameters
    ----------
    base : distribution
        The distribution of T(Y), continuous, of N rows.
    transform : `AbstractTransform`
        T, a value of `stochgp.transforms`.
    support : (float, float)
        The range of means that the data support, in the units of Y.
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
        """Return (Marks of y that T takes, y with another number in place of the others)."""
        lower = self.transform.lower
        return y > lower, np.where(y > lower, y, lower + 1.0 if math.isfinite(lower) else 0.0)

    def _quantile(self, p: Points) -> Points:
        return self.transform.inverse(self.base._quantile(p))

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.transform.inverse(self.base._draw(generator, n))


class PositiveCurve(eqx.Module):
    """R(u) = h (u − c)₊/(h − c) up to h = (1 + c)/2, and u above, with c = P(Y ≤ 0): Y > 0, and the upper half of the probability above 0 is unchanged.

    Below its middle the distribution is that of Y given Y > 0. Given Y > 0 as a whole it would be shifted upwards, and its CRPS would often rise.

    Parameters
    ----------
    cut : array [N, 1]
        c of each row.
    """

    lower: ClassVar[float] = 0.0
    tail_power: ClassVar[float] = 1.0
    cut: Float64[np.ndarray, "N 1"]

    @property
    def kinks(self) -> Float64[np.ndarray, "N 1"]:
        """h of each row."""
        return (1 + self.cut) / 2

    @property
    def _slope(self) -> Float64[np.ndarray, "N 1"]:
        """h/(h − c)."""
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
    """P(Y ≤ y) = R(F_base(y)), R a curve; the density is the base's times R'(F) (Kuleshov, Fenner and Ermon 2018).

    Parameters
    ----------
    base : distribution
        A continuous distribution of N rows.
    curve : PITRecalibration or PositiveCurve
        R, the same for all rows or one for each.
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
        if kinks.shape[1]:  # exact: those of a mixture are the quantiles of its parts
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
    """Return the distribution of positive numbers by `PositiveCurve`; Y is continuous."""
    return Recalibrated(found, PositiveCurve(np.minimum(found.cdf(0.0)[:, None], 1 - 1e-9)))


def mixture(parts: Sequence[Any], weights: Float64[np.ndarray, " J"] | Float64[np.ndarray, "N J"]) -> Any:
    """Σ_j w_j p_j: classes of `Categorical` parts, of `Rounded` parts the rounded mixture of their bases, whose probabilities are those of the parts mixed, else a `Mixture`."""
    if all(isinstance(part, Categorical) for part in parts):
        with np.errstate(divide="ignore"):
            log_w = np.log(weights).T.reshape(len(parts), -1, 1)
        logs = [part.log_probabilities for part in parts]
        return Categorical(np.asarray(logsumexp(np.stack(logs) + log_w, axis=0)))
    if all(isinstance(part, Rounded) for part in parts):
        return Rounded(Mixture([part.base for part in parts], weights))
    return Mixture(parts, weights)
