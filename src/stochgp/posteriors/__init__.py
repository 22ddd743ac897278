"""Posteriors: what is known of the function after the data."""

from .feature import FeaturePosterior, FunctionSamples
from .kernel import KernelFunctions, KernelPosterior, sample_targets
from .local import LocalPosterior, LocalPrediction

__all__ = [
    "FeaturePosterior",
    "FunctionSamples",
    "KernelFunctions",
    "KernelPosterior",
    "LocalPosterior",
    "LocalPrediction",
    "sample_targets",
]
