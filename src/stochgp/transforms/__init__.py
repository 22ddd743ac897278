"""Increasing transforms of targets: z = T(y) is modelled in place of y."""

from .base import AbstractTransform
from .base import Anchored as Anchored
from .base import anchored as anchored
from .curves import BoxCox, Log, SinhArcsinh, YeoJohnson

__all__ = ["AbstractTransform", "BoxCox", "Log", "SinhArcsinh", "YeoJohnson"]
