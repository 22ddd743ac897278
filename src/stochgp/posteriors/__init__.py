"""Posteriors: what is known of the function after the data."""

from .base import AbstractFunctions, AbstractPosterior, Request
from .dispersed import DispersedFunctions
from .exact import ExactKernelPosterior
from .feature import FeaturePosterior, FunctionSamples
from .kernel import KernelFunctions, KernelSystem, SampledKernelPosterior, sample_targets
from .local import LocalPosterior, LocalPrediction
from .variational import VariationalFunctions, VariationalPosterior

__all__ = [
    "AbstractFunctions",
    "AbstractPosterior",
    "DispersedFunctions",
    "ExactKernelPosterior",
    "FeaturePosterior",
    "FunctionSamples",
    "KernelFunctions",
    "KernelSystem",
    "LocalPosterior",
    "LocalPrediction",
    "Request",
    "SampledKernelPosterior",
    "VariationalFunctions",
    "VariationalPosterior",
    "sample_targets",
]
