"""A value that is taken with positive probability, such as 0 of rain, claims or spending."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float64

from stochgp.distributions.base import AbstractDistribution, PerRow, Points

CLOSE = 1e-6  # of the width: a target as near to the value as that is the value
LEAST_WIDTH = 1e-3  # in standard deviations of the targets


def recorded_width(values: Float64[np.ndarray, " V"], scale: float) -> float:
    """What targets of these different values, increasing, and of the standard deviation `scale` are known to: the smallest difference of two, or a thousandth of `scale`, whichever is larger."""
    return max(float(np.diff(values).min(initial=np.inf)), LEAST_WIDTH * scale)


class PointMass(AbstractDistribution):
    """Y = value, with probability 1: as a part of a `Mixture` that of a hurdle model (Cragg 1971).

    A density is of targets that are recorded to `width`: 1/width within width/2 of the value, so that it compares with the densities of continuous
    distributions. `cdf`, `quantile`, `crps` and draws are those of the value itself.

    Parameters
    ----------
    value, width : array [N]
        Of each row, in the units of Y; `width` is positive.
    """

    value: PerRow
    width: PerRow

    @property
    def n_rows(self) -> int:
        return len(self.value)

    @property
    def mean(self) -> PerRow:
        return self.value

    @property
    def std(self) -> PerRow:
        return np.zeros(self.n_rows)

    @property
    def has_masses(self) -> bool:
        return True

    def __getitem__(self, rows: Any) -> "PointMass":
        return PointMass(self.value[rows], self.width[rows])

    def affine(self, scale: float, shift: float | PerRow) -> "PointMass":
        return dataclasses.replace(self, value=scale * self.value + shift, width=scale * self.width)

    @property
    def _pieces(self) -> int:
        return 0

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        return self.value[:, None]

    def _logpdf(self, y: Points) -> Points:
        width = self.width[:, None]
        return np.where(np.abs(y - self.value[:, None]) <= width / 2, -np.log(width), -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below = (y >= (self.value - CLOSE * self.width)[:, None]).astype(np.float64)
        return below, 1 - below

    def _before(self, y: Points) -> Points:
        return (y > (self.value + CLOSE * self.width)[:, None]).astype(np.float64)

    def _quantile(self, p: Points) -> Points:
        return np.broadcast_to(self.value[:, None], p.shape)

    def _crps(self, y: Points) -> Points:
        return np.abs(y - self.value[:, None])
