"""Which targets a likelihood takes."""

import abc
from dataclasses import dataclass

import numpy as np


class AbstractTargets(abc.ABC):
    """A set of numbers."""

    @property
    @abc.abstractmethod
    def wanted(self) -> str:
        """The set in words."""

    @abc.abstractmethod
    def holds(self, y: np.ndarray) -> np.ndarray:
        """Which of these finite numbers are in the set."""

    def check(self, y: np.ndarray, taker: str) -> None:
        """Raises ValueError, in one line that names the first, for numbers outside."""
        bad = ~np.isfinite(y) | ~self.holds(y)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"target {y[row]} at row {row + 1}: {taker} takes {self.wanted}; {bad.sum()} of {bad.size} targets are not"
            )


@dataclass(frozen=True)
class Real(AbstractTargets):
    """All finite numbers."""

    @property
    def wanted(self) -> str:
        return "finite numbers"

    def holds(self, y: np.ndarray) -> np.ndarray:
        return np.isfinite(y)


@dataclass(frozen=True)
class Above(AbstractTargets):
    """Numbers above a bound."""

    bound: float = 0.0

    @property
    def wanted(self) -> str:
        return "positive numbers" if self.bound == 0 else f"numbers above {self.bound:g}"

    def holds(self, y: np.ndarray) -> np.ndarray:
        return y > self.bound


@dataclass(frozen=True)
class Counts(AbstractTargets):
    """0, 1, 2, …"""

    @property
    def wanted(self) -> str:
        return "counts, whole numbers of at least 0"

    def holds(self, y: np.ndarray) -> np.ndarray:
        return (y >= 0) & (y == np.floor(y))


@dataclass(frozen=True)
class Classes(AbstractTargets):
    """0, …, C − 1."""

    n_classes: int = 2

    @property
    def wanted(self) -> str:
        return f"classes, whole numbers from 0 to {self.n_classes - 1}"

    def holds(self, y: np.ndarray) -> np.ndarray:
        return (y >= 0) & (y < self.n_classes) & (y == np.floor(y))
