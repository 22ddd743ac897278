"""Variational approximations q(f) of GP posteriors."""

from .decoupled import Decoupled
from .decoupled import DecoupledMean as DecoupledMean
from .decoupled import DecoupledProcess as DecoupledProcess
from .decoupled import NormalEquations as NormalEquations
from .functions import InducingFunctions as InducingFunctions
from .functions import functions_at as functions_at
from .functions import no_functions as no_functions
from .inducing import InducingPoints
from .inducing import InducingProcess as InducingProcess
from .inducing import Naturals as Naturals
from .inducing import choose_points as choose_points
from .inducing import optimum as optimum

__all__ = ["Decoupled", "InducingPoints"]
