"""The families of models, each an estimator: kernel, feature and sparse GPs."""

from .classifier import SparseGPClassifier
from .feature import FeatureGPRegressor
from .kernel import KernelGPRegressor
from .sparse import SparseGPRegressor

__all__ = ["FeatureGPRegressor", "KernelGPRegressor", "SparseGPClassifier", "SparseGPRegressor"]
