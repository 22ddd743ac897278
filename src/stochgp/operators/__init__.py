"""The matrix K + Σ as products with blocks of its rows."""

from .kernel import BLOCK, KernelOperator

__all__ = ["BLOCK", "KernelOperator"]
