"""All that lies between the latent f and what is observed."""

from .dispersion import Dispersion
from .mean_function import AbstractMeanFunction, LinearMean, TreeMean
from .observation import Observation

__all__ = ["AbstractMeanFunction", "Dispersion", "LinearMean", "Observation", "TreeMean"]
