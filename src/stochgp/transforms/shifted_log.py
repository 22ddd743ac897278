"""The logarithm of counts."""

import math
from typing import Any

from stochgp.transforms.base import LARGEST_EXPONENT, AbstractTransform, namespace


class ShiftedLog(AbstractTransform):
    """T = log(y + shift) for y > −shift: for counts, with shift ½, their variance becomes nearly that of the logarithm of their rate."""

    shift: float = 0.5

    @property
    def lower(self) -> float:
        return -self.shift

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

    @property
    def raw(self) -> list[float]:
        return []

    def from_raw(self, raw: Any) -> "ShiftedLog":
        return self
