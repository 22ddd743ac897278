"""All that lies between the latent f and what is observed."""

from .dispersion import Dispersion
from .error_distribution import LeftOut
from .mean_function import LINEAR_MEAN, MEANS, TREES, AbstractMeanFunction, LinearMean, TreeMean
from .observation import Observation

__all__ = [
    "LINEAR_MEAN",
    "MEANS",
    "TREES",
    "AbstractMeanFunction",
    "Dispersion",
    "LeftOut",
    "LinearMean",
    "Observation",
    "TreeMean",
]
