"""Nearest rows: for mini-batches of a centre and its neighbours, and for prediction from the rows near a point."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int32

from stochgp import deadline
from stochgp.data.blocked import BlockedSearch, blocked_bytes, directions
from stochgp.deadline import Pace

_LEAF_ROWS = 32  # 16 and 64 were never much faster, between 13 thousand rows of 26 inputs and a million of 6
_BLOCK_ROWS = 1 << 18  # points that are put into spatial order together
_TIMED_ROWS = 64  # points of one search under a deadline
_MOST_DIRECTIONS = 8.0  # for a tree: at 8 directions of 600,000 rows it takes as long as blocks, at 11 of 100,000 six times as long
_CHUNK_BYTES = 1 << 24  # of what one search returns: a float64 and an int64 for each neighbour
EXACT_ROWS, SLACK = 100_000, 0.5  # beyond so many rows nearly all of the nearest are enough, see `slack_of`


class Neighbours:
    """The nearest of N rows in Euclidean distance, exactly, on all processors: by a k-d tree, or by blocks of distances.

    The rows are taken as they are: standardise them first, so that the inputs count alike. The answer for a point does not depend on
    what else is asked; a tree's queries are run in spatial order, because a search in the region of the last one finds the tree in the cache.
    A tree compares few rows where the rows have few independent directions, and nearly all where they have twenty or more. Where the rows
    have more than 8 (`directions`), all are compared, by matrix products (`BlockedSearch`).

    Raises ValueError for no rows and for values that are not finite.

    Parameters
    ----------
    rows : array [N, D]
        Contiguous float64 rows are not copied, and must not change afterwards; others become float64.
    slack : float
        A tree may return rows at most (1 + slack) times as far as the nearest ones: at 0.5 it compares a quarter of the rows, and finds 96 to 99 % of the
        nearest 49 (`recall`); at 0 it is exact. Without a tree it has no effect.
    """

    def __init__(self, rows: Float[np.ndarray, "N D"], slack: float = 0.0):
        if rows.ndim != 2 or not 1 <= rows.shape[0] <= np.iinfo(np.int32).max:
            raise ValueError(f"expected rows of shape [N, D] with N from 1 to 2³¹ − 1, but got {rows.shape}")
        _check_finite(rows)
        self.size, self.n_inputs = rows.shape
        self.rows, self.slack = np.ascontiguousarray(rows, np.float64), slack
        self._position: Any = None
        self._tree: Any = None
        self._blocks: BlockedSearch | None = None
        if directions(rows) > _MOST_DIRECTIONS:
            self._blocks = BlockedSearch(self.rows)
        else:
            self._tree = _tree(self.rows)
            self._position = np.empty(self.size, np.int32)  # of each row in the order of the tree's leaves
            self._position[self._tree.indices] = np.arange(self.size, dtype=np.int32)

    @property
    def is_tree(self) -> bool:
        """Whether a search needs memory for its answers alone."""
        return self._tree is not None

    @property
    def is_exact(self) -> bool:
        return self._blocks is not None or self.slack == 0

    def recall(self, points: Float[np.ndarray, "P D"], k: int) -> float:
        """The share of the k nearest rows of these points that `query` finds."""
        if self.is_exact:
            return 1.0
        found, exact = self.query(points, k), self._tree.query(points, k, workers=-1)[1].reshape(-1, k)
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(found, exact, strict=True)]))

    def query(self, points: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        """Numbers of the k rows nearest to each point, nearest first; rows at equal distance have always the same order.

        Raises ValueError for points of another shape, for values that are not finite, and unless 1 ≤ k ≤ N; TimeIsUpError under a deadline
        that it would miss.
        """
        check_number(k, self.size)
        if points.ndim != 2 or points.shape[1] != self.n_inputs:
            raise ValueError(f"expected points of shape [P, {self.n_inputs}], but got {points.shape}")
        _check_finite(points)
        found = np.empty((len(points), k), np.int32)
        for start in range(0, len(points), _BLOCK_ROWS):
            order = start + self._order(points[start : start + _BLOCK_ROWS])
            for part in _in_time(_chunks(order, k)):
                found[part] = self._search(points[part], k)
        return found

    def around(self, centres: Int[np.ndarray, " P"], k: int) -> Int32[np.ndarray, "P k"]:
        """Each centre, one of these N rows given by its number, then its k − 1 nearest other rows, nearest first.

        The centre comes first also among rows equal to it. Raises ValueError for numbers of no row, and unless 1 ≤ k ≤ N; TimeIsUpError
        under a deadline that it would miss.
        """
        check_number(k, self.size)
        if len(centres) and not 0 <= centres.min() <= centres.max() < self.size:
            raise ValueError(
                f"centres must be rows 0 to {self.size - 1}, but got {centres.min()} to {centres.max()}"
            )
        found = np.empty((len(centres), k), np.int32)
        order = np.arange(len(centres)) if self._position is None else np.argsort(self._position[centres])
        for part in _in_time(_chunks(order, k)):
            found[part] = centre_first(self._search(self.rows[centres[part]], k), centres[part])
        return found

    def _order(self, points: Float[np.ndarray, "P D"]) -> Int[np.ndarray, " P"]:
        """Near points together, where a tree is searched."""
        return np.arange(len(points)) if self._tree is None or not len(points) else _tree(points).indices

    def _search(self, points: Float[np.ndarray, "P D"], k: int) -> Int[np.ndarray, "P k"]:
        if self._blocks is not None:
            return self._blocks.query(points, k)
        _, rows = self._tree.query(points, k, eps=self.slack, workers=-1)
        return np.reshape(rows, (len(points), k))  # for k = 1 the tree leaves the last axis out


def check_number(k: int, n_rows: int) -> None:
    """Raises ValueError for a number of neighbours that so many rows do not have."""
    if not 1 <= k <= n_rows:
        raise ValueError(f"the number of neighbours must be 1 to {n_rows}, the number of rows, but is {k}")


def slack_of(n_rows: int) -> float:
    """0 up to 100,000 rows, 0.5 beyond: for neighbours that a model is learned and predicts from, where near rows are many."""
    return SLACK if n_rows > EXACT_ROWS else 0.0


def search_bytes(n_rows: int, n_inputs: int, n_queries: int, k: int) -> int:
    """Memory that a search of float32 rows and the answers to `n_queries` take at their peak, beside the rows: an upper estimate."""
    index = n_rows * 32  # indices and positions; nodes
    if n_inputs > _MOST_DIRECTIONS:
        index = max(index, blocked_bytes(n_rows, n_inputs))
    tree = n_rows * 8 * n_inputs + index  # with rows in float64
    block = min(n_queries, _BLOCK_ROWS) * (8 * n_inputs + 32)
    return tree + block + n_queries * (4 * k + 16) + 3 * _CHUNK_BYTES


def _check_finite(values: np.ndarray) -> None:
    """Raises ValueError for others."""
    for start in range(0, len(values), _BLOCK_ROWS):
        if not np.isfinite(values[start : start + _BLOCK_ROWS]).all():
            raise ValueError("all values must be finite, but there are NaN or infinite ones")


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


def centre_first(found: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """`found` [P, k] with each centre moved to the front; where k other equal rows were found, it takes the place of the last."""
    is_centre = found == centres[:, None]
    place = np.where(is_centre.any(axis=1), is_centre.argmax(axis=1), found.shape[1] - 1)
    column = np.arange(found.shape[1])
    source = column - (column <= place[:, None])  # column 0 reads the last one, and is replaced
    moved = np.take_along_axis(found, source, axis=1)
    moved[:, 0] = centres
    return moved
