"""A transform in the units of the targets."""

import math
from typing import Any

import numpy as np

from stochgp.transforms.base import AbstractTransform, namespace

QUARTILE = 0.6744897501960817  # Φ⁻¹(¾)


class Anchored(AbstractTransform):
    """T(y) = out_scale · inner((y − center)/scale) + out_shift.

    Location and scale of T would be one parameter with the model's mean and variance: `anchored` fixes them by two targets.

    Parameters
    ----------
    inner : transform
        Of the targets without unit, (y − center)/scale.
    center, scale : float
        In the units of y; scale > 0.
    out_scale, out_shift : number
        Without unit; `anchored` chooses them so that y = center ∓ 0.6745 scale ↦ ∓0.6745, and leaves them 1 and 0 for a transform of positive numbers.
    """

    inner: AbstractTransform
    center: float
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
        log_out = math.log(self.out_scale) if isinstance(self.out_scale, float) else _log(self.out_scale)
        return self.inner.log_slope((y - self.center) / self.scale) + log_out - math.log(self.scale)

    @property
    def raw(self) -> list[float]:
        return self.inner.raw

    def from_raw(self, raw: Any) -> "Anchored":
        """With the two anchors where they were."""
        xp = namespace(raw) if hasattr(raw, "__array_namespace__") else np
        return _through(self.inner.from_raw(raw), self.center, self.scale, xp)

    @property
    def roughness(self) -> Any:
        return self.inner.roughness


def anchored(inner: AbstractTransform, y: np.ndarray) -> AbstractTransform:
    """In the units of the training targets y: with two of them fixed, their median ∓ half the range of the middle half, ↦ ∓0.6745.

    Targets of a transform of positive numbers are divided by their median only. A transform without parameters stays as it is.

    Parameters
    ----------
    inner : transform
        Of targets without unit, with the parameters that a fit starts from.
    y : array [N]
        The training targets.
    """
    low, middle, high = np.quantile(y, [0.25, 0.5, 0.75])
    if math.isfinite(inner.lower):
        return _through(inner, 0.0, float(middle), np) if inner.raw else inner
    scale = float(high - low) / (2 * QUARTILE) or float(np.std(y)) or 1.0
    return _through(inner.started((y - middle) / scale), float(middle), scale, np)


def _through(inner: AbstractTransform, center: float, scale: float, xp: Any) -> Anchored:
    """With the anchors of real targets fixed; positive ones as they are."""
    if math.isfinite(inner.lower):
        return Anchored(inner, center, scale)
    low, high = inner(xp.asarray([-QUARTILE, QUARTILE]))
    out_scale = 2 * QUARTILE / (high - low)
    found = Anchored(inner, center, scale, out_scale, -QUARTILE - out_scale * low)
    return found if xp is not np else known(found)


def known(transform: Anchored) -> Anchored:
    """The same with its numbers as Python's, which files hold."""
    return Anchored(
        transform.inner,
        transform.center,
        transform.scale,
        float(transform.out_scale),
        float(transform.out_shift),
    )


def _log(value: Any) -> Any:
    return namespace(value).log(value)
