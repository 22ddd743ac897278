"""The interface of transforms of targets, for arrays of NumPy on the host and of JAX in a program; and one in the units of the targets."""

import abc
import math
from typing import Any

import equinox as eqx
import numpy as np

LARGEST_EXPONENT = 600.0  # of exponentials in float64
QUARTILE = 0.6744897501960817  # Φ⁻¹(¾)


class AbstractTransform(eqx.Module):
    """T increases on (lower, ∞): log p(y) = log p_z(T(y)) + log T'(y). `raw` has its parameters as unbounded numbers, `from_raw` sets them."""

    @property
    def lower(self) -> float:
        """Targets must be above it."""
        return -math.inf

    @property
    def growth(self) -> float:
        """The power of |z| with which T⁻¹(z) grows; inf if it grows exponentially."""
        return 1.0

    def check(self, y: np.ndarray) -> None:
        """Raise ValueError, naming the first, for targets that are not above `lower`."""
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
        """The y with T(y) = z; the nearest end of the targets' range if there is none."""

    @abc.abstractmethod
    def log_slope(self, y: Any) -> Any:
        """log T'(y)."""

    @property
    def raw(self) -> list[float]:
        """The parameters, unbounded; by default there are none."""
        return []

    def from_raw(self, raw: Any) -> "AbstractTransform":
        """The transform with these unbounded parameters, which may be traced."""
        return self


def namespace(values: Any) -> Any:
    """The array's numpy or jax.numpy."""
    return values.__array_namespace__()


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


def log_of(x: Any) -> Any:
    """log x, of a number or an array."""
    return math.log(x) if isinstance(x, int | float) else namespace(x).log(x)


class Anchored(AbstractTransform):
    """T(y) = out_scale · inner((y − center)/scale) + out_shift.

    `anchored` fixes location and scale of T by two targets: the model's mean and variance are the same parameters.
    """

    inner: AbstractTransform  # of targets without unit
    center: float  # in the units of y
    scale: float
    out_scale: Any = 1.0  # without unit
    out_shift: Any = 0.0

    @property
    def lower(self) -> float:
        return self.center + self.scale * self.inner.lower

    @property
    def growth(self) -> float:
        return self.inner.growth

    def __call__(self, y: Any) -> Any:
        return self.out_scale * self.inner((y - self.center) / self.scale) + self.out_shift

    def inverse(self, z: Any) -> Any:
        return self.center + self.scale * self.inner.inverse((z - self.out_shift) / self.out_scale)

    def log_slope(self, y: Any) -> Any:
        inner = self.inner.log_slope((y - self.center) / self.scale)
        return inner + log_of(self.out_scale) - math.log(self.scale)

    @property
    def raw(self) -> list[float]:
        return self.inner.raw

    def from_raw(self, raw: Any) -> "Anchored":
        """With the two anchors where they were."""
        xp = namespace(raw) if hasattr(raw, "__array_namespace__") else np
        return _through(self.inner.from_raw(raw), self.center, self.scale, xp)


def anchored(inner: AbstractTransform, y: np.ndarray) -> AbstractTransform:
    """The transform in the units of the training targets y: their median ∓ half the interquartile range ↦ ∓0.6745.

    For a transform of positive numbers targets are divided by their median. A transform without parameters stays as it is.
    """
    low, middle, high = np.quantile(y, [0.25, 0.5, 0.75])
    if math.isfinite(inner.lower):
        return _through(inner, 0.0, float(middle), np) if inner.raw else inner
    scale = float(high - low) / (2 * QUARTILE) or float(np.std(y)) or 1.0
    return _through(inner, float(middle), scale, np)


def _through(inner: AbstractTransform, center: float, scale: float, xp: Any) -> Anchored:
    """With the two anchors fixed; positive targets have none."""
    if math.isfinite(inner.lower):
        return Anchored(inner, center, scale)
    low, high = inner(xp.asarray([-QUARTILE, QUARTILE]))
    out_scale = 2 * QUARTILE / (high - low)
    out_shift = -QUARTILE - out_scale * low
    if xp is np:  # numbers of Python, for files
        out_scale, out_shift = float(out_scale), float(out_shift)
    return Anchored(inner, center, scale, out_scale, out_shift)
