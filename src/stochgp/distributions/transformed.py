"""Distributions of transformed observations, of rounded ones, and of such whose probabilities are corrected by a curve."""

import math
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float64

from stochgp.distributions.base import (
    OF_PIECE,
    AbstractDistribution,
    PerRow,
    Points,
    crps_of_counts,
    inside,
)
from stochgp.distributions.mixture import Mixture
from stochgp.transforms import AbstractTransform

SUMMED = 256  # counts on either side of the median whose probabilities are summed one by one
Probabilities = Any  # arrays of one shape, in [0, 1]
LEAST_TAIL = 1e-12  # outside of the counts of a sum


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

    @property
    def _held(self) -> int:
        return 4 * self.base._held

    def _logpdf(self, y: Points) -> Points:
        possible = y > self.transform.lower
        at = np.where(possible, y, self.transform.lower + 1.0 if math.isfinite(self.transform.lower) else 0.0)
        found = self.base._logpdf(self.transform(at)) + self.transform.log_slope(at)
        return np.where(possible, found, -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        lower = self.transform.lower
        possible = y > lower
        at = np.where(possible, y, lower + 1.0 if math.isfinite(lower) else 0.0)
        below, above = self.base._tails(self.transform(at))
        return np.where(possible, below, 0.0), np.where(possible, above, 1.0)

    def _quantile(self, p: Points) -> Points:
        return self.transform.inverse(self.base._quantile(p))

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.transform.inverse(self.base._draw(generator, n))

    def _moments(self) -> tuple[Points, Points]:
        """(Mean, standard deviation), [N, 1]."""
        z, w = self.base._nodes()
        y = self.transform.inverse(z)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = y @ w
            std = np.sqrt((y - mean[:, None]) ** 2 @ w)
        return mean[:, None], std[:, None]


class Rounded(AbstractDistribution):
    """The whole number nearest to a draw of the base, and at least 0: P(Y = k) = F(k + ½) − F(k − ½), P(Y = 0) = F(½).

    `logpdf` is the log probability, −inf for what is no count. `mean` and `std` are those of these probabilities (`_moments`).

    Parameters
    ----------
    base : distribution
        A continuous one, of a real number at each of N rows.
    """

    base: AbstractDistribution

    @property
    def is_discrete(self) -> bool:
        return True

    @property
    def _pieces(self) -> int:
        """Those of as many evaluations as `_moments` needs."""
        return 2 * SUMMED // OF_PIECE

    def _logpdf(self, y: Points) -> Points:
        known = (y >= 0) & (y == np.floor(y))
        at = np.where(known, y, 0.0)
        with np.errstate(divide="ignore"):
            zero = np.log(self.base._tails(np.full_like(y, 0.5))[0])
        return np.where(known, np.where(at > 0, self.base._log_mass(at, 1.0), zero), -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below, above = self.base._tails(np.floor(y) + 0.5)
        return np.where(y >= 0, below, 0.0), np.where(y >= 0, above, 1.0)

    def _quantile(self, p: Points) -> Points:
        return np.maximum(np.ceil(self.base._quantile(p) - 0.5), 0.0)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return np.maximum(np.rint(self.base._draw(generator, n)), 0.0)

    def _crps(self, y: Points) -> Points:
        """Σ_k (F(k) − 1[k ≥ y])², of at most 10⁴ counts one by one."""
        return crps_of_counts(self, y, LEAST_TAIL, lambda rows, k: rows.base.cdf(k + 0.5), self.base)

    def _moments(self) -> tuple[Points, Points]:
        """(Mean, standard deviation), [N, 1]. With k the median and Z the base,

            E Y − k = Σ_{j ≥ 0} P(Z > k + j + ½) − Σ_{j < k} P(Z ≤ k − j − ½),   E (Y − k)² = Σ (2j + 1) (the same probabilities, added).

        From j = n = SUMMED on integrals of the base replace the sums. If the density of Z falls with the distance from k, their error is at
        most 3/n² of E (Y − k)², and std/(4n²) of the mean.
        """
        low, k, high = (
            self._quantile(np.full((self.n_rows, 1), p)) for p in (LEAST_TAIL, 0.5, 1 - LEAST_TAIL)
        )
        n = int(min(SUMMED, np.max(np.maximum(high - k, k - low)) + 1))
        j = np.arange(n)
        above = self.base._tails(k + j + 0.5)[1]
        below = np.where(j < k, self.base._tails(np.maximum(k - j - 0.5, 0.5))[0], 0.0)
        first, second = np.sum(above - below, axis=1), (above + below) @ (2.0 * j + 1)
        if n == SUMMED:
            breaks = self.base._own_breaks()
            up = lambda t, below, above: [above, 2 * (t - k[..., None]) * above]
            down = lambda t, below, above: [-below, -2 * (t - k[..., None]) * below]
            for ends, tail in (
                (np.maximum(breaks, k + n), up),
                (np.clip(breaks, 0, np.maximum(k - n, 0)), down),
            ):
                more = self.base._integrals(ends[:, :-1], ends[:, 1:], tail)
                first, second = first + more[0].sum(axis=1), second + more[1].sum(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            return k + first[:, None], np.sqrt(np.maximum(second - first**2, 0.0))[:, None]


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

    def __getitem__(self, rows: Any) -> "PositiveCurve":
        return PositiveCurve(self.cut[rows])

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

    def __getitem__(self, rows: Any) -> "Recalibrated":
        return Recalibrated(self.base[rows], self.curve[rows])

    def affine(self, scale: float, shift: float | PerRow) -> "Recalibrated":
        return Recalibrated(self.base.affine(scale, shift), self.curve)

    @property
    def _pieces(self) -> int:
        return self.base._pieces + self.curve.kinks.shape[-1]

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        kinks = np.broadcast_to(self.curve.kinks, (self.n_rows, self.curve.kinks.shape[-1]))
        found = self.base._breaks(inside(self.curve.inverse(p)))
        if kinks.shape[1]:  # exact: those of a mixture are the quantiles of its parts
            found = np.sort(np.concatenate([found, self.base._quantile(kinks)], axis=1), axis=1)
        return np.maximum(found, self.curve.lower)

    def _moments(self) -> tuple[Points, Points]:
        """m + ∫ (1 − F) dt from m − ∫ F dt up to m, and likewise of (t − m)², m the middle one of `_breaks`: of an observation clipped to `limits`."""
        breaks = np.clip(self._own_breaks(), *self.limits)
        m = breaks[:, [breaks.shape[1] // 2]]
        tail = lambda t, below, above: np.where(t < m[..., None], -below, above)
        parts = lambda t, *tails: [tail(t, *tails), 2 * (t - m[..., None]) * tail(t, *tails)]
        first, second = self._integrals(breaks[:, :-1], breaks[:, 1:], parts)
        shift = first.sum(axis=1, keepdims=True)
        return m + shift, np.sqrt(np.maximum(second.sum(axis=1, keepdims=True) - shift**2, 0.0))

    def _logpdf(self, y: Points) -> Points:
        return self.base._logpdf(y) + self.curve.log_slope(*self.base._tails(y))

    def _tails(self, y: Points) -> tuple[Points, Points]:
        return self.curve.tails(*self.base._tails(y))

    def _quantile(self, p: Points) -> Points:
        return self.base._quantile(inside(self.curve.inverse(p)))


def truncated(found: AbstractDistribution) -> Recalibrated:
    """Return the distribution of positive numbers by `PositiveCurve`; Y is continuous."""
    return Recalibrated(found, PositiveCurve(np.minimum(found.cdf(0.0)[:, None], 1 - 1e-9)))


def mixture(
    parts: tuple[AbstractDistribution, ...], weights: Float64[np.ndarray, " J"] | Float64[np.ndarray, "N J"]
) -> AbstractDistribution:
    """Σ_j w_j p_j: a `Mixture`, or of `Rounded` parts the rounded mixture of their bases, whose probabilities are those of the parts mixed."""
    bases = tuple(part.base for part in parts if isinstance(part, Rounded))
    return Rounded(Mixture(bases, weights)) if len(bases) == len(parts) else Mixture(parts, weights)
