"""Models of observations given the latent function f."""

from .error_distribution import Dispersion
from .mean_function import LINEAR_MEAN, MEANS, TREES, AbstractMeanFunction, LinearMean, TreeMean
from .observation import Observation

__all__ = [
    "LINEAR_MEAN", "MEANS", "TREES", "AbstractMeanFunction", "Dispersion", "LinearMean", "Observation", "TreeMean",
]  # fmt: skip
