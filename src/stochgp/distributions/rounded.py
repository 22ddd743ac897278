"""Counts from the distribution of a real number."""

import math
import warnings
from typing import Any

import numpy as np

from stochgp.distributions.base import AbstractDistribution, PerRow, Points


class Rounded(AbstractDistribution):
    """The whole number nearest to a draw of the base, and at least 0: P(Y = k) = F(k + ½) − F(k − ½), P(Y = 0) = F(½).

    `logpdf` is the log probability, −inf for what is no count.
    """

    base: AbstractDistribution

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def tail_index(self) -> float:
        return self.base.tail_index

    @property
    def mean(self) -> PerRow:
        """Where the base has none, the median, with a warning."""
        if self.tail_index <= 1:
            warnings.warn("these distributions have no mean: medians take its place", stacklevel=2)
            return self.quantile(0.5)
        return self._by_parts(lambda part, _: part._moments()[0], np.zeros((self.n_rows, 1)))[:, 0]

    @property
    def std(self) -> PerRow:
        if self.tail_index <= 2:
            return np.full(self.n_rows, math.inf)
        return self._by_parts(lambda part, _: part._moments()[1], np.zeros((self.n_rows, 1)))[:, 0]

    def __getitem__(self, rows: Any) -> "Rounded":
        return Rounded(self.base[rows])

    def affine(self, scale: float, shift: float) -> AbstractDistribution:
        raise ValueError(f"counts have no units: they cannot become {scale} · y + {shift}")

    @property
    def _held(self) -> int:
        return 64 * self.base._held

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
        """Σ_k (F(k) − 1[k ≥ y])² up to where F is 1 to 10⁻¹²."""
        last = self._quantile(np.full((self.n_rows, 1), 1 - 1e-12))[:, 0]
        found = np.empty_like(y)
        for i in range(self.n_rows):
            k = np.arange(max(last[i], float(y[i].max())) + 1)
            F = self.base[i : i + 1].cdf(k[None] + 0.5)[0]
            found[i] = np.sum((F - (k >= y[i][:, None])) ** 2, axis=1) + np.maximum(-y[i], 0)
        return found

    def _moments(self) -> tuple[Points, Points]:
        """(Mean, standard deviation), [N, 1], with the rounding's own variance of 1/12."""
        y, w = self.base._nodes()
        y = np.maximum(y, 0.0)
        mean = y @ w
        return mean[:, None], np.sqrt((y - mean[:, None]) ** 2 @ w + 1 / 12)[:, None]
