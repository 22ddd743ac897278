"""Predictive distributions of observations, as values."""

from .base import AbstractDistribution
from .calibrating import Conformal, ConformalScores, PITRecalibration, conformal, recalibration
from .categorical import Categorical
from .counts import Counts
from .mixture import Mixture
from .normal import Normal
from .recalibrated import Recalibrated
from .rounded import Rounded
from .scale_mixture import ScaleMixture, student_multipliers
from .warped import Warped

__all__ = [
    "AbstractDistribution",
    "Categorical",
    "Conformal",
    "ConformalScores",
    "Counts",
    "Mixture",
    "Normal",
    "PITRecalibration",
    "Recalibrated",
    "Rounded",
    "ScaleMixture",
    "Warped",
    "conformal",
    "recalibration",
    "student_multipliers",
]
