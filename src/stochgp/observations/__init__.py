"""All that lies between the latent f and what is observed."""

from .dispersion import Dispersion
from .mean_function import LinearMean
from .observation import Observation

__all__ = ["Dispersion", "LinearMean", "Observation"]
