"""What every transform of targets can do, for arrays of NumPy on the host and of JAX in a program alike."""

import abc
import math
from typing import Any

import equinox as eqx
import numpy as np

LARGEST_EXPONENT = 600.0  # of exponentials in float64


class AbstractTransform(eqx.Module):
    """T increases on (lower, ∞); its parameters are numbers that `raw` gives without bounds and `from_raw` takes back.

    log p(y) = log p_z(T(y)) + log T'(y).
    """

    @property
    def lower(self) -> float:
        """Targets must be above it."""
        return -math.inf

    @property
    def growth(self) -> float:
        """The power of |z| with which T⁻¹(z) grows; inf where it grows exponentially."""
        return 1.0

    def check(self, y: np.ndarray) -> None:
        """Raises ValueError, naming the first, for targets that are not above `lower`."""
        bad = y <= self.lower
        if bad.any():
            row = int(np.argmax(bad))
            wanted = "positive targets" if self.lower == 0 else f"targets above {self.lower:g}"
            raise ValueError(
                f"{wanted} are wanted by {type(self).__name__}, but {bad.sum()} of {bad.size} are not, such as {y[row]:g}"
            )

    @abc.abstractmethod
    def __call__(self, y: Any) -> Any:
        """T(y), for y above `lower`."""

    @abc.abstractmethod
    def inverse(self, z: Any) -> Any:
        """The y with T(y) = z; the nearest end of the targets' range where there is none."""

    @abc.abstractmethod
    def log_slope(self, y: Any) -> Any:
        """log T'(y)."""

    @property
    @abc.abstractmethod
    def raw(self) -> list[float]:
        """The parameters, unbounded."""

    @abc.abstractmethod
    def from_raw(self, raw: Any) -> "AbstractTransform":
        """The transform with these unbounded parameters, which may be traced."""

    def started(self, y: Any) -> "AbstractTransform":
        """Where a fit to targets y begins, in the units of the transform."""
        return self

    @property
    def roughness(self) -> Any:
        """What a fit adds to the negative log density of all rows, for transforms with many parameters."""
        return 0.0


def namespace(values: Any) -> Any:
    """numpy or jax.numpy, whichever the array is of."""
    return values.__array_namespace__()


def softplus(x: Any) -> Any:
    """log(1 + e^x)."""
    xp = namespace(x)
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def logit(p: float) -> float:
    """log(p/(1 − p))."""
    return math.log(p) - math.log1p(-p)


def sigmoid(x: Any) -> Any:
    """1/(1 + e^(−x)), of a number or an array."""
    if isinstance(x, int | float):
        return 1 / (1 + math.exp(-x))
    return 1 / (1 + namespace(x).exp(-x))


def exp_of(x: Any) -> Any:
    """e^x, of a number or an array."""
    return math.exp(x) if isinstance(x, int | float) else namespace(x).exp(x)
