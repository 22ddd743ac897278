"""Code shared by all estimators: settings, predictions, saving and reports."""

from .base import PosteriorRegressor
from .fitted import FunctionDraws

__all__ = ["FunctionDraws", "PosteriorRegressor"]
