"""Predictive distributions of observations, as values."""

from .base import AbstractDistribution
from .categorical import Categorical
from .normal import Normal
from .scale_mixture import ScaleMixture, student_multipliers

__all__ = ["AbstractDistribution", "Categorical", "Normal", "ScaleMixture", "student_multipliers"]
