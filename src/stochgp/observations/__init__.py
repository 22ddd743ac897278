"""All that lies between the latent f and what is observed."""

from .dispersion import Dispersion
from .observation import Observation

__all__ = ["Dispersion", "Observation"]
