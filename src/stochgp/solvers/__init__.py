"""Solvers of linear systems (K + Σ) α = b."""

from stochgp.numerics.linalg import Factor

from .base import AbstractIterativeSolver, AbstractSolver
from .cg import CG
from .cholesky import Cholesky
from .sdd import SDD
from .solve import solve

__all__ = ["CG", "SDD", "AbstractIterativeSolver", "AbstractSolver", "Cholesky", "Factor", "solve"]
