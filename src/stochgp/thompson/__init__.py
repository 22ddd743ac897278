"""Design of experiments by Thompson sampling."""

from .sampler import ThompsonSampler

__all__ = ["ThompsonSampler"]
