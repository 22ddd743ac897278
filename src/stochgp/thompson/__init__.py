"""Sequential design of experiments with Thompson sampling."""

from .sampler import ThompsonSampler

__all__ = ["ThompsonSampler"]
