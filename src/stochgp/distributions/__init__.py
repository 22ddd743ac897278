"""Predictive distributions of observations, as values."""

from .base import AbstractDistribution
from .calibrating import (
    ConformalScores,
    PITRecalibration,
    TemperatureScaling,
    recalibration,
    temperature_scaling,
)
from .categorical import Categorical
from .counts import Counts
from .curves import BetaCurve, PositiveCurve, Recalibrated
from .mixture import Mixture, PointMass
from .normal import Normal, ScaleMixture, Student, student_multipliers
from .transformed import Rounded, Warped, mixture

__all__ = [
    "AbstractDistribution",
    "BetaCurve",
    "Categorical",
    "ConformalScores",
    "Counts",
    "Mixture",
    "Normal",
    "PITRecalibration",
    "PointMass",
    "PositiveCurve",
    "Recalibrated",
    "Rounded",
    "ScaleMixture",
    "Student",
    "TemperatureScaling",
    "Warped",
    "mixture",
    "recalibration",
    "student_multipliers",
    "temperature_scaling",
]  # fmt: skip
