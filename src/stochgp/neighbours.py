"""Search for the rows with the smallest distance or the highest correlation."""

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

EXACT_ROWS, SLACK = 100_000, 0.5  # with more rows, the default slack of tree searches is SLACK
NONE = -1  # index of a missing neighbour
LEAF_ROWS = 32  # rows per leaf of a tree
MAX_DIRECTIONS = 8.0  # maximum intrinsic dimension for a tree
BLOCK_ROWS = 1 << 18  # points per block of coordinates
TIMED_ROWS = 64  # points per search if there is a deadline
CHUNK_BYTES = 1 << 24  # bytes of the result of one search
CANDIDATES = 4  # candidates from each kernel term, as a multiple of k
PLACED_ROWS = 1 << 15  # rows per computation of coordinates
PAIRS = 1 << 19  # pairs of points and candidates per comparison
MAX_WIDTH = 1 << 10  # maximum neighbours searched to find enough rows of other groups
POINTS, COLUMNS = 128, 1 << 15  # size of a block of all pairs
FIRST_LEVEL = 8  # log₂ of the smallest number of searched rows


class Neighbours:
    """Search for the rows of X that are nearest to a point, or most correlated with it.

    The correlation of x and z is |k(x, z)|/√(k(x, x) k(z, z)). The search uses the kernel's `places`:
    coordinates in which nearby points have a high correlation (Kang and Katzfuss 2023). To find m rows for a
    sum of kernels, the search collects 4m candidate rows for each term. Then it returns the m candidates
    with the highest correlation. Kernels without `places`, such as the Tanimoto kernel, are evaluated for all
    pairs of rows. If the intrinsic dimension of X (`directions`) is at most 8, the search uses a k-d tree.
    Otherwise, it computes all distances. With at most 100,000 rows and one kernel term, the search is exact.

    Raises ValueError if there are no rows or if values are not finite.

    Parameters
    ----------
    X : array [N, D]
        The rows, which must not change later. Without a kernel, standardise the inputs first.
    kernel : AbstractKernel or None
        The kernel k that defines the correlation. None: the rows with the smallest Euclidean distance.
    slack : float or None
        A k-d tree may return rows that are up to 1 + slack times as far away as the nearest rows. None means
        0 with at most 100,000 rows, and 0.5 with more rows.
    """

    def __init__(self, X: Float[np.ndarray, "N D"], kernel: Any = None, slack: float | None = None):
        if X.ndim != 2 or not 1 <= X.shape[0] <= np.iinfo(np.int32).max:
            raise ValueError(f"expected rows of shape [N, D] with N from 1 to 2³¹ − 1, but got {X.shape}")
        self.X, self.size, self.kernel = X, len(X), kernel
        self.slack = (SLACK if len(X) > EXACT_ROWS else 0.0) if slack is None else slack
        if kernel is not None:
            with jax.enable_x64(True):
                self.kernel = cast(value_of(kernel), jnp.float64)
        self.searches = list[Any]()  # empty if all pairs are compared
        if kernel is None or self.kernel.has_places:
            for places in self._places(X):
                self.searches.append(
                    _tree(places) if directions(places) <= MAX_DIRECTIONS else _AllDistances(places)
                )

    def query(self, points: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        """Return the indices of the k rows nearest to each point, nearest first.

        Raises ValueError if the shape of the points is wrong, if values are not finite, or unless 1 ≤ k ≤ N.
        Raises TimeIsUpError if the search would miss a deadline.
        """
        if not 1 <= k <= self.size:
            raise ValueError(
                f"the number of neighbours must be from 1 to {self.size} (the number of rows), but is {k}"
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
        """Return the k nearest rows of each row outside its group; −1 for missing neighbours."""
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
        if width < self.size and group is not None:  # for large groups, search all other groups
            for one in np.unique(group[rows[todo]]):
                here, others = todo[group[rows[todo]] == one], np.flatnonzero(group != one)
                found[here] = NONE
                if len(others):
                    search = Neighbours(self.X[others], self.kernel, self.slack)
                    near = search.query(self.X[rows[here]], min(k, len(others)))
                    found[here, : near.shape[1]] = others[near]
        return found

    def _places(self, X: Float[np.ndarray, "P D"]) -> list[Float[np.ndarray, "P _"]]:
        """Return the float64 coordinates for the search, one array for each kernel term."""
        found: list[np.ndarray] = []
        if self.kernel is not None and (terms := dense.terms_of(self.kernel)) is not None:
            found = [term.scaled(np.asarray(X, np.float64)) for term in terms]
        elif self.kernel is not None:
            with jax.enable_x64(True):
                for start in range(0, len(X), PLACED_ROWS):
                    part = np.asarray(X[start : start + PLACED_ROWS], np.float64)
                    full = min(PLACED_ROWS, 1 << (len(part) - 1).bit_length())  # few different sizes
                    places = _places_of(self.kernel, on_device(filled_up(part, full)))
                    found = found or [np.empty((len(X), p.shape[1])) for p in places]
                    for whole, own in zip(found, places, strict=True):
                        whole[start : start + len(part)] = np.asarray(own)[: len(part)]
        found = found or [np.ascontiguousarray(X, np.float64)]
        if not all(np.isfinite(own).all() for own in found):
            raise ValueError("all values must be finite, but some are NaN or infinite")
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
                near.append(np.minimum(start + best[: len(points)], self.size - 1))  # for padding
        return near[0] if len(near) == 1 else self._best(points, np.concatenate(near, axis=1), k)

    def _best(
        self, points: Float[np.ndarray, "P D"], candidates: Int[np.ndarray, "P C"], k: int
    ) -> Int[np.ndarray, "P k"]:
        """Return the k different candidates with the highest correlation."""
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
    """Return k highly correlated rows among the rows before each position of `order`.

    The most correlated row is first; −1 replaces missing rows. For positions from 2^j to 2^(j+1) − 1, the
    search covers only the first 2^j rows; for positions below 256, it covers all earlier rows.
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

    T_j is the distance to the j-th nearest of 500 random rows. The estimate is 1 / mean log(T_10/T_j) over
    j = 1 … 9. Equal rows count once. With fewer than 20 different rows, the estimate is 0.
    """
    some = np.random.default_rng(0).choice(len(rows), min(500, len(rows)), replace=False)
    points = np.unique(np.asarray(rows[np.sort(some)], np.float64), axis=0)
    if len(points) < 20:
        return 0.0
    near = _tree(points).query(points, 11)[0][:, 1:]
    logs = np.log(near[:, -1:] / near[:, :-1])
    return float(1 / np.mean(logs)) if np.any(logs > 0) else 0.0


class _AllDistances:
    """Exact search over all distances, with the interface of a tree."""

    def __init__(self, rows: Float[np.ndarray, "N D"]):
        from sklearn.neighbors import NearestNeighbors  # slow to load

        self.centre = np.median(rows, axis=0)  # centring reduces rounding errors
        self.search: Any = NearestNeighbors(algorithm="brute", n_jobs=-1).fit(rows - self.centre)

    def query(self, points: Float[np.ndarray, "P D"], k: int, **_: Any) -> tuple[np.ndarray, np.ndarray]:
        return self.search.kneighbors(points - self.centre, k)


def _tree(rows: np.ndarray) -> Any:
    from scipy.spatial import KDTree  # slow to load

    # Sliding midpoints are faster than medians, also with many repeated rows.
    return KDTree(rows, leafsize=LEAF_ROWS, balanced_tree=False)


def _first(near: Int32[np.ndarray, "P w"], out: np.ndarray, k: int) -> Int32[np.ndarray, "P _"]:
    """Return the first k entries of each row of `near` with False in `out`, padded with −1."""
    order = np.argsort(out, axis=1, kind="stable")[:, :k]
    first = np.take_along_axis(near, order, axis=1)
    return np.where(np.take_along_axis(out, order, axis=1), np.int32(NONE), first)


@eqx.filter_jit
def _places_of(kernel: Any, X: Array) -> tuple[Array, ...]:
    return kernel.places(X)


def _correlations(kernel: Any, Z: Array, X: Array) -> Float[Array, "P C"]:
    """Return |k(z, x)|/√(k(z, z) k(x, x)) for all pairs."""
    centre, tiny = X[0], jnp.finfo(X.dtype).tiny
    across = kernel.between(kernel.prepare(Z, centre), kernel.prepare(X, centre))
    return jnp.abs(across) / jnp.sqrt(jnp.maximum(kernel.diag(Z)[:, None] * kernel.diag(X)[None, :], tiny))


@eqx.filter_jit
def _most_correlated(kernel: Any, Z: Any, X: Any, k: int) -> Int[Array, "P k"]:
    """Return the k rows with the highest correlation for each point."""
    return jax.lax.top_k(_correlations(kernel, jnp.asarray(Z), jnp.asarray(X)), k)[1]


@eqx.filter_jit
def _of_candidates(kernel: Any, Z: Any, near: Any) -> Float[Array, "P C"]:
    """Return correlations of the points [P, D] with their candidates [P, C, D]."""
    return jax.vmap(lambda z, X: _correlations(kernel, z[None], X)[0])(Z, near)
