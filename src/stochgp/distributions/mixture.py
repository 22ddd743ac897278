"""Mixtures of predictive distributions, and point masses as their parts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float64, Int
from scipy.special import logsumexp, ndtr

from stochgp.distributions.base import AbstractDistribution, PerRow, Points, solve_increasing
from stochgp.distributions.normal import Normal

TOUCHING = 1e-6  # of the width: a target as near to the value counts as the value
LEAST_WIDTH = 1e-3  # in standard deviations of the targets


class Mixture(AbstractDistribution):
    """p(y) = Σ_j w_j p_j(y).

    Parameters
    ----------
    parts : tuple of J distributions
        p_j, of the same N rows, continuous or a `PointMass`.
    weights : array [J] or [N, J]
        w_j of all rows, or of each: at least 0, with the sum 1 over the parts.
    """

    parts: tuple[AbstractDistribution, ...]
    weights: Float64[np.ndarray, " J"] | Float64[np.ndarray, "N J"]

    def __check_init__(self) -> None:
        n_parts, total = self.weights.shape[-1], self.weights.sum(axis=-1)
        if len(self.parts) != n_parts or np.any(abs(total - 1) > 1e-8) or np.any(self.weights < 0):
            raise ValueError(
                f"{len(self.parts)} parts need as many weights ≥ 0 that sum to 1, but got {self.weights}"
            )
        rows = {part.n_rows for part in self.parts} | set(self.weights.shape[:-1])
        if len(rows) > 1:
            raise ValueError("the parts of a mixture and their weights must be of the same rows")

    @property
    def n_rows(self) -> int:
        return self.parts[0].n_rows

    @property
    def tail_index(self) -> float:
        return min(part.tail_index for part in self.parts)

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
        squares = (w * (part.std**2 + (part.mean - mean) ** 2) for w, part in self._weighted)
        return np.sqrt(sum(squares, np.zeros(self.n_rows)))

    def __getitem__(self, rows: Any) -> "Mixture":
        weights = self.weights if self.weights.ndim == 1 else self.weights[rows]
        return Mixture(tuple(part[rows] for part in self.parts), weights)

    def affine(self, scale: float, shift: float | PerRow) -> "Mixture":
        return Mixture(tuple(part.affine(scale, shift) for part in self.parts), self.weights)

    @property
    def _held(self) -> int:
        return max(part._held for part in self.parts)

    @property
    def _weighted(self) -> list[tuple[Any, AbstractDistribution]]:
        return list(zip(np.moveaxis(self.weights, -1, 0), self.parts, strict=True))

    @property
    def _pieces(self) -> int:
        return sum(part._pieces + 1 for part in self.parts) - 1

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        return np.sort(np.concatenate([part._breaks(p) for part in self.parts], axis=1), axis=1)

    def _logpdf(self, y: Points) -> Points:
        with np.errstate(divide="ignore"):
            each = [part._logpdf(y) + np.log(w)[..., None] for w, part in self._weighted]
        return np.asarray(logsumexp(np.stack(each), axis=0))

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below, above = np.zeros_like(y), np.zeros_like(y)
        for w, part in self._weighted:
            lower, upper = part._tails(y)
            below += w[..., None] * lower
            above += w[..., None] * upper
        return below, above

    def _before(self, y: Points) -> Points:
        return sum((w[..., None] * part._before(y) for w, part in self._weighted), np.zeros_like(y))

    def _quantile(self, p: Points) -> Points:
        """Solve `_equation` between the quantiles of the parts, and on one side of point masses or at one of them. Of parts of one transform T: T⁻¹ of those of their bases."""
        transforms: list[Any] = [getattr(part, "transform", None) for part in self.parts]
        if transforms[0] is not None and all(eqx.tree_equal(T, transforms[0]) is True for T in transforms):
            bases: Any = tuple(vars(part)["base"] for part in self.parts)
            return transforms[0].inverse(Mixture(bases, self.weights)._quantile(p))
        each = np.stack([part._quantile(p) for part in self.parts])
        low, high = each.min(axis=0), each.max(axis=0)
        start = sum(
            (w[..., None] * q for (w, _), q in zip(self._weighted, each, strict=True)), np.zeros_like(p)
        )
        for at in (at for at, part in zip(each, self.parts, strict=True) if part.has_masses):
            high = np.where(p <= self._tails(at)[0], np.minimum(high, at), high)
            low = np.where(p > self._before(at), np.maximum(low, at), low)
        some = lambda left: self[np.nonzero(left)[0]]._equation(p[left][:, None])
        return solve_increasing(self._equation(p), low, high, np.clip(start, low, high), some)

    def _equation(self, p: Points) -> Callable[[Points], tuple[Points, Points]]:
        """log F(y) − log p, or log(1 − p) − log(1 − F) for p ≥ ½, and its slope in y."""
        continuous = [(w, part) for w, part in self._weighted if not part.has_masses]

        def value_and_slope(y: Points) -> tuple[Points, Points]:
            below, above = self._tails(y)
            tail = np.maximum(np.where(p < 0.5, below, above), 1e-300)
            value = np.log(tail) - np.log(np.minimum(p, 1 - p))
            density = sum(
                (w[..., None] * np.exp(part._logpdf(y)) for w, part in continuous), np.zeros_like(y)
            )
            return np.where(p < 0.5, value, -value), density / tail

        return value_and_slope

    def _crps(self, y: Points) -> Points:
        """Of normal parts E|Y − y| − E|Y − Y'|/2 in closed form (Grimit et al. 2006)."""
        if not all(isinstance(part, Normal) for part in self.parts):
            return super()._crps(y)
        found = np.zeros_like(y)
        for w, part in self._weighted:
            found += w[..., None] * _absolute(y - part.mean[:, None], part.std[:, None])
            for v, other in self._weighted:
                both = _absolute((part.mean - other.mean)[:, None], np.hypot(part.std, other.std)[:, None])
                found -= (w * v)[..., None] * both / 2
        return found

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        if self.weights.ndim == 1:
            w = self.weights / self.weights.sum()
            which = generator.choice(len(self.parts), size=(self.n_rows, n), p=w)
        else:
            which = which_part(self.weights, generator.uniform(size=(self.n_rows, n)))
        draws = np.stack([part._draw(generator, n) for part in self.parts])
        return np.take_along_axis(draws, which[None], axis=0)[0]


def _absolute(mean: Points, std: Points) -> Points:
    """E|Z|, Z ~ N(mean, std²)."""
    z = mean / std
    return mean * (2 * ndtr(z) - 1) + std * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2)


def which_part(weights: Float64[np.ndarray, "N J"], u: Float64[np.ndarray, "N S"]) -> Int[np.ndarray, "N S"]:
    """The first part whose cumulative weight exceeds u: part j with probability w_j, for u uniform on [0, 1]."""
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

    @property
    def _pieces(self) -> int:
        return 0

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
    """The resolution of targets: the smallest difference of two, at least a thousandth of their standard deviation."""
    return max(float(np.diff(np.unique(y)).min(initial=np.inf)), LEAST_WIDTH * float(np.std(y)))
