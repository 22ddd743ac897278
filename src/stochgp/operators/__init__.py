"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .base import AbstractOperator
from .kernel import TILE, KernelOperator
from .sharded import AbstractProduct, Gather, Ring, Scatter, ShardedOperator

__all__ = [
    "TILE",
    "AbstractOperator",
    "AbstractProduct",
    "Gather",
    "KernelOperator",
    "Ring",
    "Scatter",
    "ShardedOperator",
]
