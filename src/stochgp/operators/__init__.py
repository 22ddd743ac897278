"""K + Σ as products with blocks of its rows."""

from .base import AbstractOperator
from .kernel import TILE, KernelOperator

__all__ = ["TILE", "AbstractOperator", "KernelOperator"]
