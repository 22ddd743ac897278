"""What all estimators share: the interface of scikit-learn, one fit, predictions, saving, reports."""

from .function_draws import FunctionDraws
from .predictor import PosteriorRegressor

__all__ = ["FunctionDraws", "PosteriorRegressor"]
