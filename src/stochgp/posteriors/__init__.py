"""Posteriors: what is known of the function after the data."""

from .base import AbstractFunctions, AbstractPosterior, DrawnFunctions
from .exact import ExactKernelPosterior, MixturePosterior
from .feature import FeaturePosterior
from .kernel import AbstractKernelPosterior, KernelFunctions, KernelSystem, sample_targets
from .local import LocalPosterior
from .sampled import SampledKernelPosterior
from .variational import VariationalPosterior

__all__ = [
    "AbstractFunctions", "AbstractKernelPosterior", "AbstractPosterior", "DrawnFunctions", "ExactKernelPosterior", "FeaturePosterior", "KernelFunctions",
    "KernelSystem", "LocalPosterior", "MixturePosterior", "SampledKernelPosterior", "VariationalPosterior", "sample_targets",
]  # fmt: skip
