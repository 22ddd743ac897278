"""K + Σ as products with blocks of its rows, on one device or spread over several."""

from .base import BLOCK, AbstractOperator, wide
from .kernel import GPU_TILE, TILE, KernelOperator, default_tile
from .sharded import ShardedOperator

__all__ = [
    "BLOCK", "GPU_TILE", "TILE", "AbstractOperator", "KernelOperator", "ShardedOperator", "default_tile", "wide",
]  # fmt: skip
