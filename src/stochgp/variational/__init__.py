"""Variational approximations of GP posteriors: q(f) with few parameters."""

from .decoupled import Decoupled, from_coupled, to_coupled
from .decoupled_mean import DecoupledMean, NormalEquations
from .functions import InducingFunctions, functions_at, no_functions
from .inducing import AbstractApproximation, AbstractProcess, InducingPoints, Naturals, choose_points, optimum
from .inducing import InducingProcess as InducingProcess

__all__ = [
    "AbstractApproximation", "AbstractProcess", "Decoupled", "DecoupledMean", "InducingFunctions", "InducingPoints", "Naturals", "NormalEquations",
    "choose_points", "from_coupled", "functions_at", "no_functions", "optimum", "to_coupled",
]  # fmt: skip
