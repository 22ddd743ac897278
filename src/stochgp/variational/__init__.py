"""Variational approximations of GP posteriors: q(f) that a few numbers say."""

from .base import AbstractApproximation, AbstractProcess, Naturals, optimum
from .decoupled import Decoupled, DecoupledCorrection, DecoupledProcess, from_coupled, to_coupled
from .functions import InducingFunctions, functions_at, no_functions
from .inducing import InducingCorrection, InducingPoints, InducingProcess, choose_points
from .wider import NormalEquations, WiderMean

__all__ = [
    "AbstractApproximation",
    "AbstractProcess",
    "Decoupled",
    "DecoupledCorrection",
    "DecoupledProcess",
    "InducingCorrection",
    "InducingFunctions",
    "InducingPoints",
    "InducingProcess",
    "Naturals",
    "NormalEquations",
    "WiderMean",
    "choose_points",
    "from_coupled",
    "functions_at",
    "no_functions",
    "optimum",
    "to_coupled",
]
