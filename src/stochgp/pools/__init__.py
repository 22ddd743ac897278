"""Pools: several models fitted to one table, with predictions mixed by stacking weights."""

from .classifier import GPClassifier
from .regressor import GPRegressor
from .targets import HurdleRegressor

__all__ = ["GPClassifier", "GPRegressor", "HurdleRegressor"]
