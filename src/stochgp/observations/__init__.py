"""All that lies between the latent f and what is observed."""

from .dispersion import Dispersion
from .error_distribution import LeftOut
from .mean_function import AbstractMeanFunction, LinearMean, TreeMean
from .observation import Observation

__all__ = ["AbstractMeanFunction", "Dispersion", "LeftOut", "LinearMean", "Observation", "TreeMean"]
