"""Increasing transforms of targets: z = T(y) is modelled in place of y."""

from .base import AbstractTransform
from .base import Anchored as Anchored
from .base import anchored as anchored
from .curves import BoxCox, Log, ShiftedLog, SinhArcsinh, YeoJohnson
from .curves import Spline as Spline
from .curves import spline_of as spline_of

__all__ = ["AbstractTransform", "BoxCox", "Log", "ShiftedLog", "SinhArcsinh", "YeoJohnson"]
