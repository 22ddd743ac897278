"""The families of models: estimators for kernel, feature and sparse GPs."""

from .classifier import SparseGPClassifier
from .feature import FeatureGPRegressor
from .kernel import KernelGPRegressor
from .sparse import SparseGPRegressor

__all__ = ["FeatureGPRegressor", "KernelGPRegressor", "SparseGPClassifier", "SparseGPRegressor"]
