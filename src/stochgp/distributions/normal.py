"""Normal and Student-t distributions, and normal scale mixtures."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from scipy.optimize import root_scalar
from scipy.special import betaln, gammaln, logsumexp, ndtr, ndtri, stdtr, stdtrit

from stochgp.distributions.base import AbstractDistribution, PerRow, Points, once, solve_increasing

LOG_2PI = math.log(2 * math.pi)
HERMITE_NODES = 32
FALLEN = 28.0  # nats: where the integral over λ is cut off
FARTHEST = 1e4  # errors, in scales, up to which it is accurate
DEGREE, PIECES, LEAST_TAIL = 9, 256, 1e-290  # of the polynomials for tails of Student-t
GAUSSIAN_DF = 100.0  # above it tails are thinner, and accurate for smaller errors


class Normal(AbstractDistribution):
    """Y = mean + std · ε, ε ~ N(0, 1).

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
        """s [z (2Φ(z) − 1) + 2 φ(z) − 1/√π], z = (y − m)/s (Gneiting and Raftery 2007, section 4.2)."""
        z = _z(self, y)
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        return self.spread[:, None] * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.center[:, None] + self.spread[:, None] * generator.standard_normal((self.n_rows, n))

    def _nodes(self) -> tuple[Points, np.ndarray]:
        z, w = np.polynomial.hermite_e.hermegauss(HERMITE_NODES)
        return self.center[:, None] + self.spread[:, None] * z, w / math.sqrt(2 * math.pi)


class Student(AbstractDistribution):
    """Y = center + spread · T, T Student-t with `df` degrees of freedom; `std` is spread √(df/(df − 2)), inf for df ≤ 2.

    Parameters
    ----------
    center : array [N]
        The median of each row, which is its mean where df > 1.
    spread : array [N]
        The scale of each row, positive; not its standard deviation.
    df : float
        Positive, the same for all rows.
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
        small = student_tail(np.abs(z), self.df)
        large, is_left = 1 - small, z < 0
        return np.where(is_left, small, large), np.where(is_left, large, small)

    def _quantile(self, p: Points) -> Points:
        p = once(p)
        t = stdtrit(self.df, np.minimum(p, 1 - p))
        return self.center[:, None] + self.spread[:, None] * np.where(p < 0.5, t, -t)

    def _crps(self, y: Points) -> Points:
        """σ{z (2F(z) − 1) + 2f(z) (ν + z²)/(ν − 1) − 2√ν/(ν − 1) B(½, ν − ½)/B(½, ν/2)²} for ν > 1 (Jordan et al. 2019)."""
        if self.df <= 1:
            return np.full_like(y, math.inf)
        z, nu = _z(self, y), self.df
        apart = math.exp(float(betaln(0.5, nu - 0.5) - 2 * betaln(0.5, nu / 2)))
        with np.errstate(over="ignore", invalid="ignore"):
            tail = 2 * np.exp(log_student(z**2, nu)) * (nu + z**2) / (nu - 1)
        near = np.abs(z) * (1 - 2 * student_tail(np.abs(z), nu)) + np.where(
            z**2 < np.inf, tail, 0.0
        )  # it falls as |z|^(1 − ν)
        return self.spread[:, None] * (near - 2 * math.sqrt(nu) / (nu - 1) * apart)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return self.center[:, None] + self.spread[:, None] * generator.standard_t(self.df, (self.n_rows, n))


@functools.lru_cache(64)
def _log_tail(df: float) -> Callable[[np.ndarray], np.ndarray]:
    """log P(T > √df sinh u) of a Student-t T, by polynomials between equidistant u, down to LEAST_TAIL. Their relative error is below 1e-15 of the logarithm."""
    from scipy.interpolate import PPoly  # slow to load

    h = 0.25 / math.sqrt(max(df, 4.0))
    nodes = (1 - np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))) / 2
    knots = h * np.arange(PIECES + 1)
    values = stdtr(df, -math.sqrt(df) * np.sinh(knots[:-1, None] + h * nodes))
    n = int(np.argmax(np.append(values.min(axis=1), 0.0) < LEAST_TAIL))
    scaled = np.linalg.solve(np.vander(nodes), np.log(values[:n]).T)
    return PPoly(scaled / h ** np.arange(DEGREE, -1, -1)[:, None], knots[: n + 1], extrapolate=False)


def student_tail(t: np.ndarray, df: float) -> np.ndarray:
    """P(T > t) of a Student-t T at t ≥ 0: a quarter of the time of SciPy's incomplete beta function, which takes what lies beyond the polynomials."""
    found = np.exp(_log_tail(df)(np.arcsinh(t / math.sqrt(df))))
    beyond = np.isnan(found)
    found[beyond] = stdtr(df, -t[beyond])
    return found


def log_student(squares: np.ndarray, df: float) -> np.ndarray:
    """log f(t) of a Student-t T at T² = `squares`."""
    constant = float(gammaln((df + 1) / 2) - gammaln(df / 2)) - 0.5 * math.log(df * math.pi)
    return constant - 0.5 * (df + 1) * np.log1p(squares / df)


def _z(of: Normal | Student, y: Points) -> Points:
    return (y - of.center[:, None]) / of.spread[:, None]


class ScaleMixture(AbstractDistribution):
    """Y = f + ε, f ~ N(mean, variance), ε | k ~ N(0, noise · multiplier_k) with probability w_k:

        p(y) = Σ_k w_k N(y; m, v + σ² c_k),   c_k = 1/λ_k of a scale mixture.

    One multiplier is a Gaussian. Means are medians where they do not exist.

    Parameters
    ----------
    center : array [N]
        m, the mean of f and of Y.
    variance : array [N]
        v, the variance of f.
    noise : array [N]
        σ², a variance: that of ε where the multiplier is 1.
    multipliers : array [N, K] or [K]
        c_k of each row, or of all rows alike.
    log_weights : array [K]
        log w_k.
    df : float or None
        The multipliers are those of a Student-t with so many degrees of freedom, whose E c = df/(df − 2), inf for df ≤ 2, the nodes do not
        give. None: E c = Σ_k w_k c_k.
    """

    center: PerRow
    variance: PerRow
    noise: PerRow
    multipliers: Float64[np.ndarray, "*N K"]
    log_weights: Float64[np.ndarray, " K"]
    df: float | None = None

    @property
    def mean(self) -> PerRow:
        return self.center

    @property
    def std(self) -> PerRow:
        c = self.multipliers @ self.weights
        if self.df is not None:
            c = self.df / (self.df - 2) if self.df > 2 else math.inf
        return np.sqrt(self.variance + self.noise * c)

    @property
    def tail_index(self) -> float:
        return math.inf if self.df is None else self.df

    def __getitem__(self, rows: Any) -> "ScaleMixture":
        multipliers = self.multipliers if self.multipliers.ndim == 1 else self.multipliers[rows]
        parts = (self.center[rows], self.variance[rows], self.noise[rows])
        return ScaleMixture(*parts, multipliers, self.log_weights, self.df)

    def affine(self, scale: float, shift: float | PerRow) -> "ScaleMixture":
        parts = (self.center * scale + shift, self.variance * scale**2, self.noise * scale**2)
        return ScaleMixture(*parts, self.multipliers, self.log_weights, self.df)

    @property
    def _held(self) -> int:
        return len(self.log_weights)

    @property
    def weights(self) -> Float64[np.ndarray, " K"]:
        return np.exp(self.log_weights)

    def _logpdf(self, y: Points) -> Points:
        t = self._stds()[:, None]  # [N, 1, K]
        z = (y - self.center[:, None])[..., None] / t
        return np.asarray(logsumexp(self.log_weights - 0.5 * z**2 - np.log(t), axis=-1)) - 0.5 * LOG_2PI

    def _tails(self, y: Points) -> tuple[Points, Points]:
        z = np.abs(y - self.center[:, None])[..., None] / self._stds()[:, None]
        small = ndtr(-z) @ self.weights
        large = self.weights.sum() - small
        before = y < self.center[:, None]
        return np.where(before, small, large), np.where(before, large, small)

    def _quantile(self, p: Points) -> Points:
        """m ∓ d, with d solved for in log P(Y < m − d) = log min(p, 1 − p), by log d: between the quantiles of the least and largest τ_k."""
        tail, t = np.minimum(p, 1 - p), self._stds()
        middle, low, high = self._brackets(tail, t)

        def value_and_slope(u: Points) -> tuple[Points, Points]:
            found, density = self._tail_and_density(np.exp(u), t)
            return np.log(tail) - np.log(found), density * np.exp(u) / found

        d = np.where(middle, 0.0, np.exp(solve_increasing(value_and_slope, low, high)))
        return self.center[:, None] + np.where(p < 0.5, -d, d)

    def _brackets(
        self, tail: Points, t: Float64[np.ndarray, "N K"]
    ) -> tuple[Bool[np.ndarray, "N Q"], Points, Points]:
        """(Which are medians, log d between the quantiles of the least and the largest of the standard deviations t)."""
        least = -ndtri(np.minimum(tail, 0.5))
        middle = least < 1e-13
        start = np.log(np.where(middle, 1.0, least))
        low, high = (start + np.log(end(t, axis=1))[:, None] for end in (np.min, np.max))
        return middle, low, high

    def _tail_and_density(self, d: Points, t: Float64[np.ndarray, "N K"]) -> tuple[Points, Points]:
        """P(Y < m − d), at least 1e-300, and p(m − d)."""
        z = d[..., None] / t[:, None]
        density = np.exp(-0.5 * z**2) @ (self.weights / t)[..., None]
        return np.maximum(ndtr(-z) @ self.weights, 1e-300), density[..., 0] / math.sqrt(2 * math.pi)

    def _crps(self, y: Points) -> Points:
        """Σ_k w_k A(y − m, τ_k²) − ½ Σ_k Σ_l w_k w_l A(0, τ_k² + τ_l²), A(μ, τ²) = 2τφ(μ/τ) + μ(2Φ(μ/τ) − 1) (Grimit et al. 2006)."""
        t, w = self._stds(), self.weights
        error = (y - self.center[:, None])[..., None]
        z = error / t[:, None]
        near = (2 * t[:, None] * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + error * (2 * ndtr(z) - 1)) @ w
        apart = np.zeros(self.n_rows)
        for k in range(len(w)):
            apart += w[k] * (np.hypot(t, t[:, [k]]) @ w)
        return near - apart[:, None] / math.sqrt(2 * math.pi)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        w = self.weights / self.weights.sum()
        k = generator.choice(len(w), size=(self.n_rows, n), p=w)
        t = self._stds()[np.arange(self.n_rows)[:, None], k]
        return self.center[:, None] + t * generator.standard_normal((self.n_rows, n))

    def _stds(self) -> Float64[np.ndarray, "N K"]:
        """τ_k of each row."""
        return np.sqrt(self.variance[:, None] + self.noise[:, None] * self.multipliers)


def student_multipliers(df: float) -> tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, " K"]]:
    """(1/λ_k, log w_k) with which Σ_k w_k N(0, σ²/λ_k) is σ t_df: λ ~ Gamma(df/2, rate df/2) by the trapezoid rule in u = log λ.

    w_k ∝ exp((df/2)(u − e^u)). The nodes reach to the left as far as an error of 10⁴ σ needs (10⁶ σ/df beyond df = 100), and to the right
    as the Gamma density does, both until what is integrated has fallen by e^(−28).

    Parameters
    ----------
    df : float
        Degrees of freedom, positive.
    """
    half, more = df / 2, (df + 1) / 2
    error = FARTHEST * min(1.0, GAUSSIAN_DF / df)
    fall = lambda shape: lambda u: shape * (np.expm1(u) - u) - FALLEN
    farthest = -FALLEN / more - 2  # beyond the root: e^u − 1 − u ≥ −u − 1
    left = math.log((df + 1) / (df + error**2)) + root_scalar(fall(more), bracket=(farthest, 0.0)).root
    right = root_scalar(fall(half), bracket=(0.0, math.log(FALLEN / half + 2) + 2)).root
    n = math.ceil((right - left) / min(0.45, 0.9 / math.sqrt(more))) + 1
    u = np.linspace(left, right, n)
    log_w = half * (u - np.exp(u))
    return np.exp(-u), log_w - logsumexp(log_w)
