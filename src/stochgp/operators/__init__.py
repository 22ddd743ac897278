"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .kernel import BLOCK, KernelOperator

__all__ = ["BLOCK", "KernelOperator"]
