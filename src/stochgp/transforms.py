"""Increasing transforms of targets: z = T(y) is modelled in place of y, by arrays of NumPy on the host and of JAX in a program."""

import abc
import math
from typing import Any

import equinox as eqx
import numpy as np

__all__ = ["AbstractTransform", "Log", "SinhArcsinh"]

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
            place = f"{bad.sum()} of {bad.size} are not, such as {y[row]:g} at data row {row + 1}"
            raise ValueError(f"{wanted} are wanted by {type(self).__name__}, but {place}")

    @abc.abstractmethod
    def __call__(self, y: Any) -> Any:
        """T(y), for y above `lower`."""

    @abc.abstractmethod
    def inverse(self, z: Any) -> Any:
        """Return the y with T(y) = z; the nearest end of the targets' range if there is none."""

    @abc.abstractmethod
    def log_slope(self, y: Any) -> Any:
        """log T'(y)."""

    @property
    def raw(self) -> list[float]:
        """The parameters, unbounded; by default there are none."""
        return []

    def from_raw(self, raw: Any) -> "AbstractTransform":
        """Return the transform with these unbounded parameters, which may be traced."""
        return self


def namespace(values: Any) -> Any:
    """Return the array's numpy or jax.numpy; numpy of a number."""
    return values.__array_namespace__() if hasattr(values, "__array_namespace__") else np


class Log(AbstractTransform):
    """T = log(y + shift) for y > −shift: predictions of positive targets are lognormal; ½ is the shift of counts.

    Parameters
    ----------
    shift : float
        In the units of y; it is not learned.
    """

    shift: float = 0.0

    @property
    def lower(self) -> float:
        return 0.0 - self.shift  # no −0

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
    """T = sinh(δ asinh y − ε), onto all numbers (Jones and Pewsey 2009). δ < 1 makes y heavy-tailed, with all moments; ε > 0 skews it.

    T⁻¹(z) = sinh((asinh z + ε)/δ); log T' = log δ + |q| + log(1 + e^(−2|q|)) − log 2 − ½ log(1 + y²), q = δ asinh y − ε.

    Parameters
    ----------
    tail : number
        δ > 0, without unit; a fit starts from it.
    skew : number
        ε, without unit; a fit starts from it.
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
        return inner + namespace(self.out_scale).log(self.out_scale) - math.log(self.scale)

    @property
    def raw(self) -> list[float]:
        return self.inner.raw

    def from_raw(self, raw: Any) -> "Anchored":
        """With the two anchors where they were."""
        return _through(self.inner.from_raw(raw), self.center, self.scale, namespace(raw))


def anchored(inner: AbstractTransform, y: np.ndarray) -> AbstractTransform:
    """Return the transform in the units of the training targets y: their median ∓ half the interquartile range ↦ ∓0.6745. Without parameters it stays as it is."""
    if not inner.raw:
        return inner
    low, middle, high = np.quantile(y, [0.25, 0.5, 0.75])
    scale = float(high - low) / (2 * QUARTILE) or float(np.std(y)) or 1.0
    return _through(inner, float(middle), scale, np)


def _through(inner: AbstractTransform, center: float, scale: float, xp: Any) -> Anchored:
    """With the two anchors fixed."""
    low, high = inner(xp.asarray([-QUARTILE, QUARTILE]))
    out_scale = 2 * QUARTILE / (high - low)
    out_shift = -QUARTILE - out_scale * low
    if xp is np:  # numbers of Python, for files
        out_scale, out_shift = float(out_scale), float(out_shift)
    return Anchored(inner, center, scale, out_scale, out_shift)
