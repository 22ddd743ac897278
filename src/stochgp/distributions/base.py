"""The interface of predictive distributions, computed on the host in float64 NumPy."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import narwhals as nw
import numpy as np
from jaxtyping import Float64

from stochgp.numerics.seeds import as_key, seed_of, split
from stochgp.warning import silent, warn

HELD = 1 << 19  # maximum number of values in memory per chunk of rows
ARRAYS = 16  # number of arrays in memory during a search for quantiles
# Integrals over y are split at the quantiles of these probabilities and of 1 minus them.
BREAKS = (1e-12, 1e-8, 1e-5, 1e-3, 0.02, 0.12)
OF_PIECE = 6  # Gauss–Legendre nodes per piece of an integral
MAX_STEPS = 200  # maximum steps of the root search; Newton's method needs five to ten
MAX_SHOWN = 3  # maximum number of rows in a representation
CLOSE = 1e-13  # relative tolerance of probabilities and of brackets of a root

PerRow = Float64[np.ndarray, " N"]
Points = Float64[np.ndarray, "N Q"]


class AbstractDistribution(eqx.Module):
    """The distribution of one observation at each of N rows.

    Methods accept `y` as a number for all rows, an array [N], or an array [N, Q] of Q points per row.
    Results have the shape of `y`, or [N] if `y` is a number. Subclasses implement the methods whose names
    begin with an underscore. These methods receive arrays [N, Q]. Every array in a field has N rows.
    """

    # Bypass Equinox, which would create a pytree for each method call.
    __getattribute__ = object.__getattribute__

    @property
    def n_rows(self) -> int:
        """The number of rows N."""
        return len(jax.tree.leaves(self)[0])

    @property
    def mean(self) -> PerRow:
        """The mean of each row. If no mean exists within `limits`: the median, with a warning."""
        low, high = self.limits
        if self.tail_index <= 1:
            warn("these distributions have no mean; `mean` contains medians instead", stacklevel=2)
            return np.clip(self.quantile(0.5), low, high)
        mean = self._moment(0)
        if (outside := (mean < low) | (mean > high)).any():
            what = f"{outside.sum()} of {len(mean)} predicted means are outside the range that the training targets support, {low:.4g} to {high:.4g}"
            warn(f"{what}: medians replace them", stacklevel=2)
            mean[outside] = np.clip(self[outside].quantile(0.5), low, high)
        return mean

    @property
    def std(self) -> PerRow:
        """The standard deviation of each row, at most the width of `limits`; inf if undefined."""
        (low, high), std = self.limits, np.full(self.n_rows, math.inf)
        if self.tail_index > 2:
            std = self._moment(1)
        if (wide := std > high - low).any():
            std[wide] = self[wide]._moment(1, low, high)
        return std

    @property
    def tail_index(self) -> float:
        """Order below which all moments exist; ∞ if all moments exist."""
        base = getattr(self, "base", None)
        return math.inf if base is None else base.tail_index

    @property
    def limits(self) -> tuple[float, float]:
        """The range of means that the training targets support; infinite if it is unknown."""
        base = getattr(self, "base", None)
        return (-math.inf, math.inf) if base is None else base.limits

    @property
    def is_discrete(self) -> bool:
        """True if observations are whole numbers, such as counts and class indices."""
        return False

    @property
    def has_masses(self) -> bool:
        """True if some values have a positive probability."""
        return self.is_discrete

    def __getitem__(self, rows: Any) -> Any:
        """Return the distributions of some rows: a slice, row numbers or a mask."""
        return jax.tree.map(lambda leaf: leaf[rows] if np.ndim(leaf) else leaf, self)

    def affine(self, scale: float, shift: float | PerRow) -> "AbstractDistribution":
        """Return the distribution of scale · y + shift. Raises ValueError if not available."""
        raise ValueError(f"a {type(self).__name__} distribution cannot be scaled or shifted")

    @abc.abstractmethod
    def _logpdf(self, y: Points) -> Points: ...

    @abc.abstractmethod
    def _tails(self, y: Points) -> tuple[Points, Points]:
        """Return P(Y ≤ y) and P(Y > y), accurate even for small probabilities."""

    @abc.abstractmethod
    def _quantile(self, p: Points) -> Points: ...

    def _before(self, y: Points) -> Points:
        """Return P(Y < y)."""
        return self._tails(y - 1 if self.is_discrete else y)[0]

    @property
    def _held(self) -> int:
        """The number of values in memory per row and point of an evaluation."""
        sizes = (leaf.size for leaf in jax.tree.leaves(self) if isinstance(leaf, np.ndarray))
        return sum(sizes) // self.n_rows

    @property
    def _nodes(self) -> int:
        """The number of points of an integral or a sum over all y."""
        return 512 if self.is_discrete else 2 * len(BREAKS) * OF_PIECE

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        """Return increasing points, the quantiles of p, between which F is smooth."""
        return self._quantile(p)

    def _own_breaks(self) -> Float64[np.ndarray, "N B"]:
        p = np.array([*BREAKS, 0.5, *(1 - p for p in reversed(BREAKS))])
        return self._breaks(np.broadcast_to(p, (self.n_rows, len(p))))

    def _smooth_tails(self, y: Points) -> tuple[Points, Points]:
        """Return `_tails` for integrals; for counts, a continuous interpolation of `_tails`."""
        return self._tails(y)

    def _integrals(
        self, low: Points, high: Points, of_tails: Callable[[Points, Points, Points], list[Points]]
    ) -> list[Points]:
        """Return ∫ g dt from `low` to `high` for each g in `of_tails(t, F(t), 1 − F(t))`."""
        nodes, w = np.polynomial.legendre.leggauss(OF_PIECE)
        half = (high - low) / 2
        t = (low + high)[..., None] / 2 + half[..., None] * nodes
        tails = self._smooth_tails(t.reshape(len(t), -1))
        return [half * (g @ w) for g in of_tails(t, *(tail.reshape(t.shape) for tail in tails))]

    def _crps(self, y: Points) -> Points:
        below, above = self._squares(y)
        return below + above

    def _squares(self, y: Points) -> tuple[Points, Points]:
        """Return ∫ F² dt up to y, and ∫ (1 − F)² dt from y on; both are split at `_breaks`."""
        breaks = self._own_breaks()
        squares = lambda t, below, above: [below**2, above**2]
        under, over = self._integrals(breaks[:, :-1], breaks[:, 1:], squares)
        nothing = np.zeros((self.n_rows, 1))
        under = np.concatenate([nothing, np.cumsum(under, axis=1)], axis=1)  # up to each break
        over = np.concatenate([np.cumsum(over[:, ::-1], axis=1)[:, ::-1], nothing], axis=1)  # from each break
        k = np.sum(breaks[:, None] <= y[..., None], axis=2)  # breaks up to y
        before, after = np.maximum(k - 1, 0), np.minimum(k, breaks.shape[1] - 1)
        low = np.minimum(np.take_along_axis(breaks, before, axis=1), y)
        high = np.maximum(np.take_along_axis(breaks, after, axis=1), y)
        below = np.where(k > 0, np.take_along_axis(under, before, axis=1), 0.0)
        above = np.where(k < breaks.shape[1], np.take_along_axis(over, after, axis=1), 0.0)
        return below + self._integrals(low, y, squares)[0], above + self._integrals(y, high, squares)[1]

    def _moments(self, low: float = -math.inf, high: float = math.inf) -> tuple[Points, Points]:
        """Return mean and standard deviation [N, 1] of observations clipped to [low, high]."""
        breaks = np.clip(self._own_breaks(), low, high)
        m = breaks[:, [breaks.shape[1] // 2]]
        first, second = self._from(m, breaks)
        return m + first, np.sqrt(np.maximum(second - first**2, 0.0))

    def _from(self, m: Points, breaks: Float64[np.ndarray, "N B"]) -> list[Points]:
        """Return E[Y − m] and E[(Y − m)²] from integrals of 1 − F above m and of F below m."""
        tail = lambda t, below, above: np.where(t < m[..., None], -below, above)
        parts = lambda t, *tails: [tail(t, *tails), 2 * (t - m[..., None]) * tail(t, *tails)]
        found = self._integrals(breaks[:, :-1], breaks[:, 1:], parts)
        return [part.sum(axis=1, keepdims=True) for part in found]

    def _moment(self, k: int, *ends: float) -> PerRow:
        nothing = np.zeros((self.n_rows, 1))
        with np.errstate(over="ignore", invalid="ignore"):
            return self._by_parts(lambda part, _: part._moments(*ends)[k], nothing, self._nodes)[:, 0]

    def _draw(self, generator: np.random.Generator, n: int) -> Float64[np.ndarray, "N S"]:
        return self._quantile(generator.uniform(size=(self.n_rows, n)))

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        with silent():
            some = self[: min(MAX_SHOWN, len(self))]
            each = zip(some.mean, *some.interval(0.9).T, strict=True)
            shown = [f"{mean:.4g} ({low:.4g} to {high:.4g})" for mean, low, high in each]
        more = ["…"] if len(self) > MAX_SHOWN else []
        return (
            f"{type(self).__name__} of {len(self)} rows, means and 90 % intervals: {', '.join(shown + more)}"
        )

    @property
    def var(self) -> PerRow:
        """The variance of each row; inf if undefined."""
        return self.std**2

    @property
    def median(self) -> PerRow:
        """The median of each row."""
        return self.quantile(0.5)

    def pdf(self, y: Any) -> np.ndarray:
        """Return the density p(y), or the probability if y is a count or a class."""
        return np.exp(self.logpdf(y))

    def ppf(self, p: Any) -> np.ndarray:
        """Return `quantile(p)`, under SciPy's name."""
        return self.quantile(p)

    def rvs(self, size: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw `size` observations per row: [N, size], or [N] if `size` is 1. See `sample`."""
        found = self.sample(random_state, size)
        return found[:, 0] if size == 1 else found

    def to_frame(self, level: float = 0.9, backend: Any = "pandas") -> Any:
        """Return a data frame with the columns mean, std, median, lower and upper.

        Parameters
        ----------
        level : float
            The probability of the central interval from lower to upper, between 0 and 1.
        backend : str
            "pandas", "polars" or "pyarrow"; the package must be installed.
        """
        lower, upper = self.interval(level).T
        columns = {"mean": self.mean, "std": self.std, "median": self.median, "lower": lower, "upper": upper}
        return nw.from_dict(
            {name: np.array(column) for name, column in columns.items()}, backend=backend
        ).to_native()

    def logpdf(self, y: Any) -> np.ndarray:
        """Return the log density log p(y), or the log probability of a count or a class y."""
        return self._at(lambda part, y: part._logpdf(y), y, (-np.inf, -np.inf))

    def cdf(self, y: Any) -> np.ndarray:
        """Return P(Y ≤ y)."""
        return self._at(lambda part, y: np.minimum(part._tails(y)[0], 1.0), y, (0.0, 1.0))

    def sf(self, y: Any) -> np.ndarray:
        """Return P(Y > y) = 1 − cdf(y), accurate even for small probabilities."""
        return self._at(lambda part, y: np.minimum(part._tails(y)[1], 1.0), y, (1.0, 0.0))

    def pit(self, y: Any, seed: int = 0) -> np.ndarray:
        """Return the probability integral transform F(y), uniform for calibrated predictions.

        For counts, classes and point masses, return P(Y < y) + V P(Y = y). Random numbers V are uniform on
        [0, 1] and drawn with `seed` (Czado, Gneiting and Held 2009).
        """
        found = self.cdf(y)
        if not self.has_masses:
            return found
        before = self._at(lambda part, y: part._before(y), y, (0.0, 1.0))
        return before + np.random.default_rng(seed).uniform(size=found.shape) * (found - before)

    def crps(self, y: Any) -> np.ndarray:
        """Return the CRPS ∫ (F(t) − 1[t ≥ y])² dt in the units of y; lower is better."""
        return self._at(lambda part, y: part._crps(y), y, (np.inf, np.inf), self._nodes)

    def quantile(self, p: Any) -> np.ndarray:
        """Return the smallest y with P(Y ≤ y) ≥ p; [N] for a number p, [N, Q] for Q numbers.

        Raises ValueError unless every p is between 0 and 1.
        """
        found = np.asarray(p, np.float64)
        if found.ndim > 1 or not np.all((found > 0) & (found < 1)):
            raise ValueError(f"p must be a number between 0 and 1 or a list of such numbers, but is {p!r}")
        asked = np.broadcast_to(found.reshape(1, -1), (self.n_rows, found.size))
        values = self._by_parts(lambda part, p: part._quantile(p), asked, ARRAYS * found.size)
        return values if found.ndim else values[:, 0]

    def interval(self, level: float = 0.95) -> Float64[np.ndarray, "N 2"]:
        """Return a central interval: the quantiles at (1 − level)/2 and (1 + level)/2."""
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, but is {level!r}")
        return self.quantile([(1 - level) / 2, (1 + level) / 2])

    def sample(self, key: Any, n: int = 1) -> Float64[np.ndarray, "N S"]:
        """Draw n observations per row, [N, n]; `key` is a JAX key, a number or a `random_state`."""
        generator = np.random.default_rng(seed_of(split(as_key(key), 1)[0]))
        return self._draw(generator, n)

    def _at(self, evaluate: Callable, y: Any, limits: tuple[float, float], each: int = 1) -> np.ndarray:
        """Call `evaluate` on chunks of rows. NaN gives NaN; −∞ and ∞ give the two `limits`."""
        y = np.asarray(y, np.float64)
        if y.ndim > 2 or y.ndim > 0 and len(y) != self.n_rows:
            raise ValueError(
                f"y must be a number, or an array [N] or [N, Q] with N = {self.n_rows}, but has the shape {y.shape}"
            )
        points = np.broadcast_to(y, (self.n_rows, 1)) if y.ndim == 0 else y
        points = points if y.ndim == 2 else points.reshape(self.n_rows, 1)
        finite = np.isfinite(points)
        with np.errstate(over="ignore"):  # squares of very large numbers overflow
            values = self._by_parts(evaluate, points if finite.all() else np.where(finite, points, 0.0), each)
        if not finite.all():
            values = np.where(finite, values, np.where(points < 0, *limits))
            values[np.isnan(points)] = np.nan
        return values if y.ndim == 2 else values[:, 0]

    def _by_parts(self, evaluate: Callable, points: Points, each: int = 1) -> Points:
        """Call `evaluate` on chunks of rows that keep at most HELD values in memory."""
        N, Q = points.shape
        if N == 0:
            return np.empty((0, Q))
        n = max(1, HELD // max(1, self._held * max(each, Q)))
        if n >= N:
            return evaluate(self, points)
        return np.concatenate([evaluate(self[slice(i, i + n)], points[i : i + n]) for i in range(0, N, n)])


def inside(p: np.ndarray) -> np.ndarray:
    """Clip probabilities away from 0 and 1, where quantiles are infinite."""
    return np.broadcast_to(np.clip(once(p), 1e-300, 1 - 1e-16), p.shape)


def once(p: np.ndarray) -> np.ndarray:
    """Return one row if all rows are views of one row, so that quantiles are computed once."""
    return p[:1] if p.ndim == 2 and p.strides[0] == 0 else p


def solve_increasing(
    value_and_slope: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Solve value(x) = 0 for x in [low, high] by Newton's method with bisection.

    `value` increases in x; up to rounding, value(low) ≤ 0 ≤ value(high). The search starts at `start` in
    [low, high], or in the middle for None. The value at the last step is predicted from the last two values.
    """
    x, old = 0.5 * (low + high) if start is None else start, np.zeros(1)
    for _ in range(MAX_STEPS):
        value, slope = value_and_slope(x)
        low, high = np.where(value < 0, x, low), np.where(value < 0, high, x)
        exact = (value == 0) | (high - low <= CLOSE * np.maximum(np.abs(low), np.abs(high)))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            following = x - value / slope
            within = (following > low) & (following < high)  # False for NaN
            done = exact | (np.abs(value) * np.minimum(np.square(value / old), 1) <= CLOSE)
        x = np.where(exact | (done & ~within), x, np.where(within, following, 0.5 * (low + high)))
        if done.all():
            break
        old = value
    return x
