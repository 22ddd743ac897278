"""Mixtures of predictive distributions, and point masses."""

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

TOUCHING = 1e-6  # maximum distance from a point mass, relative to its width, that counts as equal
FALLEN = 28.0  # decrease of the log integrand over λ at which the integral ends
FARTHEST = 1e4  # maximum error with an accurate density, in scales of the Student-t
GAUSSIAN_DF = 100.0  # with more degrees of freedom, this maximum decreases
LEAST_WIDTH = 1e-3  # minimum width, in standard deviations of the targets


class Mixture(AbstractDistribution):
    """A mixture of J distributions p_j with weights w_j: p(y) = Σ_j w_j p_j(y).

    Parameters
    ----------
    parts : sequence of J distributions
        The parts p_j, each with N rows: continuous distributions or a `PointMass`.
    weights : array [J] or [N, J]
        The weights w_j ≥ 0, which sum to 1, for all rows or per row.
    df : float
        The degrees of freedom of the Student-t that the mixture approximates; `std` is inf for df ≤ 2.
    """

    parts: tuple[AbstractDistribution, ...]
    weights: Float64[np.ndarray, "N J"]
    df: float

    def __init__(self, parts: Sequence[AbstractDistribution], weights: np.ndarray, df: float = math.inf):
        if np.any(abs(weights.sum(axis=-1) - 1) > 1e-8) or np.any(weights < 0):
            raise ValueError(f"mixture weights must not be negative and must sum to 1, but are {weights}")
        if len({part.n_rows for part in parts}) > 1:
            raise ValueError("the parts of a mixture must have the same number of rows")
        self.parts, self.df = tuple(parts), df
        self.weights = np.broadcast_to(weights, (parts[0].n_rows, len(parts)))

    @property
    def tail_index(self) -> float:
        return min(self.df, *(part.tail_index for part in self.parts))

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest of the finite limits of the parts."""
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
        """Solve `_equation` between the quantiles of the parts."""
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
        """Return log F(y) − log p, or log(1 − p) − log(1 − F(y)) for p ≥ ½, with its slope."""
        continuous = [(w, part) for w, part in self._weighted if not part.has_masses]

        def value_and_slope(y: Points) -> tuple[Points, Points]:
            below, above = self._tails(y)
            tail = np.maximum(np.where(p < 0.5, below, above), 1e-300)
            value = np.log(tail) - np.log(np.minimum(p, 1 - p))
            density = sum((w[:, None] * np.exp(part._logpdf(y)) for w, part in continuous), np.zeros_like(y))
            return np.where(p < 0.5, value, -value), density / tail

        return value_and_slope

    def _crps(self, y: Points) -> Points:
        """Return E|Y − y| − E|Y − Y'|/2, for normal parts in closed form (Grimit et al. 2006)."""
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
    """Return E|Z| for Z ~ N(mean, std²)."""
    if not mean.any():
        return std * np.sqrt(2 / np.pi)
    z = mean / std
    return mean * (2 * ndtr(z) - 1) + std * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2)


def which_part(weights: Float64[np.ndarray, "N J"], u: Float64[np.ndarray, "N S"]) -> Int[np.ndarray, "N S"]:
    """Return the first part whose cumulative weight exceeds u, a uniform number in [0, 1]."""
    ends = np.cumsum(weights, axis=1)[:, :-1]
    return np.sum(u[:, :, None] >= ends[:, None, :], axis=2)


class PointMass(AbstractDistribution):
    """The distribution of a constant, for mixtures such as hurdle models (Cragg 1971).

    Within a distance of width/2 from `value`, the density is set to 1/width. It can then be compared with
    densities of continuous distributions. `cdf`, `quantile`, `crps` and draws ignore the width.

    Parameters
    ----------
    value, width : array [N]
        The constant, and the positive resolution of recorded targets, in the units of Y.
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
    """Return the smallest difference of two targets, at least 0.001 standard deviations."""
    return max(float(np.diff(np.unique(y)).min(initial=np.inf)), LEAST_WIDTH * float(np.std(y)))


def normal_plus_student(mean: PerRow, variance: PerRow, scale: PerRow, df: float) -> Mixture:
    """Return f + √scale · T as a mixture, for f ~ N(mean, variance) and a Student-t T."""
    c, w = student_multipliers(df)
    return Mixture([Normal(mean, np.sqrt(variance + scale * c_k)) for c_k in c], w, df)


def student_multipliers(df: float) -> tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, " K"]]:
    """Return 1/λ_k and w_k such that Σ_k w_k N(0, σ²/λ_k) approximates a Student-t of scale σ.

    The λ_k and w_k are nodes and weights of a trapezoid rule in log λ. The density is accurate for errors
    up to 10⁴ σ, or 10⁶ σ/df for df > 100. For df > 2, the variance Σ_k w_k/λ_k is df/(df − 2).
    """
    half, more = df / 2, (df + 1) / 2
    error = FARTHEST * min(1.0, GAUSSIAN_DF / df)
    fall = lambda shape: lambda u: shape * (np.expm1(u) - u) - FALLEN
    farthest = -FALLEN / more - 2  # left of the root, because e^u − 1 − u ≥ −u − 1
    left = math.log((df + 1) / (df + error**2)) + root_scalar(fall(more), bracket=(farthest, 0.0)).root
    right = root_scalar(fall(half), bracket=(0.0, math.log(FALLEN / half + 2) + 2)).root
    u = np.linspace(left, right, math.ceil((right - left) / min(0.45, 0.9 / math.sqrt(more))) + 1)
    c, w = np.exp(-u), softmax(half * (u - np.exp(u)))
    if 2 < df < 4:  # for df ≥ 4 the relative error of the variance is below 1e-8
        c[0] += (df / (df - 2) - w @ c) / w[0]
    return c, w
