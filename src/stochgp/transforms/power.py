"""Logarithms and powers."""

import math
from typing import Any

from stochgp.transforms.base import LARGEST_EXPONENT, AbstractTransform, logit, namespace, sigmoid


class Log(AbstractTransform):
    """T = log y for positive y: predictions are lognormal, and positive."""

    @property
    def lower(self) -> float:
        return 0.0

    @property
    def growth(self) -> float:
        return math.inf

    def __call__(self, y: Any) -> Any:
        return namespace(y).log(y)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        return xp.exp(xp.minimum(z, LARGEST_EXPONENT))

    def log_slope(self, y: Any) -> Any:
        return -namespace(y).log(y)

    @property
    def raw(self) -> list[float]:
        return []

    def from_raw(self, raw: Any) -> "Log":
        return self


class BoxCox(AbstractTransform):
    """T = (y^λ − 1)/λ for positive y and 0 < λ < 1; λ → 0 is the logarithm (Box and Cox 1964).

    Onto z > −1/λ only: what a model says of smaller z is of no y, the density integrates to less than 1, and quantiles there are 0.
    """

    power: Any = 0.5

    @property
    def lower(self) -> float:
        return 0.0

    @property
    def growth(self) -> float:
        return 1 / float(self.power)

    def __call__(self, y: Any) -> Any:
        xp = namespace(y)
        return xp.expm1(self.power * xp.log(y)) / self.power

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        inside = xp.maximum(self.power * z, -1.0)
        return xp.where(inside > -1.0, xp.exp(xp.log1p(xp.maximum(inside, -1 + 1e-15)) / self.power), 0.0)

    def log_slope(self, y: Any) -> Any:
        return (self.power - 1) * namespace(y).log(y)

    @property
    def raw(self) -> list[float]:
        return [logit(float(self.power))]

    def from_raw(self, raw: Any) -> "BoxCox":
        return BoxCox(sigmoid(raw[0]))


class YeoJohnson(AbstractTransform):
    """T = ((1 + y)^λ − 1)/λ for y ≥ 0 and −((1 − y)^(2−λ) − 1)/(2 − λ) for y < 0, 0 < λ < 2, where it is onto all numbers.

    λ = 1 is the identity (Yeo and Johnson 2000).
    """

    power: Any = 1.0

    @property
    def growth(self) -> float:
        return 1 / min(float(self.power), 2 - float(self.power))

    def __call__(self, y: Any) -> Any:
        xp = namespace(y)
        size, a, b = xp.log1p(xp.abs(y)), self.power, 2 - self.power
        return xp.where(y >= 0, xp.expm1(a * size) / a, -xp.expm1(b * size) / b)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        a, b, size = self.power, 2 - self.power, xp.abs(z)
        return xp.where(z >= 0, xp.expm1(xp.log1p(a * size) / a), -xp.expm1(xp.log1p(b * size) / b))

    def log_slope(self, y: Any) -> Any:
        xp = namespace(y)
        return xp.sign(y) * (self.power - 1) * xp.log1p(xp.abs(y))

    @property
    def raw(self) -> list[float]:
        return [logit(float(self.power) / 2)]

    def from_raw(self, raw: Any) -> "YeoJohnson":
        return YeoJohnson(2 * sigmoid(raw[0]))
