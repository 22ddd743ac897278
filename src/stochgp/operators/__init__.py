"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .blocks import BLOCK, GPU_TILE, TILE, default_tile, wide
from .kernel import KernelOperator

__all__ = ["BLOCK", "GPU_TILE", "TILE", "KernelOperator", "default_tile", "wide"]
