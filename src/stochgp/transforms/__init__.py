"""Increasing transforms of targets: z = T(y) is modelled in place of y."""

from .anchored import Anchored, anchored
from .base import AbstractTransform
from .power import BoxCox, Log, ShiftedLog, SinhArcsinh, YeoJohnson
from .spline import Spline, spline_of

__all__ = [
    "AbstractTransform",
    "Anchored",
    "BoxCox",
    "Log",
    "ShiftedLog",
    "SinhArcsinh",
    "Spline",
    "YeoJohnson",
    "anchored",
    "spline_of",
]
