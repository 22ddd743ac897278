"""Distributions of transformed observations, in the units that were observed."""

import math
from typing import Any

import numpy as np

from stochgp.distributions.base import AbstractDistribution, PerRow, Points
from stochgp.transforms import AbstractTransform


class Warped(AbstractDistribution):
    """Y with T(Y) ~ base, T increasing: p(y) = p_base(T(y)) T'(y), and quantiles are T⁻¹ of the base's.

    `mean` and `std` are integrals, not T⁻¹ of the base's; where the base's tails are too heavy for them (T⁻¹ of a Student-t grows too
    fast), `mean` is the median, with a warning, and `std` is inf. A mean beyond `support` is replaced by the median within it, with a warning, and a standard
    deviation above its width by that of observations cut at it.

    Parameters
    ----------
    base : distribution
        The distribution of T(Y), continuous, of N rows.
    transform : `AbstractTransform`
        T, a value of `stochgp.transforms`.
    support : (float, float)
        Between which the data support means, in the units of Y.
    """

    base: AbstractDistribution
    transform: AbstractTransform
    support: tuple[float, float] = (-math.inf, math.inf)

    @property
    def limits(self) -> tuple[float, float]:
        return self.support

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def tail_index(self) -> float:
        tails = self.base.tail_index
        return tails if math.isinf(tails) else tails / max(self.transform.growth, 1e-12)

    @property
    def mean(self) -> PerRow:
        return self._mean_by(Warped._moments)

    @property
    def std(self) -> PerRow:
        return self._std_by(Warped._moments)

    def __getitem__(self, rows: Any) -> "Warped":
        return Warped(self.base[rows], self.transform, self.support)

    def affine(self, scale: float, shift: float | PerRow) -> AbstractDistribution:
        raise ValueError("a transformed observation is in its own units: change those of the base")

    @property
    def _held(self) -> int:
        return 32 * self.base._held

    def _logpdf(self, y: Points) -> Points:
        possible = y > self.transform.lower
        at = np.where(possible, y, self.transform.lower + 1.0 if math.isfinite(self.transform.lower) else 0.0)
        found = self.base._logpdf(self.transform(at)) + self.transform.log_slope(at)
        return np.where(possible, found, -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        possible = y > self.transform.lower
        at = np.where(possible, y, self.transform.lower + 1.0 if math.isfinite(self.transform.lower) else 0.0)
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
