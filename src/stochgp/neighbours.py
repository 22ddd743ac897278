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
BLOCK_ROWS = 1 << 18  # points whose places are held together
TIMED_ROWS = 64  # points of one search under a deadline
CHUNK_BYTES = 1 << 24  # of the answer of one search: a float64 and an int64 for each neighbour
CANDIDATES = 4  # times k, from each term of a kernel with several
PLACED_ROWS = 1 << 15  # whose places are computed together
PAIRS = 1 << 19  # of a point and a candidate that are compared together
MAX_WIDTH = 1 << 10  # rows among which enough of other groups are looked for
POINTS, COLUMNS = 128, 1 << 15  # of one block of all pairs
FIRST_LEVEL = 8  # log₂ of the rows that are searched for the earliest


class Neighbours:
    """Search for the nearest rows of X by Euclidean distance or the correlation of a kernel.

    The search is exact up to 100,000 rows. It uses a k-d tree, or all distances if the rows have more than 8 independent directions (`directions`). With more
    rows, a tree may return rows up to 1.5 times as far as the nearest. The correlation is |k(x, z)|/√(k(x, x) k(z, z)). The search compares the kernel's
    `places` (Kang and Katzfuss 2023), coordinates in which near points have a high correlation. A sum of kernels has several sets of places: the search takes
    the nearest 4k rows in each set and returns the best k. The Tanimoto kernel has no places and is evaluated for all pairs.

    Raises ValueError for no rows and for values that are not finite.

    Parameters
    ----------
    X : array [N, D]
        The rows, which must not change afterwards. Without a kernel, standardise the inputs first.
    kernel : AbstractKernel or None
        The kernel whose correlation ranks the rows; None = Euclidean distance.
    slack : float or None
        A tree may return rows at most (1 + slack) times as far as the nearest rows; None = 0 up to 100,000 rows, else 0.5. With 0.5 it compares a quarter of
        the rows and finds 96 to 99 % of the nearest 49.
    """

    def __init__(self, X: Float[np.ndarray, "N D"], kernel: Any = None, slack: float | None = None):
        if X.ndim != 2 or not 1 <= X.shape[0] <= np.iinfo(np.int32).max:
            raise ValueError(f"expected rows of shape [N, D] with N from 1 to 2³¹ − 1, but got {X.shape}")
        self.X, self.size, self.kernel = X, len(X), kernel
        self.slack = (SLACK if len(X) > EXACT_ROWS else 0.0) if slack is None else slack
        if kernel is not None:
            with jax.enable_x64(True):
                self.kernel = cast(value_of(kernel), jnp.float64)
        self.searches = list[Any]()  # none: all pairs are compared
        if kernel is None or self.kernel.has_places:
            for places in self._places(X):
                self.searches.append(
                    _tree(places) if directions(places) <= MAX_DIRECTIONS else _AllDistances(places)
                )

    def query(self, points: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        """Return the indices of the k rows nearest to each point, nearest first.

        Raises ValueError for points of another shape, for values that are not finite, and unless 1 ≤ k ≤ N. Raises TimeIsUpError if the search would
        miss a deadline.
        """
        if not 1 <= k <= self.size:
            raise ValueError(
                f"the number of neighbours must be 1 to {self.size}, the number of rows, but is {k}"
            )
        if points.ndim != 2 or points.shape[1] != self.X.shape[1]:
            raise ValueError(f"expected points of shape [P, {self.X.shape[1]}], but got {points.shape}")
        found = np.empty((len(points), k), np.int32)
        step = max(1, CHUNK_BYTES // (16 * k)) if self.searches else POINTS
        step = step if deadline.left() == np.inf else min(step, TIMED_ROWS)
        for start in range(0, len(points), BLOCK_ROWS):
            block, pace = points[start : start + BLOCK_ROWS], Pace()
            places = self._places(block) if self.searches else []
            for first in range(0, len(block), step):
                deadline.require(pace.expected * -(-(len(block) - first) // step))
                part = slice(first, first + step)
                with pace.piece():
                    near = self._nearest(block[part], [own[part] for own in places], k)
                    found[start + first : start + first + len(near)] = near
        return found

    def others(
        self, rows: Int[np.ndarray, " P"], k: int, group: Int[np.ndarray, " N"] | None = None
    ) -> Int32[np.ndarray, "P k"]:
        """Return the indices of the k rows nearest to each of `rows`, without itself and its group; −1 if there are too few."""
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

    def _places(self, X: Float[np.ndarray, "P D"]) -> list[Float[np.ndarray, "P _"]]:
        """In float64, computed part by part and written where they stay."""
        found: list[np.ndarray] = []
        if self.kernel is not None and (terms := dense.terms_of(self.kernel)) is not None:
            found = [term.scaled(np.asarray(X, np.float64)) for term in terms]
        elif self.kernel is not None:
            with jax.enable_x64(True):
                for start in range(0, len(X), PLACED_ROWS):
                    part = np.asarray(X[start : start + PLACED_ROWS], np.float64)
                    full = min(PLACED_ROWS, 1 << (len(part) - 1).bit_length())  # nearby sizes share a program
                    places = _places_of(self.kernel, on_device(filled_up(part, full)))
                    found = found or [np.empty((len(X), p.shape[1])) for p in places]
                    for whole, own in zip(found, places, strict=True):
                        whole[start : start + len(part)] = np.asarray(own)[: len(part)]
        found = found or [np.ascontiguousarray(X, np.float64)]
        if not all(np.isfinite(own).all() for own in found):
            raise ValueError("all values must be finite, but there are NaN or infinite ones")
        return found

    def _nearest(
        self, points: Float[np.ndarray, "P D"], places: list[np.ndarray], k: int
    ) -> Int[np.ndarray, "P k"]:
        near = []
        if self.searches:
            n = k if len(places) == 1 else min(CANDIDATES * k, self.size)
            for search, own in zip(self.searches, places, strict=True):
                near.append(search.query(own, n, eps=self.slack, workers=-1)[1].reshape(-1, n))
        else:
            width = min(COLUMNS, self.size)
            filled = filled_up(np.asarray(points, np.float64), min(POINTS, max(self.size, len(points))), 0.0)
            for start in range(0, self.size, width):
                rows = filled_up(np.asarray(self.X[start : start + width], np.float64), width)
                with jax.enable_x64(True):
                    best = np.asarray(_most_correlated(self.kernel, filled, rows, min(k, width)))
                near.append(np.minimum(start + best[: len(points)], self.size - 1))  # the last row fills up
        return near[0] if len(near) == 1 else self._best(points, np.concatenate(near, axis=1), k)

    def _best(
        self, points: Float[np.ndarray, "P D"], candidates: Int[np.ndarray, "P C"], k: int
    ) -> Int[np.ndarray, "P k"]:
        """Return the k candidates of highest correlation, repeated ones counted once."""
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


def earlier_rows(
    kernel: Any,
    X: Float[np.ndarray, "N D"],
    order: Int[np.ndarray, " N"],
    positions: Int[np.ndarray, " P"],
    k: int,
) -> Int32[np.ndarray, "P k"]:
    """Return the indices of k correlated rows before each of these positions of `order`.

    The most correlated row is the first; −1 if there are fewer. At positions t from 2^j to 2^(j+1) − 1 the search compares only the first 2^j rows, at least half of the rows before t. At positions below
    256 it compares all earlier rows.
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
    """Return an upper estimate of the peak memory of `Neighbours` and a query, without X."""
    compared = 3 * 8 * PAIRS * (n_inputs + 2)
    if kernel is not None and not value_of(kernel).has_places:
        blocks = 5 * 8 * POINTS * (min(COLUMNS, n_rows) + k) + 24 * min(COLUMNS, n_rows) * (n_inputs + 2)
        return 8 * n_rows * n_inputs + 4 * n_points * k + blocks + (compared if n_rows > COLUMNS else 0)
    X = jax.ShapeDtypeStruct((1, n_inputs), jnp.float32)
    places = (X,) if kernel is None else eqx.filter_eval_shape(_places_of, value_of(kernel), X) or (X,)
    each = sum((8 if own.shape[1] <= MAX_DIRECTIONS else 16) * own.shape[1] + 32 for own in places)
    total = (
        (n_rows + min(n_points, BLOCK_ROWS)) * each
        + n_points * (4 * k + 16)
        + 3 * min(CHUNK_BYTES, 16 * k * n_points)
    )
    return total if len(places) < 2 else total + 20 * n_points * len(places) * CANDIDATES * k + compared


def directions(rows: Float[np.ndarray, "N D"]) -> float:
    """Return an estimate of the intrinsic dimension of the rows (Levina and Bickel 2004).

    The estimate is 1 / mean log(T_10/T_j), j = 1 … 9, with the distance T_j to the j-th nearest of 500 random rows. Equal rows count once.
    It is 0 for fewer than 20 different rows.
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
    """Return the first k of each line that are not `out`; −1 fills up."""
    order = np.argsort(out, axis=1, kind="stable")[:, :k]
    first = np.take_along_axis(near, order, axis=1)
    return np.where(np.take_along_axis(out, order, axis=1), np.int32(NONE), first)


@eqx.filter_jit
def _places_of(kernel: Any, X: Array) -> tuple[Array, ...]:
    return kernel.places(X)


def _correlations(kernel: Any, Z: Array, X: Array) -> Float[Array, "P C"]:
    """|k(z, x)|/√(k(z, z) k(x, x)) for all pairs."""
    centre, tiny = X[0], jnp.finfo(X.dtype).tiny
    across = kernel.between(kernel.prepare(Z, centre), kernel.prepare(X, centre))
    return jnp.abs(across) / jnp.sqrt(jnp.maximum(kernel.diag(Z)[:, None] * kernel.diag(X)[None, :], tiny))


@eqx.filter_jit
def _most_correlated(kernel: Any, Z: Any, X: Any, k: int) -> Int[Array, "P k"]:
    """Return the k rows of highest correlation with each point, of equal ones the first."""
    return jax.lax.top_k(_correlations(kernel, jnp.asarray(Z), jnp.asarray(X)), k)[1]


@eqx.filter_jit
def _of_candidates(kernel: Any, Z: Any, near: Any) -> Float[Array, "P C"]:
    """Return correlations of each point z [P, D] with its candidates x [P, C, D]."""
    return jax.vmap(lambda z, X: _correlations(kernel, z[None], X)[0])(Z, near)
