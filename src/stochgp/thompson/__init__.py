"""Design of experiments by Thompson sampling."""

from .maximise import Maximiser
from .sampler import ThompsonSampler

__all__ = ["Maximiser", "ThompsonSampler"]
