"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .blocks import BLOCK, wide
from .kernel import KernelOperator

__all__ = ["BLOCK", "KernelOperator", "wide"]
