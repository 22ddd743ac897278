"""Increasing transforms of targets: z = T(y) is modelled in place of y."""

from .base import AbstractTransform, Anchored, anchored
from .curves import BoxCox, Log, ShiftedLog, SinhArcsinh, Spline, YeoJohnson, spline_of

__all__ = [
    "AbstractTransform", "Anchored", "BoxCox", "Log", "ShiftedLog", "SinhArcsinh", "Spline", "YeoJohnson", "anchored", "spline_of",
]  # fmt: skip
