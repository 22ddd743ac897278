"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .base import AbstractOperator, wide
from .kernel import GPU_TILE, TILE, KernelOperator
from .sharded import Product, ShardedOperator, gather, ring

__all__ = [
    "GPU_TILE", "TILE", "AbstractOperator", "KernelOperator", "Product", "ShardedOperator", "gather", "ring", "wide",
]  # fmt: skip
