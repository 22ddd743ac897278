"""Several families fitted to one table, and their predictions mixed by stacking weights."""

from .classifier import GPClassifier
from .regressor import GPRegressor
from .targets import HurdleRegressor

__all__ = ["GPClassifier", "GPRegressor", "HurdleRegressor"]
