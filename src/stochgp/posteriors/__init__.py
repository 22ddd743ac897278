"""Posteriors, the distributions of the latent function given the data."""

from .base import AbstractFunctions, AbstractPosterior
from .base import DrawnFunctions as DrawnFunctions
from .exact import ExactKernelPosterior, MixturePosterior, SampledKernelPosterior
from .feature import FeaturePosterior
from .kernel import AbstractKernelPosterior
from .kernel import KernelFunctions as KernelFunctions
from .kernel import KernelSystem as KernelSystem
from .kernel import sample_targets as sample_targets
from .local import LocalPosterior
from .variational import VariationalPosterior

__all__ = [
    "AbstractFunctions", "AbstractKernelPosterior", "AbstractPosterior", "ExactKernelPosterior", "FeaturePosterior",
    "LocalPosterior", "MixturePosterior", "SampledKernelPosterior", "VariationalPosterior",
]  # fmt: skip
