"""Predictive distributions of observations."""

from .base import AbstractDistribution
from .calibrating import ConformalScores, PITRecalibration, TemperatureScaling
from .discrete import Categorical, Counts, Rounded
from .mixture import Mixture, PointMass
from .mixture import normal_plus_student as normal_plus_student
from .normal import Normal, Student
from .transformed import PositiveCurve, Recalibrated, Warped, mixture

__all__ = [
    "AbstractDistribution", "Categorical", "ConformalScores", "Counts", "Mixture", "Normal", "PITRecalibration", "PointMass", "PositiveCurve",
    "Recalibrated", "Rounded", "Student", "TemperatureScaling", "Warped", "mixture",
]  # fmt: skip
