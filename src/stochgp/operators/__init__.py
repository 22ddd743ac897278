"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .base import AbstractOperator, wide
from .kernel import GPU_TILE, TILE, KernelOperator
from .sharded import ShardedOperator

__all__ = [
    "GPU_TILE", "TILE", "AbstractOperator", "KernelOperator", "ShardedOperator", "wide",
]  # fmt: skip
