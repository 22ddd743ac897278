"""The matrix K + Σ as products with blocks of its rows, on one or several devices."""

from .kernel import BLOCK, KernelOperator

__all__ = ["BLOCK", "KernelOperator"]
