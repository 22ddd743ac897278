"""Increasing curves of [0, 1] onto itself, and distributions whose probabilities they correct."""

from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float64
from scipy.special import betainc, betaincc, betaincinv, betaln, xlogy

from stochgp.distributions.base import SMALLEST, AbstractDistribution, PerRow, Points, inside, once

Probabilities = Any  # arrays of one shape, in [0, 1]


class BetaCurve(eqx.Module):
    """R(u), the distribution function of Beta(a, b): R' = u^(a−1) (1 − u)^(b−1)/B(a, b).

    Parameters
    ----------
    a, b : float or array [N, 1]
        Positive, of all rows or of each. R is of the order of u^a near u = 0, and 1 − R of the order of (1 − u)^b near u = 1; a = b = 1 is the identity.
    """

    lower: ClassVar[float] = -np.inf  # observations are above it
    kinks: ClassVar[Float64[np.ndarray, " K"]] = np.empty(0)  # where R is not smooth
    a: float | Float64[np.ndarray, "N 1"]
    b: float | Float64[np.ndarray, "N 1"]

    def __getitem__(self, rows: Any) -> "BetaCurve":
        return BetaCurve(*(of if np.ndim(of) == 0 else np.asarray(of)[rows] for of in (self.a, self.b)))

    @property
    def tail_power(self) -> float:
        """The least power of u, and of 1 − u, with which R and 1 − R fall at the ends."""
        return float(min(np.min(self.a, initial=np.inf), np.min(self.b, initial=np.inf)))

    def log_slope(self, below: Probabilities, above: Probabilities) -> Probabilities:
        """log R'(u), u = `below` = 1 − `above`."""
        below, above = np.maximum(below, SMALLEST), np.maximum(above, SMALLEST)
        return xlogy(self.a - 1, below) + xlogy(self.b - 1, above) - betaln(self.a, self.b)

    def tails(self, below: Probabilities, above: Probabilities) -> tuple[Probabilities, Probabilities]:
        """(R(u), 1 − R(u)), each accurate where it is small."""
        low = below < 0.5
        a, b, x = np.broadcast_arrays(
            np.where(low, self.a, self.b), np.where(low, self.b, self.a), np.where(low, below, above)
        )
        near = np.asarray(betainc(a, b, x))
        far = np.asarray(1 - near)
        large = near > 0.5  # there the difference has lost its digits
        far[large] = betaincc(a[large], b[large], x[large])
        return np.where(low, near, far), np.where(low, far, near)

    def inverse(self, p: Probabilities) -> Probabilities:
        """u with R(u) = p."""
        return np.broadcast_to(betaincinv(self.a, self.b, once(p)), p.shape)


class PositiveCurve(eqx.Module):
    """R(u) = h (u − c)₊/(h − c) up to h = (1 + c)/2, u above, c = P(Y ≤ 0): Y > 0, and the larger half of the probability above 0 is unchanged.

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
    curve : BetaCurve or PositiveCurve
        R, the same for all rows or one for each.
    """

    base: AbstractDistribution
    curve: BetaCurve | PositiveCurve

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
    """The distribution of positive numbers, by `PositiveCurve`; Y is continuous."""
    return Recalibrated(found, PositiveCurve(np.minimum(found.cdf(0.0)[:, None], 1 - 1e-9)))
