"""Increasing transforms T of targets for NumPy and JAX arrays; models learn z = T(y)."""

import abc
import math
from typing import Any

import equinox as eqx
import numpy as np

__all__ = ["AbstractTransform", "Log", "SinhArcsinh"]

LARGEST_EXPONENT = 600.0  # avoids overflow in float64
QUARTILE = 0.6744897501960817  # Φ⁻¹(¾)


class AbstractTransform(eqx.Module):
    """An increasing transform T of targets above `lower`."""

    @property
    def lower(self) -> float:
        """Lower bound of the targets."""
        return -math.inf

    @property
    def growth(self) -> float:
        """The power of |z| at which T⁻¹(z) grows; inf for exponential growth."""
        return 1.0

    def check(self, y: np.ndarray) -> None:
        """Raise ValueError if a target is not above `lower`."""
        bad = y <= self.lower
        if bad.any():
            row = int(np.argmax(bad))
            wanted = "positive targets" if self.lower == 0 else f"targets above {self.lower:g}"
            place = f"{bad.sum()} of {bad.size} are not; the first is {y[row]:g} at data row {row + 1}"
            raise ValueError(f"the transform {type(self).__name__} needs {wanted}, but {place}")

    @abc.abstractmethod
    def __call__(self, y: Any) -> Any:
        """Return T(y) for y above `lower`."""

    @abc.abstractmethod
    def inverse(self, z: Any) -> Any:
        """Return y with T(y) = z; if no such y exists, the nearest end of the target range."""

    @abc.abstractmethod
    def log_slope(self, y: Any) -> Any:
        """Return log T'(y)."""

    @property
    def raw(self) -> list[float]:
        """The parameters as unconstrained numbers; by default, no parameters."""
        return []

    def from_raw(self, raw: Any) -> "AbstractTransform":
        """Return the transform with these unconstrained parameters, which may be traced."""
        return self


def namespace(values: Any) -> Any:
    """Return numpy or jax.numpy for an array; numpy for a number."""
    return values.__array_namespace__() if hasattr(values, "__array_namespace__") else np


class Log(AbstractTransform):
    """T(y) = log(y + shift), for lognormal predictions of targets above −shift.

    Parameters
    ----------
    shift : float
        The fixed shift in the units of y. Counts use 0.5.
    """

    shift: float = 0.0

    @property
    def lower(self) -> float:
        return 0.0 - self.shift  # avoids −0

    @property
    def growth(self) -> float:
        return math.inf

    def __call__(self, y: Any) -> Any:
        return namespace(y).log(y + self.shift)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        return xp.exp(xp.minimum(z, LARGEST_EXPONENT)) - self.shift

    def log_slope(self, y: Any) -> Any:
        return -namespace(y).log(y + self.shift)


class SinhArcsinh(AbstractTransform):
    """T(y) = sinh(δ asinh y − ε) for all real y (Jones and Pewsey 2009).

    The inverse is T⁻¹(z) = sinh((asinh z + ε)/δ). All moments of y exist.

    Parameters
    ----------
    tail : number
        The initial value of δ > 0. Values of δ below 1 give y heavy tails.
    skew : number
        The initial value of ε. Positive values of ε give y positive skewness.
    """

    tail: Any = 1.0
    skew: Any = 0.0

    @property
    def growth(self) -> float:
        return 1 / float(self.tail)

    def __call__(self, y: Any) -> Any:
        xp = namespace(y)
        return xp.sinh(self.tail * xp.asinh(y) - self.skew)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        inner = (xp.asinh(z) + self.skew) / self.tail
        return xp.sinh(xp.minimum(xp.maximum(inner, -LARGEST_EXPONENT), LARGEST_EXPONENT))

    def log_slope(self, y: Any) -> Any:
        xp = namespace(y)
        q = xp.abs(self.tail * xp.asinh(y) - self.skew)
        return (
            namespace(self.tail).log(self.tail)
            + q
            + xp.log1p(xp.exp(-2 * q))
            - math.log(2)
            - 0.5 * xp.log1p(y * y)
        )

    @property
    def raw(self) -> list[float]:
        return [math.log(float(self.tail)), float(self.skew)]

    def from_raw(self, raw: Any) -> "SinhArcsinh":
        return SinhArcsinh(namespace(raw[0]).exp(raw[0]), raw[1])


class Anchored(AbstractTransform):
    """T(y) = out_scale · inner((y − center)/scale) + out_shift.

    The function `anchored` computes the scales and shifts with which T maps two values of y to fixed values.
    """

    inner: AbstractTransform  # for dimensionless targets
    center: float  # in the units of y
    scale: float
    out_scale: Any = 1.0
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
        return inner + namespace(self.out_scale).log(self.out_scale) - math.log(self.scale)

    @property
    def raw(self) -> list[float]:
        return self.inner.raw

    def from_raw(self, raw: Any) -> "Anchored":
        """Return the transform with new parameters. It maps both anchors to the same values."""
        return _through(self.inner.from_raw(raw), self.center, self.scale, namespace(raw))


def anchored(inner: AbstractTransform, y: np.ndarray) -> AbstractTransform:
    """Return T that maps the median of y ∓ half the interquartile range of y to ∓0.6745."""
    if not inner.raw:
        return inner
    low, middle, high = np.quantile(y, [0.25, 0.5, 0.75])
    scale = float(high - low) / (2 * QUARTILE) or float(np.std(y)) or 1.0
    return _through(inner, float(middle), scale, np)


def _through(inner: AbstractTransform, center: float, scale: float, xp: Any) -> Anchored:
    """Return `inner` with the scales that map center ∓ 0.6745 scale to ∓0.6745."""
    low, high = inner(xp.asarray([-QUARTILE, QUARTILE]))
    out_scale = 2 * QUARTILE / (high - low)
    out_shift = -QUARTILE - out_scale * low
    if xp is np:  # plain numbers can be saved
        out_scale, out_shift = float(out_scale), float(out_shift)
    return Anchored(inner, center, scale, out_scale, out_shift)
