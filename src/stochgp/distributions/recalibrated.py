"""Distributions whose probabilities were corrected."""

from typing import Any

import numpy as np

from stochgp.distributions.base import AbstractDistribution, PerRow, Points
from stochgp.distributions.curves import AbstractCurve


class Recalibrated(AbstractDistribution):
    """P(Y ≤ y) = R(F_base(y)), R a curve; the density is the base's times R'(F) (Kuleshov, Fenner and Ermon 2018)."""

    base: AbstractDistribution
    curve: AbstractCurve

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def tail_index(self) -> float:
        return self.base.tail_index * self.curve.tail_power

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
        return Recalibrated(self.base[rows], self.curve)

    def affine(self, scale: float, shift: float) -> "Recalibrated":
        return Recalibrated(self.base.affine(scale, shift), self.curve)

    @property
    def _held(self) -> int:
        return self.base._held

    def _logpdf(self, y: Points) -> Points:
        return self.base._logpdf(y) + self.curve.log_slope(*self.base._tails(y))

    def _tails(self, y: Points) -> tuple[Points, Points]:
        return self.curve.tails(*self.base._tails(y))

    def _quantile(self, p: Points) -> Points:
        return self.base._quantile(np.clip(self.curve.inverse(p), 1e-300, 1 - 1e-16))
