"""Normal and Student-t distributions."""

import dataclasses
import math

import numpy as np
from scipy.special import betaln, gammaln, ndtr, ndtri, stdtr, stdtrit

from stochgp.distributions.base import AbstractDistribution, PerRow, Points, once

LOG_2PI = math.log(2 * math.pi)


class Normal(AbstractDistribution):
    """The normal distribution.

    Parameters
    ----------
    center : array [N]
        The mean of each row.
    spread : array [N]
        The standard deviation of each row, positive.
    """

    center: PerRow
    spread: PerRow

    @property
    def mean(self) -> PerRow:
        return self.center

    @property
    def std(self) -> PerRow:
        return self.spread

    def affine(self, scale: float, shift: float | PerRow) -> "Normal":
        return dataclasses.replace(self, center=self.center * scale + shift, spread=scale * self.spread)

    def _logpdf(self, y: Points) -> Points:
        return -0.5 * LOG_2PI - np.log(self.spread)[:, None] - 0.5 * _z(self, y) ** 2

    def _tails(self, y: Points) -> tuple[Points, Points]:
        z = _z(self, y)
        return ndtr(z), ndtr(-z)

    def _quantile(self, p: Points) -> Points:
        return self.center[:, None] + self.spread[:, None] * ndtri(once(p))

    def _crps(self, y: Points) -> Points:
        """Return the CRPS in closed form (Gneiting and Raftery 2007, section 4.2)."""
        z = _z(self, y)
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        return self.spread[:, None] * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.center[:, None] + self.spread[:, None] * generator.standard_normal((self.n_rows, n))


class Student(AbstractDistribution):
    """The distribution of center + spread · T, where T has a standard Student-t distribution.

    Parameters
    ----------
    center : array [N]
        The median of each row, which is also the mean if df > 1.
    spread : array [N]
        The scale of each row, positive. `std` is spread · √(df/(df − 2)) if df > 2, and inf if df ≤ 2.
    df : float
        The degrees of freedom of T: a positive number, the same for all rows.
    """

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

    def affine(self, scale: float, shift: float | PerRow) -> "Student":
        return dataclasses.replace(self, center=self.center * scale + shift, spread=scale * self.spread)

    def _logpdf(self, y: Points) -> Points:
        return log_student(_z(self, y) ** 2, self.df) - np.log(self.spread)[:, None]

    def _tails(self, y: Points) -> tuple[Points, Points]:
        z = _z(self, y)
        small = stdtr(self.df, -np.abs(z))
        large, is_left = 1 - small, z < 0
        return np.where(is_left, small, large), np.where(is_left, large, small)

    def _quantile(self, p: Points) -> Points:
        p = once(p)
        t = stdtrit(self.df, np.minimum(p, 1 - p))
        return self.center[:, None] + self.spread[:, None] * np.where(p < 0.5, t, -t)

    def _crps(self, y: Points) -> Points:
        """Return the CRPS in closed form (Jordan et al. 2019); inf for df ≤ 1."""
        if self.df <= 1:
            return np.full_like(y, math.inf)
        z, nu = _z(self, y), self.df
        apart = math.exp(float(betaln(0.5, nu - 0.5) - 2 * betaln(0.5, nu / 2)))
        with np.errstate(over="ignore", invalid="ignore"):
            tail = 2 * np.exp(log_student(z**2, nu)) * (nu + z**2) / (nu - 1)
        tail = np.where(z**2 < np.inf, tail, 0.0)  # the tail decreases like |z|^(1 − ν)
        near = np.abs(z) * (1 - 2 * stdtr(nu, -np.abs(z))) + tail
        return self.spread[:, None] * (near - 2 * math.sqrt(nu) / (nu - 1) * apart)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.center[:, None] + self.spread[:, None] * generator.standard_t(self.df, (self.n_rows, n))


def log_student(squares: np.ndarray, df: float) -> np.ndarray:
    """Return the log density of a standard Student-t at values whose squares are `squares`."""
    constant = float(gammaln((df + 1) / 2) - gammaln(df / 2)) - 0.5 * math.log(df * math.pi)
    return constant - 0.5 * (df + 1) * np.log1p(squares / df)


def _z(of: Normal | Student, y: Points) -> Points:
    return (y - of.center[:, None]) / of.spread[:, None]
