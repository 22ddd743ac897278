"""Parts that all estimators share: the interface of scikit-learn, predictions, saving, reports."""

from .base import PosteriorRegressor
from .fitted import FunctionDraws

__all__ = ["FunctionDraws", "PosteriorRegressor"]
