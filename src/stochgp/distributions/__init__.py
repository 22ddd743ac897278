"""Predictive distributions of observations, as values."""

from .base import AbstractDistribution
from .calibrating import Conformal, ConformalScores, PITRecalibration, conformal, recalibration
from .categorical import Categorical
from .counts import Counts
from .curves import AbstractCurve, BetaCurve, Recalibrated
from .location_scale import Normal, Student
from .mixture import Mixture
from .point_mass import PointMass
from .rounded import Rounded, mixture
from .scale_mixture import ScaleMixture, student_multipliers
from .temperature import TemperatureScaling, temperature_scaling
from .warped import Warped

__all__ = [
    "AbstractCurve",
    "AbstractDistribution",
    "BetaCurve",
    "Categorical",
    "Conformal",
    "ConformalScores",
    "Counts",
    "Mixture",
    "Normal",
    "PITRecalibration",
    "PointMass",
    "Recalibrated",
    "Rounded",
    "ScaleMixture",
    "Student",
    "TemperatureScaling",
    "Warped",
    "conformal",
    "mixture",
    "recalibration",
    "student_multipliers",
    "temperature_scaling",
]
