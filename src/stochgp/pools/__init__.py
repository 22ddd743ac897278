"""Several families fitted to one table, and their predictions mixed by weights that held-out rows choose."""

from .pooled_classifier import GPClassifier
from .pooled_regressor import GPRegressor

__all__ = ["GPClassifier", "GPRegressor"]
