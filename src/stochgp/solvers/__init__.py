"""Solvers of (K + Σ) α = b."""

from .base import AbstractIterativeSolver, AbstractSolver
from .cg import CG
from .cholesky import Cholesky, Factor
from .sdd import SDD
from .sgd import SGD
from .solve import solve

__all__ = ["CG", "SDD", "SGD", "AbstractIterativeSolver", "AbstractSolver", "Cholesky", "Factor", "solve"]
