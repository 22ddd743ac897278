"""Rows that a kernel correlates most with a point: the neighbours of conditional likelihoods and of local prediction."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from stochgp.data.neighbours import Neighbours, search_bytes, slack_of
from stochgp.kernels.compared import ComparedRows, compared_bytes
from stochgp.numerics.arrays import filled_up, on_device
from stochgp.parameters import cast, value_of

CANDIDATES = 4  # times the rows wanted, from each term of a kernel with several
PLACED_TOGETHER = 1 << 15  # rows
COMPARED_TOGETHER = 1 << 19  # pairs of a point and a candidate
WIDEST = (
    1 << 10
)  # rows that are looked at for enough others; then the rows of all other groups get trees of their own
FIRST_LEVEL = 8  # log₂ of the rows that are searched for the earliest
NONE = -1  # in place of a neighbour where there are too few


class NearestRows:
    """The rows of X of highest |k(x, z)| / √(k(x, x) k(z, z)), by searches of the kernel's `places` (Kang and Katzfuss 2023).

    Exact for a kernel with one set of places, and up to 100,000 rows (beyond: `slack_of`), where no slack is given. A linear kernel finds its rows by the correlation
    itself, not by its absolute value. With several
    sets, such as a sum's, the rows are the best among the nearest 4k of each. A kernel without places, a constant, finds rows by the inputs;
    one that places do not serve, Tanimoto, by comparing all pairs.
    All in float64, on the host.
    """

    def __init__(self, kernel: Any, X: Float[np.ndarray, "N D"], slack: float | None = None):
        """`slack` as of `Neighbours`; None = by the number of rows."""
        with jax.enable_x64(True):
            self.kernel = cast(value_of(kernel), jnp.float64)
        self.X = X if self.kernel.has_places else np.ascontiguousarray(X, np.float64)
        self.slack = slack_of(len(X)) if slack is None else slack
        self.searches: tuple[Neighbours | ComparedRows, ...] = (
            tuple(Neighbours(points, self.slack) for points in self._places(self.X))
            if self.kernel.has_places
            else (ComparedRows(self.kernel, self.X),)
        )

    @property
    def size(self) -> int:
        return len(self.X)

    def query(self, Z: Float[np.ndarray, "P D"], k: int) -> Int32[np.ndarray, "P k"]:
        """Numbers of k rows for each point, 1 ≤ k ≤ N, the most correlated first."""
        Z = np.ascontiguousarray(Z, np.float64)
        places = self._places(Z) if self.kernel.has_places else [Z]
        if len(self.searches) == 1:
            return self.searches[0].query(places[0], k)
        wide = min(CANDIDATES * k, self.size)
        pairs = zip(self.searches, places, strict=True)
        candidates = np.concatenate([search.query(points, wide) for search, points in pairs], axis=1)
        return self._best(Z, candidates, k)

    def others(
        self, rows: Int[np.ndarray, " P"], k: int, group: Int[np.ndarray, " N"] | None = None
    ) -> Int32[np.ndarray, "P k"]:
        """Numbers of k other rows for each of these `rows`, of other groups where groups are given. −1 where there are too few."""
        found = np.full((len(rows), k), NONE, np.int32)
        todo, wide = np.arange(len(rows)), min(k + 1, self.size)
        while True:
            size = max(1, COMPARED_TOGETHER // wide)
            for part in (todo[start : start + size] for start in range(0, len(todo), size)):
                near = self._others_among(rows[part], k, group, wide)
                found[part, : near.shape[1]] = near
            todo = todo[(found[todo] == NONE).any(axis=1)]
            if wide == self.size or not len(todo):
                return found
            if wide >= WIDEST and group is not None:
                found[todo] = self._of_other_groups(rows[todo], k, group)
                return found
            wide = min(2 * wide, self.size)

    def _others_among(
        self, rows: Int[np.ndarray, " P"], k: int, group: Int[np.ndarray, " N"] | None, wide: int
    ) -> Int32[np.ndarray, "P _"]:
        """`others`, at most k, among the nearest `wide` rows of each."""
        near = self.query(self.X[rows], wide)
        own = near == rows[:, None] if group is None else group[near] == group[rows][:, None]
        order = np.argsort(own, axis=1, kind="stable")[:, :k]  # others first, in their order
        near, own = (np.take_along_axis(values, order, axis=1) for values in (near, own))
        return np.where(own, np.int32(NONE), near)

    def _of_other_groups(
        self, rows: Int[np.ndarray, " P"], k: int, group: Int[np.ndarray, " N"]
    ) -> Int32[np.ndarray, "P k"]:
        """`others` by trees of all rows of other groups, for each group of these rows: where groups are large there are few."""
        found = np.full((len(rows), k), NONE, np.int32)
        for own in np.unique(group[rows]):
            here, others = np.flatnonzero(group[rows] == own), np.flatnonzero(group != own)
            if len(others):
                search = NearestRows(self.kernel, self.X[others], self.slack)
                near = search.query(self.X[rows[here]], min(k, len(others)))
                found[here, : near.shape[1]] = others[near]
        return found

    def _places(self, X: Float[np.ndarray, "P D"]) -> list[Float[np.ndarray, "P _"]]:
        """Of rows in any floating dtype: written where they stay, part by part, so that they are held once."""
        found: list[np.ndarray] = []
        with jax.enable_x64(True):
            for start in range(0, len(X), PLACED_TOGETHER):
                part = np.asarray(X[start : start + PLACED_TOGETHER], np.float64)
                full = min(
                    PLACED_TOGETHER, 1 << (len(part) - 1).bit_length()
                )  # sets of nearby sizes share a program
                places = _places(self.kernel, on_device(filled_up(part, full)))
                found = found or [np.empty((len(X), p.shape[1])) for p in places]
                for whole, own in zip(found, places, strict=True):
                    whole[start : start + len(part)] = np.asarray(own)[: len(part)]
        return found if found else [np.ascontiguousarray(X, np.float64)]

    def _best(
        self, Z: Float[np.ndarray, "P D"], candidates: Int32[np.ndarray, "P C"], k: int
    ) -> Int32[np.ndarray, "P k"]:
        """The k candidates of highest correlation, repeated ones counted once."""
        candidates = np.sort(candidates, axis=1)
        repeated = np.zeros(candidates.shape, bool)
        repeated[:, 1:] = candidates[:, 1:] == candidates[:, :-1]
        found = []
        with jax.enable_x64(True):
            size = max(1, COMPARED_TOGETHER // candidates.shape[1])
            for start in range(0, len(Z), size):
                part = slice(start, start + size)
                near = np.asarray(self.X[candidates[part]], np.float64)
                correlation = _correlation(self.kernel, Z[part], near)
                worth = np.where(repeated[part], -1.0, np.asarray(correlation))
                order = np.argsort(-worth, axis=1, kind="stable")[:, :k]
                found.append(np.take_along_axis(candidates[part], order, axis=1))
        return np.concatenate(found)


def nearest_bytes(kernel: Any, n_rows: int, n_inputs: int, n_points: int, k: int) -> int:
    """Memory of `NearestRows` and a query at their peak, beside X: places and trees of all terms, candidates, pairs compared."""
    if not value_of(kernel).has_places:
        return compared_bytes(n_rows, n_inputs, n_points, k)
    like = jax.ShapeDtypeStruct((1, n_inputs), jnp.float32)
    widths = [p.shape[1] for p in jax.eval_shape(value_of(kernel).places, like)] or [n_inputs]
    trees = sum(search_bytes(n_rows, width, n_points, k) for width in widths)
    if len(widths) == 1:
        return trees
    return trees + 20 * n_points * len(widths) * CANDIDATES * k + 3 * 8 * COMPARED_TOGETHER * (n_inputs + 2)


@eqx.filter_jit
def _places(kernel: Any, X: Array) -> tuple[Array, ...]:
    return kernel.places(X)


@eqx.filter_jit
def _correlation(kernel: Any, Z: Any, near: Any) -> Array:
    """|k(z, x)| / √k(x, x) of each point z [P, D] and its candidates x [P, C, D]."""

    def one(z: Array, X: Array) -> Array:
        across = kernel.between(kernel.prepare(X, z), kernel.prepare(z[None], z))[:, 0]
        return jnp.abs(across) / jnp.sqrt(jnp.maximum(kernel.diag(X), jnp.finfo(X.dtype).tiny))

    return jax.vmap(one)(Z, near)


def earlier_rows(
    kernel: Any,
    X: Float[np.ndarray, "N D"],
    order: Int[np.ndarray, " N"],
    positions: Int[np.ndarray, " P"],
    k: int,
) -> Int32[np.ndarray, "P k"]:
    """Numbers of k rows before each of these positions of `order`, the most correlated first. −1 where there are fewer.

    A row at position t from 2^j to 2^(j+1) − 1 finds them among the first 2^j rows: at worst half of the rows before it are not looked at.
    Below 256 all are.
    """
    found = np.full((len(positions), k), NONE, np.int32)
    level = np.maximum(np.int64(np.log2(np.maximum(positions, 1))), FIRST_LEVEL - 1)
    for j in np.unique(level):
        here = np.flatnonzero(level == j)
        first = order[: 1 << max(j, FIRST_LEVEL)]
        near = _earlier_of_level(kernel, X, first, order[positions[here]], positions[here], k)
        found[here, : near.shape[1]] = near
    return found


def _earlier_of_level(
    kernel: Any,
    X: Float[np.ndarray, "N D"],
    first: Int[np.ndarray, " F"],
    rows: Int[np.ndarray, " P"],
    positions: Int[np.ndarray, " P"],
    k: int,
) -> Int32[np.ndarray, "P _"]:
    """For each of these `rows` the nearest of the `first` rows of the order that come before it, at most k; NONE fills up.

    Where some of `first` come after some of `rows`, all of `first` are ranked by distance, and those that come after are put last.
    """
    wide = min(k, len(first)) if positions.min() >= len(first) else len(first)
    near = NearestRows(kernel, X[first]).query(X[rows], wide)
    later = near >= positions[:, None]
    ranks = np.argsort(later, axis=1, kind="stable")[:, :k]
    near, later = (np.take_along_axis(values, ranks, axis=1) for values in (near, later))
    return np.where(later, np.int32(NONE), first[near].astype(np.int32))


def shared(a: Int[np.ndarray, "C k"], b: Int[np.ndarray, "C k"]) -> float:
    """The share of the rows of a that are in b as well, centre by centre; 1 where a has none."""
    both = np.sort(np.concatenate([a, b], axis=1), axis=1)
    same = (both[:, 1:] == both[:, :-1]) & (both[:, 1:] != NONE)
    n_rows = int(np.sum(a != NONE))
    return float(np.sum(same) / n_rows) if n_rows else 1.0
