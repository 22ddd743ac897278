"""Distributions whose probabilities were corrected."""

from typing import Any

import numpy as np
from scipy.special import betainc, betaincc, betaincinv, betaln, xlog1py, xlogy

from stochgp.distributions.base import SMALLEST, AbstractDistribution, PerRow, Points


class Recalibrated(AbstractDistribution):
    """P(Y ≤ y) = R(F_base(y)) with R the distribution function of Beta(a, b); its density is the base's times R'(F).

    a = b = 1 changes nothing; a = b > 1 is narrower (Kuleshov, Fenner and Ermon 2018, with two parameters).
    """

    base: AbstractDistribution
    a: float
    b: float

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def tail_index(self) -> float:
        """R(u) falls like u^a, 1 − R(u) like (1 − u)^b."""
        return self.base.tail_index * min(self.a, self.b)

    @property
    def mean(self) -> PerRow:
        y, w = self._nodes()
        return y @ w

    @property
    def std(self) -> PerRow:
        y, w = self._nodes()
        spread = np.sqrt((y - (y @ w)[:, None]) ** 2 @ w)
        return spread if self.tail_index > 2 else np.full(self.n_rows, np.inf)

    def __getitem__(self, rows: Any) -> "Recalibrated":
        return Recalibrated(self.base[rows], self.a, self.b)

    def affine(self, scale: float, shift: float) -> "Recalibrated":
        return Recalibrated(self.base.affine(scale, shift), self.a, self.b)

    @property
    def _held(self) -> int:
        return self.base._held

    def _logpdf(self, y: Points) -> Points:
        below, above = self.base._tails(y)
        below, above = np.maximum(below, SMALLEST), np.maximum(above, SMALLEST)
        log_slope = xlogy(self.a - 1, below) + xlogy(self.b - 1, above) - betaln(self.a, self.b)
        return self.base._logpdf(y) + log_slope

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below, above = self.base._tails(y)
        lower = np.where(below < 0.5, betainc(self.a, self.b, below), betaincc(self.b, self.a, above))
        upper = np.where(above < 0.5, betainc(self.b, self.a, above), betaincc(self.a, self.b, below))
        return lower, upper

    def _quantile(self, p: Points) -> Points:
        return self.base._quantile(np.clip(betaincinv(self.a, self.b, p), 1e-300, 1 - 1e-16))


def log_beta(u: np.ndarray, a: float, b: float) -> np.ndarray:
    """log R'(u) of Beta(a, b)."""
    return xlogy(a - 1, u) + xlog1py(b - 1, -u) - betaln(a, b)
