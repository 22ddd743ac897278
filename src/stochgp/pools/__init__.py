"""Several families fitted to one table, and their predictions mixed by stacking weights."""

from .classifier import GPClassifier
from .hurdle import HurdleRegressor
from .regressor import GPRegressor

__all__ = ["GPClassifier", "GPRegressor", "HurdleRegressor"]
