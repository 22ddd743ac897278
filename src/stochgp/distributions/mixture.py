"""Mixtures of predictive distributions."""

from typing import Any

import numpy as np
from jaxtyping import Float64, Int
from scipy.special import logsumexp

from stochgp.distributions.base import AbstractDistribution, PerRow, Points
from stochgp.distributions.point_mass import PointMass
from stochgp.distributions.roots import solve_quantile


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
        rows = {part.n_rows for part in self.parts} | (
            {len(self.weights)} if self.weights.ndim == 2 else set()
        )
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
        """Each part with its weight, of all rows or [N]."""
        return list(zip(np.moveaxis(self.weights, -1, 0), self.parts, strict=True))

    @property
    def _pieces(self) -> int:
        return sum(part._pieces + 1 for part in self.parts) - 1

    def _bulk(self) -> "Mixture":
        return Mixture(tuple(part._bulk() for part in self.parts), self.weights)

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        """Those of all parts: each is smooth between its own."""
        return np.sort(np.concatenate([part._breaks(p) for part in self.parts], axis=1), axis=1)

    def _logpdf(self, y: Points) -> Points:
        return _log_density(self._weighted, y)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below, above = np.zeros_like(y), np.zeros_like(y)
        for w, part in self._weighted:
            lower, upper = part._tails(y)
            below += w[..., None] * lower
            above += w[..., None] * upper
        return below, above

    def _before(self, y: Points) -> Points:
        return sum((w[..., None] * part._before(y) for w, part in self._weighted), np.zeros_like(y))

    def _crps(self, y: Points) -> Points:
        return self._crps_in_pieces(y)

    def _quantile(self, p: Points) -> Points:
        """Between the least and the largest quantile of the parts; a point mass at the probabilities that its step passes."""
        each = np.stack([part._quantile(p) for part in self.parts])
        continuous = [(w, part) for w, part in self._weighted if not part.has_masses]
        low, high = each.min(axis=0), each.max(axis=0)
        averaged = sum(
            (w[..., None] * q for (w, _), q in zip(self._weighted, each, strict=True)), np.zeros_like(p)
        )
        start = np.clip(averaged, low, high)
        found = solve_quantile(self._tails, lambda y: _log_density(continuous, y), p, low, high, start)
        for part in self.parts:
            if isinstance(part, PointMass):
                at = np.broadcast_to(part.value[:, None], p.shape)
                found = np.where((self._before(at) < p) & (p <= self._tails(at)[0]), at, found)
        return found

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        if self.weights.ndim == 1:
            which = generator.choice(
                len(self.parts), size=(self.n_rows, n), p=self.weights / self.weights.sum()
            )
        else:
            which = which_part(self.weights, generator.uniform(size=(self.n_rows, n)))
        draws = np.stack([part._draw(generator, n) for part in self.parts])
        return np.take_along_axis(draws, which[None], axis=0)[0]


def _log_density(weighted: list[tuple[Any, AbstractDistribution]], y: Points) -> Points:
    """log Σ_j w_j p_j(y), −inf of no parts."""
    with np.errstate(divide="ignore"):
        each = [part._logpdf(y) + np.log(w)[..., None] for w, part in weighted]
    return logsumexp(np.stack(each), axis=0) if each else np.full_like(y, -np.inf)


def which_part(weights: Float64[np.ndarray, "N J"], u: Float64[np.ndarray, "N S"]) -> Int[np.ndarray, "N S"]:
    """The first part whose cumulative weight exceeds u: part j with probability w_j, for u uniform on [0, 1]."""
    ends = np.cumsum(weights, axis=1)[:, :-1]
    return np.sum(u[:, :, None] >= ends[:, None, :], axis=2)
