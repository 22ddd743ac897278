"""Kernels: covariance functions k(x, z) of pairs of rows."""

from .base import AbstractKernel, Product, Sum
from .build import resolve
from .linear import Constant, Linear
from .periodic import Periodic
from .stationary import RBF, AbstractStationary, Matern12, Matern32, Matern52, RationalQuadratic
from .tanimoto import Tanimoto
from .warped import Warped

__all__ = [
    "RBF", "AbstractKernel", "AbstractStationary", "Constant", "Linear", "Matern12", "Matern32", "Matern52", "Periodic", "Product", "RationalQuadratic", "Sum",
    "Tanimoto", "Warped", "resolve",
]  # fmt: skip
