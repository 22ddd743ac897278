"""Mixtures of predictive distributions."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.special import logsumexp

from stochgp.distributions.base import AbstractDistribution, PerRow, Points
from stochgp.distributions.roots import solve_increasing


class Mixture(AbstractDistribution):
    """p(y) = Σ_j w_j p_j(y): the parts are of the same rows, continuous, and have the weights `weights`, which sum to 1."""

    parts: tuple[AbstractDistribution, ...]
    weights: Float64[np.ndarray, " J"]

    def __check_init__(self) -> None:
        if (
            len(self.parts) != len(self.weights)
            or abs(self.weights.sum() - 1) > 1e-8
            or np.any(self.weights < 0)
        ):
            raise ValueError(
                f"{len(self.parts)} parts need as many weights ≥ 0 that sum to 1, but got {self.weights}"
            )
        if len({part.n_rows for part in self.parts}) > 1:
            raise ValueError("the parts of a mixture must be of the same rows")

    @property
    def n_rows(self) -> int:
        return self.parts[0].n_rows

    @property
    def tail_index(self) -> float:
        return min(part.tail_index for part in self.parts)

    @property
    def mean(self) -> PerRow:
        return sum((w * part.mean for w, part in self._weighted), np.zeros(self.n_rows))

    @property
    def std(self) -> PerRow:
        mean = self.mean
        squares = (w * (part.std**2 + (part.mean - mean) ** 2) for w, part in self._weighted)
        return np.sqrt(sum(squares, np.zeros(self.n_rows)))

    def __getitem__(self, rows: Any) -> "Mixture":
        return Mixture(tuple(part[rows] for part in self.parts), self.weights)

    def affine(self, scale: float, shift: float) -> "Mixture":
        return Mixture(tuple(part.affine(scale, shift) for part in self.parts), self.weights)

    @property
    def _held(self) -> int:
        return max(part._held for part in self.parts)

    @property
    def _weighted(self) -> list[tuple[float, AbstractDistribution]]:
        return list(zip(self.weights.tolist(), self.parts, strict=True))

    def _logpdf(self, y: Points) -> Points:
        each = [part._logpdf(y) + (math.log(w) if w > 0 else -math.inf) for w, part in self._weighted]
        return logsumexp(np.stack(each), axis=0)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        each = [part._tails(y) for part in self.parts]
        below, above = (np.stack(side) for side in zip(*each, strict=True))
        return np.tensordot(self.weights, below, 1), np.tensordot(self.weights, above, 1)

    def _quantile(self, p: Points) -> Points:
        """Between the least and the largest quantile of the parts."""
        each = np.stack([part._quantile(p) for part in self.parts])

        def value_and_slope(y: Points) -> tuple[Points, Points]:
            below, above = self._tails(y)
            tail = np.maximum(np.where(p < 0.5, below, above), 1e-300)
            value = np.log(tail) - np.log(np.minimum(p, 1 - p))
            return np.where(p < 0.5, value, -value), np.exp(self._logpdf(y)) / tail

        return solve_increasing(value_and_slope, each.min(axis=0), each.max(axis=0))

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        which = generator.choice(len(self.parts), size=(self.n_rows, n), p=self.weights / self.weights.sum())
        draws = np.stack([part._draw(generator, n) for part in self.parts])
        return np.take_along_axis(draws, which[None], axis=0)[0]
