"""Transforms: logarithms, powers, skewness and tails by at most two parameters."""

import math
from typing import Any

from stochgp.transforms.base import (
    LARGEST_EXPONENT,
    AbstractTransform,
    exp_of,
    log_of,
    logit,
    namespace,
    sigmoid,
)


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


class BoxCox(AbstractTransform):
    """T = (y^λ − 1)/λ for positive y and 0 < λ < 1; λ → 0 is the logarithm (Box and Cox 1964).

    Onto z > −1/λ only: a model's probability of smaller z belongs to no y, the density integrates to less than 1, and quantiles there are 0.

    Parameters
    ----------
    power : number
        λ, without unit; a fit starts from it.
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

    Parameters
    ----------
    power : number
        λ, without unit; a fit starts from it.
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
        return log_of(self.tail) + q + xp.log1p(xp.exp(-2 * q)) - math.log(2) - 0.5 * xp.log1p(y * y)

    @property
    def raw(self) -> list[float]:
        return [math.log(float(self.tail)), float(self.skew)]

    def from_raw(self, raw: Any) -> "SinhArcsinh":
        return SinhArcsinh(exp_of(raw[0]), raw[1])
