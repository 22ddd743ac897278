"""Student's t."""

import math

import numpy as np
from scipy.special import betaln, gammaln, stdtr, stdtrit

from stochgp.distributions.base import PerRow, Points
from stochgp.distributions.location_scale import AbstractLocationScale


class Student(AbstractLocationScale):
    """Y = center + spread · T, T Student-t with `df` degrees of freedom; `std` is spread √(df/(df − 2)), inf for df ≤ 2."""

    center: PerRow
    spread: PerRow
    df: float

    @property
    def mean(self) -> PerRow:
        return self.center

    @property
    def std(self) -> PerRow:
        return self.spread * (math.sqrt(self.df / (self.df - 2)) if self.df > 2 else math.inf)

    @property
    def tail_index(self) -> float:
        return self.df

    def _logpdf(self, y: Points) -> Points:
        return log_student(self._z(y) ** 2, self.df) - np.log(self.spread)[:, None]

    def _tails(self, y: Points) -> tuple[Points, Points]:
        z = self._z(y)
        return stdtr(self.df, z), stdtr(self.df, -z)

    def _quantile(self, p: Points) -> Points:
        t = stdtrit(self.df, np.minimum(p, 1 - p))
        return self.center[:, None] + self.spread[:, None] * np.where(p < 0.5, t, -t)

    def _crps(self, y: Points) -> Points:
        """σ{z (2F(z) − 1) + 2f(z) (ν + z²)/(ν − 1) − 2√ν/(ν − 1) B(½, ν − ½)/B(½, ν/2)²} for ν > 1 (Jordan et al. 2019)."""
        if self.df <= 1:
            return np.full_like(y, math.inf)
        z, nu = self._z(y), self.df
        apart = math.exp(float(betaln(0.5, nu - 0.5) - 2 * betaln(0.5, nu / 2)))
        near = z * (1 - 2 * stdtr(nu, -z)) + 2 * np.exp(log_student(z**2, nu)) * (nu + z**2) / (nu - 1)
        return self.spread[:, None] * (near - 2 * math.sqrt(nu) / (nu - 1) * apart)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.center[:, None] + self.spread[:, None] * generator.standard_t(self.df, (self.n_rows, n))


def log_student(squares: np.ndarray, df: float) -> np.ndarray:
    """log f(t) of a Student-t T at T² = `squares`."""
    constant = float(gammaln((df + 1) / 2) - gammaln(df / 2)) - 0.5 * math.log(df * math.pi)
    return constant - 0.5 * (df + 1) * np.log1p(squares / df)
