"""Mixtures of predictive distributions, and point masses as their parts."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float64, Int
from scipy.optimize import root_scalar
from scipy.special import logsumexp, ndtr, softmax

from stochgp.distributions.base import AbstractDistribution, PerRow, Points, solve_increasing
from stochgp.distributions.normal import Normal

TOUCHING = 1e-6  # of the width: a target as near to the value counts as the value
FALLEN = 28.0  # nats: where the integral over λ is cut off
FARTHEST = 1e4  # errors, in scales, up to which it is accurate
GAUSSIAN_DF = 100.0  # above it tails are thinner, and accurate for smaller errors
LEAST_WIDTH = 1e-3  # in standard deviations of the targets


class Mixture(AbstractDistribution):
    """p(y) = Σ_j w_j p_j(y).

    Parameters
    ----------
    parts : sequence of J distributions
        p_j, of the same N rows, continuous or a `PointMass`.
    weights : array [J] or [N, J]
        w_j of all rows, or of each: at least 0, with the sum 1 over the parts.
    df : float
        Moments of this order and above do not exist, although those of the parts do: the parts approximate a Student-t.
    """

    parts: tuple[AbstractDistribution, ...]
    weights: Float64[np.ndarray, "N J"]
    df: float

    def __init__(self, parts: Sequence[AbstractDistribution], weights: np.ndarray, df: float = math.inf):
        if np.any(abs(weights.sum(axis=-1) - 1) > 1e-8) or np.any(weights < 0):
            raise ValueError(f"{len(parts)} parts need as many weights ≥ 0 that sum to 1, but got {weights}")
        if len({part.n_rows for part in parts}) > 1:
            raise ValueError("the parts of a mixture must be of the same rows")
        self.parts, self.df = tuple(parts), df
        self.weights = np.broadcast_to(weights, (parts[0].n_rows, len(parts)))

    @property
    def tail_index(self) -> float:
        return min(self.df, *(part.tail_index for part in self.parts))

    @property
    def limits(self) -> tuple[float, float]:
        """Those of the parts that have some: all learn from the same targets."""
        ends = [end for part in self.parts for end in part.limits if np.isfinite(end)]
        return (min(ends), max(ends)) if ends else (-np.inf, np.inf)

    @property
    def has_masses(self) -> bool:
        return any(part.has_masses for part in self.parts)

    @property
    def mean(self) -> PerRow:
        return sum((w * part.mean for w, part in self._weighted), np.zeros(self.n_rows))

    @property
    def std(self) -> PerRow:
        mean = self.mean
        if self.df <= 2:
            return np.full(self.n_rows, math.inf)
        squares = (w * (part.std**2 + (part.mean - mean) ** 2) for w, part in self._weighted)
        return np.sqrt(sum(squares, np.zeros(self.n_rows)))

    def affine(self, scale: float, shift: float | PerRow) -> "Mixture":
        return Mixture([part.affine(scale, shift) for part in self.parts], self.weights, self.df)

    @property
    def _weighted(self) -> list[tuple[Any, AbstractDistribution]]:
        return list(zip(self.weights.T, self.parts, strict=True))

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        return np.sort(np.concatenate([part._breaks(p) for part in self.parts], axis=1), axis=1)

    def _logpdf(self, y: Points) -> Points:
        with np.errstate(divide="ignore"):
            each = [part._logpdf(y) + np.log(w)[:, None] for w, part in self._weighted]
        return np.asarray(logsumexp(np.stack(each), axis=0))

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below, above = np.zeros_like(y), np.zeros_like(y)
        for w, part in self._weighted:
            lower, upper = part._tails(y)
            below += w[:, None] * lower
            above += w[:, None] * upper
        return below, above

    def _before(self, y: Points) -> Points:
        return sum((w[:, None] * part._before(y) for w, part in self._weighted), np.zeros_like(y))

    def _quantile(self, p: Points) -> Points:
        """Solve `_equation` between the quantiles of the parts, and on one side of point masses or at one of them. Of parts of one transform T: T⁻¹ of those of their bases."""
        transforms: list[Any] = [getattr(part, "transform", None) for part in self.parts]
        if transforms[0] is not None and all(eqx.tree_equal(T, transforms[0]) is True for T in transforms):
            bases: Any = [vars(part)["base"] for part in self.parts]
            return transforms[0].inverse(Mixture(bases, self.weights)._quantile(p))
        each = np.stack([part._quantile(p) for part in self.parts])
        low, high = each.min(axis=0), each.max(axis=0)
        start = np.einsum("nj,jnq->nq", self.weights, each)
        for at in (at for at, part in zip(each, self.parts, strict=True) if part.has_masses):
            high = np.where(p <= self._tails(at)[0], np.minimum(high, at), high)
            low = np.where(p > self._before(at), np.maximum(low, at), low)
        return solve_increasing(self._equation(p), low, high, np.clip(start, low, high))

    def _equation(self, p: Points) -> Callable[[Points], tuple[Points, Points]]:
        """log F(y) − log p, or log(1 − p) − log(1 − F) for p ≥ ½, and its slope in y."""
        continuous = [(w, part) for w, part in self._weighted if not part.has_masses]

        def value_and_slope(y: Points) -> tuple[Points, Points]:
            below, above = self._tails(y)
            tail = np.maximum(np.where(p < 0.5, below, above), 1e-300)
            value = np.log(tail) - np.log(np.minimum(p, 1 - p))
            density = sum((w[:, None] * np.exp(part._logpdf(y)) for w, part in continuous), np.zeros_like(y))
            return np.where(p < 0.5, value, -value), density / tail

        return value_and_slope

    def _crps(self, y: Points) -> Points:
        """E|Y − y| − E|Y − Y'|/2 of normal parts in closed form (Grimit et al. 2006)."""
        if not all(isinstance(part, Normal) for part in self.parts):
            return super()._crps(y)
        means, stds = (np.stack([getattr(part, of) for part in self.parts], axis=1) for of in ("mean", "std"))
        w = self.weights
        near = np.sum(w[:, None] * _absolute(y[..., None] - means[:, None], stds[:, None]), axis=2)
        each = (
            w[:, k] * np.sum(w * _absolute(means - means[:, [k]], np.hypot(stds, stds[:, [k]])), axis=1)
            for k in range(w.shape[1])
        )
        return near - sum(each, np.zeros(self.n_rows))[:, None] / 2

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        which = which_part(self.weights, generator.uniform(size=(self.n_rows, n)))
        found = np.empty(which.shape)
        for k, part in enumerate(self.parts):
            found = np.where(which == k, part._draw(generator, n), found)
        return found


def _absolute(mean: Points, std: Points) -> Points:
    """E|Z|, Z ~ N(mean, std²)."""
    if not mean.any():
        return std * np.sqrt(2 / np.pi)
    z = mean / std
    return mean * (2 * ndtr(z) - 1) + std * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2)


def which_part(weights: Float64[np.ndarray, "N J"], u: Float64[np.ndarray, "N S"]) -> Int[np.ndarray, "N S"]:
    """Return the first part whose cumulative weight exceeds u: part j with probability w_j, for u uniform on [0, 1]."""
    ends = np.cumsum(weights, axis=1)[:, :-1]
    return np.sum(u[:, :, None] >= ends[:, None, :], axis=2)


class PointMass(AbstractDistribution):
    """Y = value, with probability 1: as a part of a `Mixture` that of a hurdle model (Cragg 1971).

    The density is 1/width within width/2 of the value, of targets that are recorded to `width`, so that it compares with densities of
    continuous distributions. `cdf`, `quantile`, `crps` and draws are those of the value.

    Parameters
    ----------
    value, width : array [N]
        Of each row, in the units of Y; `width` is positive.
    """

    value: PerRow
    width: PerRow

    @property
    def mean(self) -> PerRow:
        return self.value

    @property
    def std(self) -> PerRow:
        return np.zeros(self.n_rows)

    @property
    def has_masses(self) -> bool:
        return True

    def affine(self, scale: float, shift: float | PerRow) -> "PointMass":
        return dataclasses.replace(self, value=scale * self.value + shift, width=scale * self.width)

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        return self.value[:, None]

    def _logpdf(self, y: Points) -> Points:
        width = self.width[:, None]
        return np.where(np.abs(y - self.value[:, None]) <= width / 2, -np.log(width), -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below = (y >= (self.value - TOUCHING * self.width)[:, None]).astype(np.float64)
        return below, 1 - below

    def _before(self, y: Points) -> Points:
        return (y > (self.value + TOUCHING * self.width)[:, None]).astype(np.float64)

    def _quantile(self, p: Points) -> Points:
        return np.broadcast_to(self.value[:, None], p.shape)

    def _crps(self, y: Points) -> Points:
        return np.abs(y - self.value[:, None])


def recorded_width(y: Float64[np.ndarray, " N"]) -> float:
    """Return the resolution of targets: the smallest difference of two, at least a thousandth of their standard deviation."""
    return max(float(np.diff(np.unique(y)).min(initial=np.inf)), LEAST_WIDTH * float(np.std(y)))


def normal_plus_student(mean: PerRow, variance: PerRow, scale: PerRow, df: float) -> Mixture:
    """f + √scale · T, f ~ N(mean, variance), T a Student-t: a mixture of the normal distributions of `student_multipliers`."""
    c, w = student_multipliers(df)
    return Mixture([Normal(mean, np.sqrt(variance + scale * c_k)) for c_k in c], w, df)


def student_multipliers(df: float) -> tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, " K"]]:
    """Return (1/λ_k, w_k) with which Σ_k w_k N(0, σ²/λ_k) is σ t_df: λ ~ Gamma(df/2, rate df/2) by the trapezoid rule in u = log λ.

    w_k ∝ exp((df/2)(u − e^u)). The nodes reach to the left as far as an error of 10⁴ σ needs (10⁶ σ/df beyond df = 100), and to the right as the Gamma
    density does, both until the integrand has fallen by e^(−28). The largest of 1/λ_k is such that Σ_k w_k/λ_k = df/(df − 2), if that exists.
    """
    half, more = df / 2, (df + 1) / 2
    error = FARTHEST * min(1.0, GAUSSIAN_DF / df)
    fall = lambda shape: lambda u: shape * (np.expm1(u) - u) - FALLEN
    farthest = -FALLEN / more - 2  # beyond the root: e^u − 1 − u ≥ −u − 1
    left = math.log((df + 1) / (df + error**2)) + root_scalar(fall(more), bracket=(farthest, 0.0)).root
    right = root_scalar(fall(half), bracket=(0.0, math.log(FALLEN / half + 2) + 2)).root
    u = np.linspace(left, right, math.ceil((right - left) / min(0.45, 0.9 / math.sqrt(more))) + 1)
    c, w = np.exp(-u), softmax(half * (u - np.exp(u)))
    if 2 < df < 4:  # from 4 on the nodes lack less than 1e-8 of it
        c[0] += (df / (df - 2) - w @ c) / w[0]
    return c, w
