"""What standardising needs to know of rows, in a form that can be merged."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .standardise import Standardiser, scale_of


class Summary(NamedTuple):
    """Of some rows, column by column: their number (or the sum of their weights), smallest and largest value, mean, and Σ (x − mean)²."""

    count: float
    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]
    mean: Float[np.ndarray, " D"]
    squares: Float[np.ndarray, " D"]

    @classmethod
    def of(cls, X: Float[np.ndarray, "N D"], weight: Float[np.ndarray, " N"] | None = None) -> "Summary":
        """Two passes over the rows, in float64; at least one row, of values whose squares are numbers. Weights are above 0."""
        first, low, high = X[0], X.min(axis=0), X.max(axis=0)
        if weight is None:
            mean = first + np.mean(X - first, axis=0)
            return cls(len(X), low, high, mean, np.sum((X - mean) ** 2, axis=0))
        count = float(np.sum(weight))
        mean = first + weight @ (X - first) / count
        return cls(count, low, high, mean, weight @ (X - mean) ** 2)

    def merged(self, other: "Summary") -> "Summary":
        """Of the rows of both (Chan, Golub and LeVeque 1983): M₂ = M₂ₐ + M₂ᵦ + δ² nₐnᵦ/n with δ the difference of the means."""
        n, delta = self.count + other.count, other.mean - self.mean
        return Summary(
            n,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + delta * (other.count / n),
            self.squares + other.squares + delta**2 * (self.count * other.count / n),
        )

    def standardiser(self) -> Standardiser:
        """As `Standardiser.fit` of all the rows finds it, to rounding."""
        mean = np.where(self.low == self.high, self.low, self.mean)
        return Standardiser(mean, scale_of(np.sqrt(self.squares / self.count), self.low, self.high))
