"""Skewness and tails in two numbers."""

import math
from typing import Any

from stochgp.transforms.base import LARGEST_EXPONENT, AbstractTransform, exp_of, namespace


class SinhArcsinh(AbstractTransform):
    """T = sinh(δ asinh y − ε), onto all numbers (Jones and Pewsey 2009). δ < 1 makes y heavy-tailed, with all moments; ε > 0 skews it.

    T⁻¹(z) = sinh((asinh z + ε)/δ); log T' = log δ + |q| + log(1 + e^(−2|q|)) − log 2 − ½ log(1 + y²), q = δ asinh y − ε.
    """

    tail: Any = 1.0  # δ
    skew: Any = 0.0  # ε

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
        log_tail = (
            math.log(self.tail) if isinstance(self.tail, int | float) else namespace(self.tail).log(self.tail)
        )
        return log_tail + q + xp.log1p(xp.exp(-2 * q)) - math.log(2) - 0.5 * xp.log1p(y * y)

    @property
    def raw(self) -> list[float]:
        return [math.log(float(self.tail)), float(self.skew)]

    def from_raw(self, raw: Any) -> "SinhArcsinh":
        return SinhArcsinh(exp_of(raw[0]), raw[1])
