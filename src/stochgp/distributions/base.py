"""What every predictive distribution can do. Everything is on the host, in NumPy and float64."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float64

from stochgp.numerics.seeds import as_key, seed_of, split

HELD = 1 << 21  # numbers of one part of an evaluation
NODES = 48  # of either half of the integral of a CRPS
LONGEST = 10_000  # counts of a sum; beyond it integrals stand for sums
SMALLEST = 1e-280  # a probability below it is taken from the density

PerRow = Float64[np.ndarray, " N"]
Points = Float64[np.ndarray, "N Q"]


class AbstractDistribution(eqx.Module):
    """What is predicted of one observation at each of N rows.

    `y` is a number for all rows, an array [N] or, for Q points a row, an array [N, Q]; results have its shape, [N] for a number.
    A leaf says the methods with an underscore, for points [N, Q].
    """

    @property
    @abc.abstractmethod
    def n_rows(self) -> int:
        """N."""

    @property
    @abc.abstractmethod
    def mean(self) -> PerRow:
        """Of each row's observation."""

    @property
    @abc.abstractmethod
    def std(self) -> PerRow:
        """The standard deviation of each row's observation; inf where there is none."""

    @property
    def tail_index(self) -> float:
        """Moments of the order below it exist: ∞ for all of them, the degrees of freedom of a Student-t."""
        return math.inf

    @property
    def is_discrete(self) -> bool:
        """Whether observations are whole numbers, of which each has a probability."""
        return False

    @abc.abstractmethod
    def __getitem__(self, rows: Any) -> "AbstractDistribution":
        """The distribution of these rows: a slice, an array of row numbers, or a mask."""

    @abc.abstractmethod
    def affine(self, scale: float, shift: float) -> "AbstractDistribution":
        """The distribution of scale · y + shift, scale > 0."""

    @abc.abstractmethod
    def _logpdf(self, y: Points) -> Points: ...

    @abc.abstractmethod
    def _tails(self, y: Points) -> tuple[Points, Points]:
        """(P(Y ≤ y), P(Y > y)), each accurate where it is small."""

    @abc.abstractmethod
    def _quantile(self, p: Points) -> Points: ...

    @property
    def _held(self) -> int:
        """Numbers that an evaluation at one point of one row holds."""
        return 1

    def _crps(self, y: Points) -> Points:
        return self._squares_below(y) + self._squares_above(y)

    def _draw(self, generator: np.random.Generator, n: int) -> Float64[np.ndarray, "N S"]:
        return self._quantile(generator.uniform(size=(self.n_rows, n)))

    def _nodes(self) -> tuple[Points, Float64[np.ndarray, " S"]]:
        """(y [N, S], w [S]) with Σ_s w_s g(y_s) ≈ E g(Y): quantiles of p = sin²θ, Gauss–Legendre in θ."""
        sin2, w = probability_nodes()
        return self._quantile(np.broadcast_to(inside(sin2), (self.n_rows, NODES))), w

    def _squares_below(self, y: Points) -> Points:
        """∫ F(t)² dt up to y, 2 ∫₀^F p (y − q_p) dp with F = F(y)."""
        sin2, w = probability_nodes()
        below = self._tails(y)[0]
        total = np.empty_like(y)
        for j in range(y.shape[1]):
            F, at = below[:, [j]], y[:, [j]]
            gap = np.maximum(at - self._quantile(inside(F * sin2)), 0)
            total[:, j] = 2 * F[:, 0] * ((F * sin2 * gap) @ w)
        return total

    def _squares_above(self, y: Points) -> Points:
        """∫ (1 − F(t))² dt from y, 2 ∫_F^1 (1 − p) (q_p − y) dp with F = F(y)."""
        sin2, w = probability_nodes()
        below, above = self._tails(y)
        total = np.empty_like(y)
        for j in range(y.shape[1]):
            F, S, at = below[:, [j]], above[:, [j]], y[:, [j]]
            gap = np.maximum(self._quantile(inside(F + S * sin2)) - at, 0)
            total[:, j] = 2 * S[:, 0] * ((S * (1 - sin2) * gap) @ w)
        return total

    def _log_mass(self, y: Points, width: float) -> Points:
        (below, above), (lower, upper) = (self._tails(y + side * width / 2) for side in (-1, 1))
        mass = np.where(below < 0.5, lower - below, above - upper)
        small = ~(mass > SMALLEST)
        found = np.log(np.where(small, 1.0, mass))
        return np.where(small, self._logpdf(y) + np.log(width), found) if small.any() else found

    def logpdf(self, y: Any) -> np.ndarray:
        """log p(y), the logarithm of the probability where y is a count or a class."""
        return self._at(lambda part, y: part._logpdf(y), y)

    def cdf(self, y: Any) -> np.ndarray:
        """P(Y ≤ y)."""
        return self._at(lambda part, y: part._tails(y)[0], y)

    def sf(self, y: Any) -> np.ndarray:
        """P(Y > y) = 1 − cdf(y), accurate where it is small."""
        return self._at(lambda part, y: part._tails(y)[1], y)

    def pit(self, y: Any, seed: int = 0) -> np.ndarray:
        """The probability integral transform: uniform on [0, 1] if y is an observation of this distribution.

        F(y); of counts and classes P(Y < y) + V P(Y = y), V uniform on [0, 1], drawn from `seed` (Czado, Gneiting and Held 2009).
        """
        found = self.cdf(y)
        if not self.is_discrete:
            return found
        before = self.cdf(np.asarray(y, np.float64) - 1)
        return before + np.random.default_rng(seed).uniform(size=found.shape) * (found - before)

    def crps(self, y: Any) -> np.ndarray:
        """∫ (F(t) − 1[t ≥ y])² dt, the continuous ranked probability score, in the units of y; lower is better."""
        return self._at(lambda part, y: part._crps(y), y)

    def log_mass(self, y: Any, width: float = 1.0) -> np.ndarray:
        """log(F(y + width/2) − F(y − width/2)): the log probability of a target that was rounded to multiples of `width`.

        Where that is below the numbers of float64, the density times `width` stands for it.
        """
        return self._at(lambda part, y: part._log_mass(y, width), y)

    def quantile(self, p: Any) -> np.ndarray:
        """The least y with P(Y ≤ y) ≥ p: [N] for a number p, [N, Q] for a list of Q numbers.

        Raises ValueError unless every p is above 0 and below 1.
        """
        found = np.asarray(p, np.float64)
        if found.ndim > 1 or not np.all((found > 0) & (found < 1)):
            raise ValueError(f"p is {p!r}; it must be a number or a list of numbers above 0 and below 1")
        asked = np.broadcast_to(found.reshape(1, -1), (self.n_rows, found.size))
        values = self._by_parts(lambda part, p: part._quantile(p), asked)
        return values if found.ndim else values[:, 0]

    def interval(self, level: float = 0.95) -> Float64[np.ndarray, "N 2"]:
        """(The quantiles (1 − level)/2 and (1 + level)/2): the central interval of each row. ValueError unless 0 < level < 1."""
        if not 0 < level < 1:
            raise ValueError(f"level is {level!r}; it must be above 0 and below 1")
        return self.quantile([(1 - level) / 2, (1 + level) / 2])

    def sample(self, key: Any, n: int = 1) -> Float64[np.ndarray, "N S"]:
        """n independent draws for each row, [N, n]; `key` is a key, a number, or whatever `random_state` may be."""
        generator = np.random.default_rng(seed_of(split(as_key(key), 1)[0]))
        return self._draw(generator, n)

    def _at(self, evaluate: Callable, y: Any) -> np.ndarray:
        """`evaluate(rows' distribution, their points [n, Q])` for y of any of the shapes."""
        found = np.asarray(y, np.float64)
        if found.ndim > 2 or found.ndim > 0 and len(found) != self.n_rows:
            raise ValueError(
                f"y has shape {found.shape}; a number is wanted, or {self.n_rows} rows: one value a row, or [N, Q]"
            )
        points = np.broadcast_to(found, (self.n_rows, 1)) if found.ndim == 0 else found
        values = self._by_parts(evaluate, points.reshape(self.n_rows, -1))
        return values if found.ndim == 2 else values[:, 0]

    def _by_parts(self, evaluate: Callable, points: Points) -> Points:
        """In parts of rows that hold at most HELD numbers."""
        N, Q = points.shape
        n = max(1, HELD // max(1, self._held * Q))
        if n >= N:
            return evaluate(self, points)
        return np.concatenate([evaluate(self[slice(i, i + n)], points[i : i + n]) for i in range(0, N, n)])


def probability_nodes() -> tuple[np.ndarray, np.ndarray]:
    """(sin²θ, w) with Σ w g(sin²θ) ≈ ∫₀¹ g(p) dp: Gauss–Legendre in θ, which takes the singularities of quantiles at 0 and 1."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    theta = (nodes + 1) * np.pi / 4
    return np.sin(theta) ** 2, weights * np.pi / 4 * 2 * np.sin(theta) * np.cos(theta)


def crps_of_counts(
    distribution: AbstractDistribution,
    y: Points,
    least_tail: float,
    F: Callable[[Any, np.ndarray], np.ndarray],
    of_many: Callable[[Any, float, float, float], float],
) -> Points:
    """Σ_k (F(k) − 1[k ≥ y])² of each row, F(k) = `F(row, k)`.

    F is evaluated at the counts k from the quantile of `least_tail` to that of 1 − `least_tail`. Below them it counts as 0, above them as 1.
    Where they are more than 10⁴, the sum is `of_many(row, y, first, last)` for each y.
    """
    ends = (
        distribution._quantile(np.full((distribution.n_rows, 1), p))[:, 0]
        for p in (least_tail, 1 - least_tail)
    )
    found = np.empty_like(y)
    for i, (low, high) in enumerate(zip(*ends, strict=True)):
        row = distribution[i : i + 1]
        if high - low > LONGEST:
            found[i] = [of_many(row, at, low, high) for at in y[i]]
            continue
        k = np.arange(low, high + 1)
        within = np.sum((F(row, k) - (k >= y[i][:, None])) ** 2, axis=1)
        found[i] = within + np.maximum(low - y[i], 0) + np.maximum(y[i] - high - 1, 0)
    return found


def inside(p: np.ndarray) -> np.ndarray:
    """Probabilities kept off 0 and 1, where quantiles are infinite."""
    return np.clip(p, 1e-300, 1 - 1e-16)
