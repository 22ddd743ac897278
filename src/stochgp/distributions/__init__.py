"""Predictive distributions of observations, as values."""

from .base import AbstractDistribution
from .categorical import Categorical
from .counts import Counts
from .normal import Normal
from .scale_mixture import ScaleMixture, student_multipliers

__all__ = ["AbstractDistribution", "Categorical", "Counts", "Normal", "ScaleMixture", "student_multipliers"]
