"""Posteriors: what is known of the function after the data."""

from .base import AbstractFunctions, AbstractPosterior, DispersedFunctions
from .exact import ExactKernelPosterior, MixtureFunctions, MixturePosterior
from .feature import FeaturePosterior, FunctionSamples
from .kernel import AbstractKernelPosterior, KernelFunctions, KernelSystem, sample_targets
from .local import LocalPosterior
from .sampled import SampledKernelPosterior
from .variational import VariationalFunctions, VariationalPosterior

__all__ = [
    "AbstractFunctions",
    "AbstractKernelPosterior",
    "AbstractPosterior",
    "DispersedFunctions",
    "ExactKernelPosterior",
    "FeaturePosterior",
    "FunctionSamples",
    "KernelFunctions",
    "KernelSystem",
    "LocalPosterior",
    "MixtureFunctions",
    "MixturePosterior",
    "SampledKernelPosterior",
    "VariationalFunctions",
    "VariationalPosterior",
    "sample_targets",
]
