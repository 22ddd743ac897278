"""N(mean, std²)."""

import math

import numpy as np
from scipy.special import ndtr, ndtri

from stochgp.distributions.base import PerRow, Points
from stochgp.distributions.location_scale import AbstractLocationScale

LOG_2PI = math.log(2 * math.pi)
NODES = 32  # of integrals over it


class Normal(AbstractLocationScale):
    """Y = mean + std · ε, ε ~ N(0, 1); `std` [N] is a standard deviation."""

    center: PerRow
    spread: PerRow

    @property
    def mean(self) -> PerRow:
        return self.center

    @property
    def std(self) -> PerRow:
        return self.spread

    def _logpdf(self, y: Points) -> Points:
        return -0.5 * LOG_2PI - np.log(self.spread)[:, None] - 0.5 * self._z(y) ** 2

    def _tails(self, y: Points) -> tuple[Points, Points]:
        z = self._z(y)
        return ndtr(z), ndtr(-z)

    def _quantile(self, p: Points) -> Points:
        return self.center[:, None] + self.spread[:, None] * ndtri(p)

    def _crps(self, y: Points) -> Points:
        """s [z (2Φ(z) − 1) + 2 φ(z) − 1/√π], z = (y − m)/s (Gneiting and Raftery 2007, section 4.2)."""
        z = self._z(y)
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        return self.spread[:, None] * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.center[:, None] + self.spread[:, None] * generator.standard_normal((self.n_rows, n))

    def _nodes(self) -> tuple[Points, np.ndarray]:
        """Of Gauss and Hermite."""
        z, w = np.polynomial.hermite_e.hermegauss(NODES)
        return self.center[:, None] + self.spread[:, None] * z, w / math.sqrt(2 * math.pi)
