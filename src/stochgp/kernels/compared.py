"""Rows that a kernel correlates most with a point, by comparing every pair: for kernels that no tree serves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32, UInt64

from stochgp import deadline
from stochgp.data.neighbours import centre_first, check_number
from stochgp.deadline import Pace
from stochgp.numerics.arrays import filled_up, on_device
from stochgp.parameters import cast, value_of

POINTS = 128  # compared together
COLUMNS = 1 << 15  # rows that they are compared with at a time
_LAST = np.uint64(0xFFFFFFFF)


class ComparedRows:
    """The rows of X of highest |k(x, z)| / √(k(x, x) k(z, z)), to float32; of equal ones the first. O(N) evaluations of k for a point.

    Answers as `data.Neighbours` does, of rows instead of places.
    """

    def __init__(self, kernel: Any, X: Float[np.ndarray, "N D"]):
        if X.ndim != 2 or not 1 <= len(X) <= np.iinfo(np.int32).max:
            raise ValueError(f"expected rows of shape [N, D] with N from 1 to 2³¹ − 1, but got {X.shape}")
        with jax.enable_x64(True):
            self.kernel = cast(value_of(kernel), jnp.float64)
        self.X, self.size = X, len(X)

    def query(self, points: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        """Numbers of the k rows that correlate most with each point, the most first.

        Raises ValueError unless 1 ≤ k ≤ N; TimeIsUpError under a deadline that it would miss.
        """
        check_number(k, self.size)
        found, pace = np.empty((len(points), k), np.int32), Pace()
        n_pieces = -(-len(points) // POINTS)
        with jax.enable_x64(True):
            for piece, start in enumerate(range(0, len(points), POINTS)):
                deadline.require(pace.expected * (n_pieces - piece))
                with pace.piece():
                    part = points[start : start + POINTS]
                    found[start : start + POINTS] = self._best(part, k)
        return found

    def around(self, centres: Int[np.ndarray, " P"], k: int) -> Int32[np.ndarray, "P k"]:
        """Each centre, a row given by its number, then its k − 1 nearest other rows."""
        return centre_first(self.query(self.X[centres], k), centres)

    def _best(self, points: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        width = min(COLUMNS, self.size)
        filled = on_device(filled_up(points, min(POINTS, max(self.size, len(points))), 0.0))
        best = np.zeros((len(points), 0), np.uint64)
        for start in range(0, self.size, width):
            rows = self.X[start : start + width]
            values = np.asarray(_correlations(self.kernel, filled, on_device(filled_up(rows, width, 0.0))))
            keys = _keys(values[: len(points), : len(rows)], start)
            best = np.concatenate([best, keys], axis=1)
            if best.shape[1] > k:
                best = np.partition(best, best.shape[1] - k, axis=1)[:, best.shape[1] - k :]
        order = np.sort(best, axis=1)[:, ::-1]
        return (_LAST - (order & _LAST)).astype(np.int32)


def compared_bytes(n_rows: int, n_inputs: int, n_points: int, k: int) -> int:
    """Memory of `ComparedRows` and a query at their peak, beside X in float64."""
    width = min(COLUMNS, n_rows)
    return (
        8 * n_rows * n_inputs + 4 * n_points * k + 5 * 8 * POINTS * (width + k) + 24 * width * (n_inputs + 2)
    )


def _keys(values: Float[np.ndarray, "P C"], first: int) -> UInt64[np.ndarray, "P C"]:
    """Numbers in the order of the values, equal ones in the reverse order of the rows: value and row in one. Values are at least 0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rows = np.arange(first, first + values.shape[1], dtype=np.uint64)
    return (bits << np.uint64(32)) | (_LAST - rows)[None, :]


@eqx.filter_jit
def _correlations(kernel: Any, Z: Array, X: Array) -> Array:
    """|k(z, x)| / √(k(z, z) k(x, x)) in float32."""
    centre, tiny = X[0], jnp.finfo(X.dtype).tiny
    across = kernel.between(kernel.prepare(Z, centre), kernel.prepare(X, centre))
    scale = jnp.sqrt(jnp.maximum(kernel.diag(Z)[:, None] * kernel.diag(X)[None, :], tiny))
    return (jnp.abs(across) / scale).astype(jnp.float32)
