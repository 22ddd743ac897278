"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .base import AbstractOperator
from .kernel import TILE, KernelOperator
from .sharded import Product, ShardedOperator, gather, ring, scatter

__all__ = [
    "TILE",
    "AbstractOperator",
    "KernelOperator",
    "Product",
    "ShardedOperator",
    "gather",
    "ring",
    "scatter",
]
