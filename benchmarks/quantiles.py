"""A smooth distribution through predicted quantiles, with exponential tails."""

import math
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from benchmarks.arena_rivals import LEVELS
from stochgp.distributions import AbstractDistribution

LEAST_SLOPE = 1e-3  # minimum slope of Q, in standard deviations of the targets
LEAST_TAIL = 0.05  # minimum scale of a tail, in the same units
HALVINGS, NEWTONS = 20, 4  # steps of the search for p with Q(p) = y


class QuantileDistribution(AbstractDistribution):
    """A distribution with the quantile function Q(p) through quantiles q [N, K] at LEVELS.

    Between the levels, Q is Fritsch and Carlson's monotone cubic (PCHIP). Outside, the tails are exponential:
    Q(p) = q_1 + s log(p/p_1) below, and Q(p) = q_K − t log((1 − p)/(1 − p_K)) above, with s and t from the
    two outermost levels. The density is continuous. Crossing quantiles are sorted. Equal quantiles are moved
    apart to a slope of `LEAST_SLOPE`, and the scale of a tail is at least `LEAST_TAIL`.
    """

    q: np.ndarray
    slopes: np.ndarray  # Q' at the levels
    scales: np.ndarray  # (s, t) [N, 2]

    @classmethod
    def through(cls, q: np.ndarray, scale: float = 1.0, step: float = 0.0) -> "QuantileDistribution":
        """Return the distribution for quantiles of targets with this scale and minimum distance."""
        p = np.asarray(LEVELS)
        least = max(LEAST_SLOPE * scale, step) * p
        q = np.sort(np.asarray(q, np.float64), axis=1) - least
        up, down = np.maximum.accumulate(q, axis=1), np.minimum.accumulate(q[:, ::-1], axis=1)[:, ::-1]
        q = (up + down) / 2 + least
        slopes = PchipInterpolator(p, q, axis=1).derivative()(p)
        gaps = np.diff(q, axis=1)[:, [0, -1]]
        scales = gaps / np.log([p[1] / p[0], (1 - p[-2]) / (1 - p[-1])])
        slopes[:, [0, -1]] = scales / [p[0], 1 - p[-1]]
        return cls(q, slopes, np.maximum(scales, LEAST_TAIL * scale))

    @property
    def n_rows(self) -> int:
        return len(self.q)

    @property
    def mean(self) -> np.ndarray:
        """Return ∫ Q dp."""
        return self._areas()[0][:, -1] + self._upper_tail()

    @property
    def std(self) -> np.ndarray:
        return self._moments()[1][:, 0]

    def __getitem__(self, rows: Any) -> "QuantileDistribution":
        return QuantileDistribution(self.q[rows], self.slopes[rows], self.scales[rows])

    def affine(self, scale: float, shift: float) -> "QuantileDistribution":
        return QuantileDistribution(scale * self.q + shift, scale * self.slopes, scale * self.scales)

    def _logpdf(self, y: np.ndarray) -> np.ndarray:
        s, t = self._tail_scales()
        inner = -np.log(self._cubic(*self._piece(self._inverse(y)))[1])
        below = math.log(LEVELS[0]) - np.log(s) + (y - self.q[:, :1]) / s
        above = math.log(1 - LEVELS[-1]) - np.log(t) - (y - self.q[:, -1:]) / t
        return np.where(y < self.q[:, :1], below, np.where(y > self.q[:, -1:], above, inner))

    def _tails(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s, r = self._tail_scales()
        low, high = y < self.q[:, :1], y > self.q[:, -1:]
        below = LEVELS[0] * np.exp(np.minimum(y - self.q[:, :1], 0) / s)
        above = (1 - LEVELS[-1]) * np.exp(-np.maximum(y - self.q[:, -1:], 0) / r)
        p = self._inverse(y)
        return np.where(low, below, np.where(high, 1 - above, p)), np.where(
            low, 1 - below, np.where(high, above, 1 - p)
        )

    def _quantile(self, p: np.ndarray) -> np.ndarray:
        s, r = self._tail_scales()
        below = self.q[:, :1] + s * np.log(np.minimum(p / LEVELS[0], 1))
        above = self.q[:, -1:] - r * np.log(np.minimum((1 - p) / (1 - LEVELS[-1]), 1))
        inner = self._cubic(*self._piece(p))[0]
        return np.where(p < LEVELS[0], below, np.where(p > LEVELS[-1], above, inner))

    def _crps(self, y: np.ndarray) -> np.ndarray:
        """Return 2 (A(1) − A(u) − B) + y (2u − 1), u = F(y), A(u) = ∫₀ᵘ Q dp, B = ∫ p Q dp."""
        u, above = self._tails(y)
        sums, B = self._areas()
        s, r = self._tail_scales()
        total = (sums[:, -1] + self._upper_tail())[:, None]
        k, t = self._piece(u)
        h = np.diff(LEVELS)[k]
        A = np.take_along_axis(sums, k, axis=1) + h * self._integral_to(k, t)
        A = np.where(u < LEVELS[0], u * (y - s), np.where(u > LEVELS[-1], total - above * (y + r), A))
        return 2 * (total - A - B[:, None]) + y * (u - above)

    def _tail_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Return s and t, [N, 1] each."""
        return self.scales[:, :1], self.scales[:, 1:]

    def _piece(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the cubic, and the position in it from 0 to 1."""
        levels = np.asarray(LEVELS)
        k = np.clip(np.searchsorted(levels, p, side="right") - 1, 0, len(levels) - 2)
        return k, np.clip((p - levels[k]) / np.diff(levels)[k], 0, 1)

    def _ends(self, k: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the width h, both end values, and the slopes times h of these cubics."""
        at = lambda values, j: np.take_along_axis(values, j, axis=1)
        h = np.diff(LEVELS)[k]
        return h, at(self.q, k), at(self.q, k + 1), h * at(self.slopes, k), h * at(self.slopes, k + 1)

    def _cubic(self, k: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Q = a + m t + (3Δ − 2m − n) t² + (m + n − 2Δ) t³, and Q', with Δ = b − a."""
        h, a, b, m, n = self._ends(k)
        square, cube = 3 * (b - a) - 2 * m - n, m + n - 2 * (b - a)
        return a + t * (m + t * (square + t * cube)), (m + t * (2 * square + 3 * t * cube)) / h

    def _integral_to(self, k: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Return ∫₀ᵗ of the cubic."""
        _, a, b, m, n = self._ends(k)
        square, cube = 3 * (b - a) - 2 * m - n, m + n - 2 * (b - a)
        return t * (a + t * (m / 2 + t * (square / 3 + t * cube / 4)))

    def _areas(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ∫₀^{p_k} Q dp for each level [N, K], and ∫₀¹ p Q dp [N]."""
        s, r = (scale[:, 0] for scale in self._tail_scales())
        p, last, K = LEVELS[0], 1 - LEVELS[-1], len(LEVELS)
        k = np.broadcast_to(np.arange(K - 1), (self.n_rows, K - 1))
        h, a, b, m, n = self._ends(k)
        square, cube = 3 * (b - a) - 2 * m - n, m + n - 2 * (b - a)
        pieces = h * self._integral_to(k, np.ones(k.shape))
        first = p * (self.q[:, 0] - s)
        sums = np.cumsum(np.column_stack([first, pieces]), axis=1)
        within = h**2 * (a / 2 + m / 3 + square / 4 + cube / 5) + np.asarray(LEVELS)[:-1] * pieces
        low = p**2 / 2 * (self.q[:, 0] - s / 2)
        high = last * (self.q[:, -1] + r) - last**2 / 2 * (self.q[:, -1] + r / 2)
        return sums, low + within.sum(axis=1) + high

    def _upper_tail(self) -> np.ndarray:
        """Return ∫ Q dp above the last level."""
        return (1 - LEVELS[-1]) * (self.q[:, -1] + self._tail_scales()[1][:, 0])

    def _inverse(self, y: np.ndarray) -> np.ndarray:
        """Return p with Q(p) = y, from halving an interval and then Newton steps."""
        k = np.clip(np.sum(self.q[:, None, :] <= y[:, :, None], axis=2) - 1, 0, len(LEVELS) - 2)
        low, high = np.zeros(y.shape), np.ones(y.shape)
        t = np.full(y.shape, 0.5)
        h = np.diff(LEVELS)[k]
        for i in range(HALVINGS + NEWTONS):
            value, slope = self._cubic(k, t)
            low, high = np.where(value <= y, t, low), np.where(value > y, t, high)
            t = (low + high) / 2 if i < HALVINGS else np.clip(t - (value - y) / (slope * h), low, high)
        return np.asarray(LEVELS)[k] + h * t
