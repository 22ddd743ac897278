"""Design of experiments by Thompson sampling."""

from .maximise import Maximiser
from .sampler import Best, ThompsonSampler

__all__ = ["Best", "Maximiser", "ThompsonSampler"]
