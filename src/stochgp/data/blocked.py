"""Nearest rows by blocks of distances, each a matrix product: for rows of many directions, where a tree searches nearly all of them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.threads import cores

_POINTS, _ROWS = 64, 1 << 13  # of a block
_SAMPLE = 16  # one row of so many tells how far the candidates are
_SURE = 4.0  # standard deviations that a count in the sample may miss
_PAIRS = 1 << 16  # of a point and a candidate, compared together
_MOST_PAIRS = 1 << 18  # of a block; with more, its points are ranked one by one
_DIRECTIONS_ROWS, _DIRECTIONS_NEAR = 500, 10


class BlockedSearch:
    """The nearest of N rows, exactly; rows at equal distance by their number.

    ‖x − z‖² − ‖z‖² = [−2z, 1]·[x, ‖x‖²]: a block of distances is one product. In float32, around the mean of the rows, its rounding error is at
    most c(‖x‖² + ‖z‖²), c = (D + 8) 2⁻²³. A random sixteenth of the rows gives a bound below which more than k rows are expected. Candidates are
    all rows whose value less c‖x‖² is below it, and they are ranked by their distances in float64. A point is compared with all rows in
    float64 where the k-th candidate is not so near that no other row can be nearer, or where candidates are too many.
    """

    def __init__(self, rows: Float[np.ndarray, "N D"]):
        """Contiguous float64 rows are not copied, and must not change afterwards. A copy in float32 is made."""
        self.rows = np.ascontiguousarray(rows, np.float64)
        N, D = self.rows.shape
        self._centre, self._error = self.rows.mean(axis=0), (D + 8) * 2.0**-23
        self._table = np.empty((N, D + 1), np.float32)  # [x, ‖x‖²(1 − c)]
        for part in _parts(N, 1 << 16):
            shifted = self.rows[part] - self._centre
            self._table[part, :D] = shifted
            self._table[part, D] = np.sum(np.square(shifted), axis=1) * (1 - self._error)
        some = np.random.default_rng(0).choice(N, -(-N // _SAMPLE), replace=False)
        self._some = self._table[np.sort(some)]

    def query(self, points: Float[np.ndarray, "P D"], k: int) -> Int[np.ndarray, "P k"]:
        """Numbers of the k rows nearest to each point, 1 ≤ k ≤ N, the nearest first."""
        rank = self._rank(k)
        size = max(1, min(_POINTS, _PAIRS // (_SAMPLE * rank)))
        found = np.empty((len(points), k), np.int32)

        def search(part: slice) -> None:
            found[part] = self._of_block(np.asarray(points[part], np.float64), k, rank)

        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(search, _parts(len(points), size)))
        return found

    def _rank(self, k: int) -> int:
        """Which of the sample's distances is taken as the bound."""
        share = k / _SAMPLE
        return int(share + _SURE * share**0.5 + _SURE) + 1

    def _of_block(self, points: Float[np.ndarray, "P D"], k: int, rank: int) -> Int[np.ndarray, "P k"]:
        shifted = points - self._centre
        lines = np.concatenate([-2 * shifted, np.ones((len(points), 1))], axis=1).astype(np.float32)
        bound = np.full(len(points), np.inf, np.float32)
        if rank < len(self._some):
            bound = np.partition(lines @ self._some.T, rank, axis=1)[:, rank]
        which, rows = self._candidates(lines, bound)
        counts = np.bincount(which, minlength=len(points))
        last, found = np.cumsum(counts), np.zeros((len(points), k), np.int64)
        distances = self._distances(points, which, rows)
        order = np.lexsort((rows, distances, which))
        there = np.flatnonzero(counts >= k)
        ranks = order[(last - counts)[there, None] + np.arange(k)]
        found[there] = rows[ranks]
        sure = np.zeros(len(points), bool)
        squares = np.sum(np.square(shifted), axis=1)  # ‖z‖²
        farthest = distances[ranks[:, -1]] - (1 - self._error) * squares[there]
        sure[there] = farthest < bound[there]
        for i in np.flatnonzero(~sure):
            found[i] = self._of_point(points[i], k)
        return found

    def _candidates(
        self, lines: Float[np.ndarray, "P _"], bound: Float[np.ndarray, " P"]
    ) -> tuple[Int[np.ndarray, " C"], Int[np.ndarray, " C"]]:
        """(Points, rows) of all pairs within the bounds, the error allowed for; none where they are too many. `lines` are [−2z, 1] in float32."""
        parts, n_pairs = [], 0
        for rows in _parts(len(self._table), _ROWS):
            values = lines @ self._table[rows].T
            at = np.flatnonzero(values <= bound[:, None])
            n_pairs += len(at)
            if n_pairs > _MOST_PAIRS:
                return np.empty(0, np.int64), np.empty(0, np.int64)
            which, column = np.divmod(at, values.shape[1])
            parts.append((which, column + rows.start))
        which, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
        return which, rows

    def _distances(
        self, points: Float[np.ndarray, "P D"], which: Int[np.ndarray, " C"], rows: Int[np.ndarray, " C"]
    ) -> Float[np.ndarray, " C"]:
        found = np.empty(len(rows))
        for part in _parts(len(rows), _PAIRS):
            found[part] = np.sum(np.square(self.rows[rows[part]] - points[which[part]]), axis=1)
        return found

    def _of_point(self, point: Float[np.ndarray, " D"], k: int) -> Int[np.ndarray, " k"]:
        """Compared with all rows."""
        parts = _parts(len(self.rows), _PAIRS)
        distances = np.concatenate([np.sum(np.square(self.rows[p] - point), axis=1) for p in parts])
        near = np.flatnonzero(distances <= np.partition(distances, k - 1)[k - 1])
        return near[np.lexsort((near, distances[near]))][:k]


def directions(rows: Float[np.ndarray, "N D"]) -> float:
    """An estimate of the number of independent directions that rows have around a row (Levina and Bickel 2004).

    1 / mean log(T_10/T_j), T_j the distance to the j-th nearest of 500 random rows, j = 1 … 9. Equal rows are counted once; 0 for fewer than
    20 different ones.
    """
    some = np.random.default_rng(0).choice(len(rows), min(_DIRECTIONS_ROWS, len(rows)), replace=False)
    points = np.unique(np.asarray(rows[np.sort(some)], np.float64), axis=0)
    if len(points) < 2 * _DIRECTIONS_NEAR:
        return 0.0
    points = points - points.mean(axis=0)
    norms = np.sum(np.square(points), axis=1)
    squares = np.maximum(norms[:, None] + norms[None, :] - 2 * points @ points.T, 0)
    np.fill_diagonal(squares, 0)
    near = np.sort(np.partition(squares, _DIRECTIONS_NEAR, axis=1)[:, : _DIRECTIONS_NEAR + 1], axis=1)[:, 1:]
    near = near[near[:, 0] > 0]
    logs = 0.5 * np.log(near[:, -1:] / near[:, :-1])
    return float(1 / np.mean(logs)) if len(near) and np.any(logs > 0) else 0.0


def blocked_bytes(n_rows: int, n_inputs: int) -> int:
    """Memory of the copy in float32 and of the blocks of all processors, beside float64 rows and the answers: an upper estimate."""
    block = 8 * _POINTS * _ROWS + 64 * _MOST_PAIRS + 16 * _PAIRS * (n_inputs + 1)
    return int(1.2 * 4 * n_rows * (n_inputs + 1)) + cores() * block


def _parts(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
