"""Nearest rows, in Euclidean distance or by the correlation of a kernel: for learning, preconditioning and local prediction."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from stochgp import deadline
from stochgp.deadline import Pace
from stochgp.kernels import dense
from stochgp.numerics.arrays import filled_up, on_device
from stochgp.parameters import cast, value_of

EXACT_ROWS, SLACK = 100_000, 0.5  # with more rows, which are dense enough, a tree is searched with this slack
NONE = -1  # stands for a neighbour if there are too few
LEAF_ROWS = 32  # 16 and 64 were never much faster, between 13 thousand rows of 26 inputs and a million of 6
MAX_DIRECTIONS = 8.0  # of a tree: at 11 of 100,000 rows it takes six times as long as all distances
BLOCK_ROWS = 1 << 18  # points that are put into spatial order together
TIMED_ROWS = 64  # points of one search under a deadline
CHUNK_BYTES = 1 << 24  # of the answer of one search: a float64 and an int64 for each neighbour
CANDIDATES = 4  # times k, from each term of a kernel with several
PLACED_ROWS = 1 << 15  # whose places are computed together
PAIRS = 1 << 19  # of a point and a candidate that are compared together
MAX_WIDTH = 1 << 10  # rows among which enough of other groups are looked for
POINTS, COLUMNS = 128, 1 << 15  # of one block of all pairs
FIRST_LEVEL = 8  # log₂ of the rows that are searched for the earliest


class Neighbours:
    """The rows of X that are nearest to a point, in Euclidean distance or by the correlation |k(x, z)|/√(k(x, x) k(z, z)) of a kernel.

    The search is exact up to 100,000 rows: a k-d tree, or all distances where the rows have more than 8 independent directions (`directions`).
    With more rows a tree may return rows that are up to 1.5 times as far as the nearest. A kernel is searched by its `places` (Kang and Katzfuss
    2023), so a linear kernel is searched by the correlation itself. With several sets of places, as of a sum, the result is the best of the nearest
    4k of each. A kernel without places, Tanimoto, is evaluated for all pairs, to float32; of equal rows the first counts as nearest.

    Raises ValueError for no rows and for values that are not finite.

    Parameters
    ----------
    X : array [N, D]
        Must not change afterwards. Without a kernel inputs count as they are: standardise them.
    kernel : AbstractKernel or None
        Which decides what is near; None = Euclidean distance.
    slack : float or None
        A tree may return rows at most (1 + slack) times as far as the nearest ones; None = 0, and 0.5 with more than 100,000 rows. At 0.5 it compares a quarter
        of the rows, and finds 96 to 99 % of the nearest 49.
    """

    def __init__(self, X: Float[np.ndarray, "N D"], kernel: Any = None, slack: float | None = None):
        if X.ndim != 2 or not 1 <= X.shape[0] <= np.iinfo(np.int32).max:
            raise ValueError(f"expected rows of shape [N, D] with N from 1 to 2³¹ − 1, but got {X.shape}")
        self.X, self.size, self.kernel = X, len(X), kernel
        self.slack = (SLACK if len(X) > EXACT_ROWS else 0.0) if slack is None else slack
        if kernel is not None:
            with jax.enable_x64(True):
                self.kernel = cast(value_of(kernel), jnp.float64)
        self._compares = kernel is not None and not self.kernel.has_places
        if self._compares:
            self.X = np.ascontiguousarray(X, np.float64)
        self.searches = list[Any]()
        for places in [] if self._compares else self._places(X):
            self.searches.append(
                _tree(places) if directions(places) <= MAX_DIRECTIONS else _AllDistances(places)
            )

    def query(self, points: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        """Numbers of the k rows nearest to each point, nearest first.

        Raises ValueError for points of another shape, for values that are not finite, and unless 1 ≤ k ≤ N; TimeIsUpError under a deadline
        that it would miss.
        """
        self._check_number(k)
        if points.ndim != 2 or points.shape[1] != self.X.shape[1]:
            raise ValueError(f"expected points of shape [P, {self.X.shape[1]}], but got {points.shape}")
        found = np.empty((len(points), k), np.int32)
        step = POINTS if self._compares else max(1, CHUNK_BYTES // (16 * k))
        step = step if deadline.left() == np.inf else min(step, TIMED_ROWS)
        for start in range(0, len(points), BLOCK_ROWS):
            block = points[start : start + BLOCK_ROWS]
            places, pace = self._places(block), Pace()
            # A search in the region of the last one finds the tree in the cache.
            order = np.arange(len(block)) if self._compares else _tree(places[0]).indices
            for first in range(0, len(block), step):
                deadline.require(pace.expected * -(-(len(block) - first) // step))
                part = order[first : first + step]
                with pace.piece():
                    found[start + part] = self._search(block, places, part, k)
        return found

    def others(
        self, rows: Int[np.ndarray, " P"], k: int, group: Int[np.ndarray, " N"] | None = None
    ) -> Int32[np.ndarray, "P k"]:
        """Numbers of the k nearest other rows of each of these `rows`, of other groups if groups are given; −1 if there are too few."""
        found = np.full((len(rows), k), NONE, np.int32)
        todo, width = np.arange(len(rows)), min(k + 1, self.size)
        while len(todo):
            for part in np.array_split(todo, -(-len(todo) * width // PAIRS)):
                near = self.query(self.X[rows[part]], width)
                own = near == rows[part][:, None] if group is None else group[near] == group[rows[part], None]
                found[part, : min(k, width)] = _first(near, own, k)
            todo = todo[(found[todo] == NONE).any(axis=1)]
            if width == self.size or (width >= MAX_WIDTH and group is not None):
                break
            width = min(2 * width, self.size)
        if (
            width < self.size and group is not None
        ):  # rows of large groups, which are few: of all rows of others
            for one in np.unique(group[rows[todo]]):
                here, others = todo[group[rows[todo]] == one], np.flatnonzero(group != one)
                found[here] = NONE
                if len(others):
                    search = Neighbours(self.X[others], self.kernel, self.slack)
                    near = search.query(self.X[rows[here]], min(k, len(others)))
                    found[here, : near.shape[1]] = others[near]
        return found

    def around(self, centres: Int[np.ndarray, " P"], k: int) -> Int32[np.ndarray, "P k"]:
        """Each centre, one of the N rows given by its number, then its k − 1 nearest other rows, nearest first.

        The centre comes first also among rows equal to it. Raises ValueError for numbers of no row, and unless 1 ≤ k ≤ N.
        """
        if len(centres) and not 0 <= centres.min() <= centres.max() < self.size:
            raise ValueError(
                f"centres must be rows 0 to {self.size - 1}, but got {centres.min()} to {centres.max()}"
            )
        self._check_number(k)
        return np.concatenate([centres[:, None].astype(np.int32), self.others(centres, k - 1)], axis=1)

    def _check_number(self, k: int) -> None:
        if not 1 <= k <= self.size:
            raise ValueError(
                f"the number of neighbours must be 1 to {self.size}, the number of rows, but is {k}"
            )

    def _places(self, X: Float[np.ndarray, "P D"]) -> list[Float[np.ndarray, "P _"]]:
        """In float64, computed part by part and written where they stay; the inputs of a kernel that has none."""
        if self.kernel is None or self._compares:
            found = [np.ascontiguousarray(X, np.float64)]
        elif (terms := dense.terms_of(self.kernel)) is not None:
            found = [term.scaled(np.asarray(X, np.float64)) for term in terms]
        else:
            found: list[np.ndarray] = []
            with jax.enable_x64(True):
                for start in range(0, len(X), PLACED_ROWS):
                    part = np.asarray(X[start : start + PLACED_ROWS], np.float64)
                    full = min(PLACED_ROWS, 1 << (len(part) - 1).bit_length())  # nearby sizes share a program
                    places = _places_of(self.kernel, on_device(filled_up(part, full)))
                    found = found or [np.empty((len(X), p.shape[1])) for p in places]
                    for whole, own in zip(found, places, strict=True):
                        whole[start : start + len(part)] = np.asarray(own)[: len(part)]
            found = found or [np.ascontiguousarray(X, np.float64)]
        for own in [] if self._compares else found:
            if not np.isfinite(own).all():
                raise ValueError("all values must be finite, but there are NaN or infinite ones")
        return found

    def _search(
        self, points: np.ndarray, places: list[np.ndarray], part: Int[np.ndarray, " p"], k: int
    ) -> Int[np.ndarray, "p k"]:
        if self._compares:
            return self._of_all_pairs(places[0][part], k)
        n, near = k if len(places) == 1 else min(CANDIDATES * k, self.size), []
        for search, own in zip(self.searches, places, strict=True):
            near.append(search.query(own[part], n, eps=self.slack, workers=-1)[1].reshape(-1, n))
        return near[0] if len(near) == 1 else self._best(points[part], np.concatenate(near, axis=1), k)

    def _best(
        self, points: Float[np.ndarray, "P D"], candidates: Int[np.ndarray, "P C"], k: int
    ) -> Int[np.ndarray, "P k"]:
        """The k candidates of highest correlation, repeated ones counted once."""
        candidates, found = np.sort(candidates, axis=1), []
        repeated = np.zeros(candidates.shape, bool)
        repeated[:, 1:] = candidates[:, 1:] == candidates[:, :-1]
        size = max(1, PAIRS // candidates.shape[1])
        with jax.enable_x64(True):
            for start in range(0, len(points), size):
                part = slice(start, start + size)
                near = np.asarray(self.X[candidates[part]], np.float64)
                values = _of_candidates(self.kernel, np.asarray(points[part], np.float64), near)
                order = np.argsort(np.where(repeated[part], 1.0, -np.asarray(values)), axis=1, kind="stable")
                found.append(np.take_along_axis(candidates[part], order[:, :k], axis=1))
        return np.concatenate(found)

    def _of_all_pairs(self, points: Float[np.ndarray, "P D"], k: int) -> Int[np.ndarray, "P k"]:
        """The rows of highest correlation: a key has the correlation to float32 and then the number of the row."""
        width, last = min(COLUMNS, self.size), np.uint64(0xFFFFFFFF)
        best = np.zeros((len(points), 0), np.uint64)
        with jax.enable_x64(True):
            filled = on_device(filled_up(points, min(POINTS, max(self.size, len(points))), 0.0))
            for start in range(0, self.size, width):
                rows = self.X[start : start + width]
                values = np.asarray(
                    _correlations(self.kernel, filled, on_device(filled_up(rows, width, 0.0)))
                )
                bits = np.ascontiguousarray(values[: len(points), : len(rows)], np.float32).view(np.uint32)
                keys = (last - bits.astype(np.uint64)) << np.uint64(32)
                keys |= np.arange(start, start + len(rows), dtype=np.uint64)
                best = np.concatenate([best, keys], axis=1)
                best = best if best.shape[1] <= k else np.partition(best, k - 1, axis=1)[:, :k]
        return (np.sort(best, axis=1) & last).astype(np.int32)


def earlier_rows(
    kernel: Any,
    X: Float[np.ndarray, "N D"],
    order: Int[np.ndarray, " N"],
    positions: Int[np.ndarray, " P"],
    k: int,
) -> Int32[np.ndarray, "P k"]:
    """Numbers of k rows before each of these positions of `order`, the most correlated first; −1 if there are fewer.

    A row at position t from 2^j to 2^(j+1) − 1 finds them among the first 2^j rows: at worst half of the rows before it are not compared.
    Below 256 all are, ranked by distance, and those that come after are put last.
    """
    found = np.full((len(positions), k), NONE, np.int32)
    level = np.maximum(np.int64(np.log2(np.maximum(positions, 1))), FIRST_LEVEL - 1)
    for j in np.unique(level):
        here, first = np.flatnonzero(level == j), order[: 1 << max(j, FIRST_LEVEL)]
        width = min(k, len(first)) if positions[here].min() >= len(first) else len(first)
        near = Neighbours(X[first], kernel).query(X[order[positions[here]]], width)
        near = _first(near, near >= positions[here, None], k)
        found[here, : near.shape[1]] = np.where(near == NONE, NONE, first[near])
    return found


def neighbours_bytes(kernel: Any, n_rows: int, n_inputs: int, n_points: int, k: int) -> int:
    """Memory of `Neighbours` and a query at their peak, beside X: places and trees of all terms, candidates, pairs. An upper estimate."""
    if kernel is not None and not value_of(kernel).has_places:
        width = min(COLUMNS, n_rows)
        blocks = 5 * 8 * POINTS * (width + k) + 24 * width * (n_inputs + 2)
        return 8 * n_rows * n_inputs + 4 * n_points * k + blocks
    X = jax.ShapeDtypeStruct((1, n_inputs), jnp.float32)
    places = () if kernel is None else eqx.filter_eval_shape(_places_of, value_of(kernel), X)
    n, total = n_rows + min(n_points, BLOCK_ROWS), n_points * (4 * k + 16)
    for own in places or (X,):
        width = own.shape[1]
        total += n * ((8 if width <= MAX_DIRECTIONS else 16) * width + 32)
    total += 3 * min(CHUNK_BYTES, 16 * k * n_points)
    several = 20 * n_points * len(places) * CANDIDATES * k + 3 * 8 * PAIRS * (n_inputs + 2)
    return total if len(places) < 2 else total + several


def directions(rows: Float[np.ndarray, "N D"]) -> float:
    """An estimate of the number of independent directions that rows have around a row (Levina and Bickel 2004).

    1 / mean log(T_10/T_j), T_j the distance to the j-th nearest of 500 random rows, j = 1 … 9. Equal rows are counted once; 0 for fewer than
    20 different ones.
    """
    some = np.random.default_rng(0).choice(len(rows), min(500, len(rows)), replace=False)
    points = np.unique(np.asarray(rows[np.sort(some)], np.float64), axis=0)
    if len(points) < 20:
        return 0.0
    near = _tree(points).query(points, 11)[0][:, 1:]
    logs = np.log(near[:, -1:] / near[:, :-1])
    return float(1 / np.mean(logs)) if np.any(logs > 0) else 0.0


class _AllDistances:
    """In place of a tree, for rows of many directions."""

    def __init__(self, rows: Float[np.ndarray, "N D"]):
        from sklearn.neighbors import NearestNeighbors  # a second to load, for this alone

        self.centre = np.median(rows, axis=0)  # near which rounding errors are small
        self.search = NearestNeighbors(algorithm="brute", n_jobs=-1).fit(rows - self.centre)

    def query(self, points: Float[np.ndarray, "P D"], k: int, **_: Any) -> tuple[np.ndarray, np.ndarray]:
        return self.search.kneighbors(points - self.centre, k)


def _tree(rows: np.ndarray) -> Any:
    from scipy.spatial import KDTree  # half a second to load, for this alone

    # Cells are halved at sliding midpoints, not at medians: built and searched faster, and repeated rows do no harm.
    return KDTree(rows, leafsize=LEAF_ROWS, balanced_tree=False)


def _first(near: Int32[np.ndarray, "P w"], out: np.ndarray, k: int) -> Int32[np.ndarray, "P _"]:
    """The first k of each line that are not `out`; −1 fills up."""
    order = np.argsort(out, axis=1, kind="stable")[:, :k]
    first = np.take_along_axis(near, order, axis=1)
    return np.where(np.take_along_axis(out, order, axis=1), np.int32(NONE), first)


@eqx.filter_jit
def _places_of(kernel: Any, X: Array) -> tuple[Array, ...]:
    return kernel.places(X)


@eqx.filter_jit
def _correlations(kernel: Any, Z: Array, X: Array) -> Float[Array, "P C"]:
    """|k(z, x)|/√(k(z, z) k(x, x)) for all pairs."""
    centre, tiny = X[0], jnp.finfo(X.dtype).tiny
    across = kernel.between(kernel.prepare(Z, centre), kernel.prepare(X, centre))
    return jnp.abs(across) / jnp.sqrt(jnp.maximum(kernel.diag(Z)[:, None] * kernel.diag(X)[None, :], tiny))


@eqx.filter_jit
def _of_candidates(kernel: Any, Z: Any, near: Any) -> Float[Array, "P C"]:
    """Of each point z [P, D] and its candidates x [P, C, D]."""
    return jax.vmap(lambda z, X: _correlations(kernel, z[None], X)[0])(Z, near)
