"""Nearest rows: for mini-batches of a centre and its neighbours, and for prediction from the rows near a point."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int32

from stochgp import deadline
from stochgp.deadline import Pace

_LEAF_ROWS = 32  # 16 and 64 were never much faster, between 13 thousand rows of 26 inputs and a million of 6
_BLOCK_ROWS = 1 << 18  # points that are put into spatial order together
_TIMED_ROWS = 64  # points of one search under a deadline
_CHUNK_BYTES = 1 << 24  # of what one search returns: a float64 and an int64 for each neighbour


class Neighbours:
    """The nearest of N rows in Euclidean distance, exactly, by a k-d tree, on all processors.

    The rows are taken as they are: standardise them first, so that the inputs count alike. The answer for a point does not depend on
    what else is asked; queries are run in spatial order, because a search in the region of the last one finds the tree in the cache.
    A search visits few rows where the rows have few independent directions, and nearly all where they have twenty or more.
    """

    def __init__(self, rows: Float[np.ndarray, "N D"]):
        """Contiguous float64 rows are not copied, and must not change afterwards; others become float64.

        Raises ValueError for no rows and for values that are not finite.
        """
        if rows.ndim != 2 or not 1 <= rows.shape[0] <= np.iinfo(np.int32).max:
            raise ValueError(f"expected rows of shape [N, D] with N from 1 to 2³¹ − 1, but got {rows.shape}")
        self.size, self.n_inputs = rows.shape
        self._tree = _tree(rows)
        self._position = np.empty(self.size, np.int32)  # of each row in the order of the tree's leaves
        self._position[self._tree.indices] = np.arange(self.size, dtype=np.int32)

    def query(self, points: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        """Numbers of the k rows nearest to each point, nearest first; rows at equal distance have always the same order.

        Raises ValueError for points of another shape, for values that are not finite, and unless 1 ≤ k ≤ N; TimeIsUpError under a deadline
        that it would miss.
        """
        self._check(k)
        if points.ndim != 2 or points.shape[1] != self.n_inputs:
            raise ValueError(f"expected points of shape [P, {self.n_inputs}], but got {points.shape}")
        found = np.empty((len(points), k), np.int32)
        for start in range(0, len(points), _BLOCK_ROWS):
            order = start + _tree(points[start : start + _BLOCK_ROWS]).indices
            for part in _in_time(_chunks(order, k)):
                found[part] = self._search(points[part], k)
        return found

    def around(self, centres: Int[np.ndarray, " P"], k: int) -> Int32[np.ndarray, "P k"]:
        """Each centre, one of these N rows given by its number, then its k − 1 nearest other rows, nearest first.

        The centre comes first also among rows equal to it. Raises ValueError for numbers of no row, and unless 1 ≤ k ≤ N; TimeIsUpError
        under a deadline that it would miss.
        """
        self._check(k)
        if len(centres) and not 0 <= centres.min() <= centres.max() < self.size:
            raise ValueError(
                f"centres must be rows 0 to {self.size - 1}, but got {centres.min()} to {centres.max()}"
            )
        found = np.empty((len(centres), k), np.int32)
        for part in _in_time(_chunks(np.argsort(self._position[centres]), k)):
            found[part] = _centre_first(self._search(self._tree.data[centres[part]], k), centres[part])
        return found

    def _search(self, points: Float[np.ndarray, "P D"], k: int) -> Int[np.ndarray, "P k"]:
        _, rows = self._tree.query(points, k, workers=-1)
        return np.reshape(rows, (len(points), k))  # for k = 1 the tree leaves the last axis out

    def _check(self, k: int) -> None:
        if not 1 <= k <= self.size:
            raise ValueError(
                f"the number of neighbours must be 1 to {self.size}, the number of rows, but is {k}"
            )


def search_bytes(n_rows: int, n_inputs: int, n_queries: int, k: int) -> int:
    """Memory that a tree of float32 rows and the answers to `n_queries` take at their peak, beside the rows: an upper estimate."""
    tree = n_rows * (8 * n_inputs + 32)  # float64 rows; indices and positions; nodes
    block = min(n_queries, _BLOCK_ROWS) * (8 * n_inputs + 32)
    return tree + block + n_queries * (4 * k + 16) + 3 * _CHUNK_BYTES


def _tree(rows: np.ndarray) -> Any:
    from scipy.spatial import KDTree  # half a second to load, for this alone

    # Cells are halved at sliding midpoints, not at medians: built and searched faster, and repeated rows do no harm.
    return KDTree(rows, leafsize=_LEAF_ROWS, balanced_tree=False)


def _chunks(order: np.ndarray, k: int) -> Iterator[np.ndarray]:
    step = max(1, _CHUNK_BYTES // (16 * k))
    for start in range(0, len(order), step):
        yield order[start : start + step]


def _in_time(parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The parts one after the other; in smaller ones under a deadline, before which all of them are to be done.

    Raises TimeIsUpError as soon as that is not expected.
    """
    if not deadline.left() < math.inf:
        yield from parts
        return
    pace = Pace()
    pieces = [part[i : i + _TIMED_ROWS] for part in parts for i in range(0, len(part), _TIMED_ROWS)]
    for i, piece in enumerate(pieces):
        deadline.require(pace.expected * (len(pieces) - i))
        with pace.piece():
            yield piece


def _centre_first(found: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """`found` [P, k] with each centre moved to the front; where k other equal rows were found, it takes the place of the last."""
    is_centre = found == centres[:, None]
    place = np.where(is_centre.any(axis=1), is_centre.argmax(axis=1), found.shape[1] - 1)
    column = np.arange(found.shape[1])
    source = column - (column <= place[:, None])  # column 0 reads the last one, and is replaced
    moved = np.take_along_axis(found, source, axis=1)
    moved[:, 0] = centres
    return moved
