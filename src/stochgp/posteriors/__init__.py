"""Posteriors: mean, variance, covariance and function samples."""

from .feature import FeaturePosterior, FunctionSamples

__all__ = ["FeaturePosterior", "FunctionSamples"]
