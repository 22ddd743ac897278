"""Distributions of one shape, moved and stretched row by row."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np

from stochgp.distributions.base import AbstractDistribution, PerRow, Points

KNOTS = 1000  # of a table of scores
FARTHEST = 1e-9  # probability beyond the ends of the table


class AbstractLocationScale(AbstractDistribution):
    """Y = center + spread · Z, Z of the same law in all rows."""

    center: eqx.AbstractVar[PerRow]
    spread: eqx.AbstractVar[PerRow]

    @property
    def n_rows(self) -> int:
        return len(self.center)

    def __getitem__(self, rows: Any) -> "AbstractLocationScale":
        return dataclasses.replace(self, center=self.center[rows], spread=self.spread[rows])

    def affine(self, scale: float, shift: float) -> "AbstractLocationScale":
        return dataclasses.replace(self, center=self.center * scale + shift, spread=scale * self.spread)

    def _z(self, y: Points) -> Points:
        return (y - self.center[:, None]) / self.spread[:, None]


class LocationScale(AbstractLocationScale):
    """Y = center + spread · Z, Z ~ `unit`, a distribution of one row."""

    center: PerRow
    spread: PerRow
    unit: AbstractDistribution

    @property
    def mean(self) -> PerRow:
        return self.center + self.spread * self.unit.mean[0]

    @property
    def std(self) -> PerRow:
        return self.spread * self.unit.std[0]

    @property
    def tail_index(self) -> float:
        return self.unit.tail_index

    @property
    def _held(self) -> int:
        return self.unit._held

    def _logpdf(self, y: Points) -> Points:
        return _alike(self.unit._logpdf, self._z(y)) - np.log(self.spread)[:, None]

    def _tails(self, y: Points) -> tuple[Points, Points]:
        z = self._z(y)
        below, above = self.unit._tails(z.reshape(1, -1))
        return below.reshape(z.shape), above.reshape(z.shape)

    def _quantile(self, p: Points) -> Points:
        same = len(p) > 1 and p.strides[0] == 0  # one list of probabilities for all rows
        z = self.unit._quantile(p[:1]) if same else _alike(self.unit._quantile, p)
        return self.center[:, None] + self.spread[:, None] * z

    def _crps(self, y: Points) -> Points:
        """spread · c(z), c the score of the unit's: beyond 1,000 numbers from a table of it, whose slope is 2F(z) − 1."""
        z = self._z(y)
        return self.spread[:, None] * (_alike(self.unit._crps, z) if z.size <= KNOTS else self._from_table(z))

    def _from_table(self, z: Points) -> Points:
        """Cubic between the knots, the straight asymptote beyond them."""
        from scipy.interpolate import CubicHermiteSpline  # not with every import of the library

        theta = np.linspace(0, 1, KNOTS) * np.pi / 2
        p = FARTHEST + (1 - 2 * FARTHEST) * np.sin(theta) ** 2
        knots = self.unit._quantile(p[None])
        below, above = self.unit._tails(knots)
        scores = self.unit._crps(knots)[0]
        inside = np.clip(z, knots[0, 0], knots[0, -1])
        return CubicHermiteSpline(knots[0], scores, (below - above)[0])(inside) + np.abs(z - inside)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        z = self.unit._draw(generator, self.n_rows * n).reshape(self.n_rows, n)
        return self.center[:, None] + self.spread[:, None] * z


def _alike(evaluate: Any, values: Points) -> Points:
    """Of the unit's one row at all these numbers."""
    return evaluate(values.reshape(1, -1)).reshape(values.shape)
