"""Variational approximations of GP posteriors: q(f) that a few numbers say."""

from .base import AbstractApproximation, AbstractProcess
from .inducing import InducingCorrection, InducingPoints, InducingProcess, choose_points
from .natural import Naturals, optimum

__all__ = [
    "AbstractApproximation",
    "AbstractProcess",
    "InducingCorrection",
    "InducingPoints",
    "InducingProcess",
    "Naturals",
    "choose_points",
    "optimum",
]
