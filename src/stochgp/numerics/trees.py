"""Sums of symmetric trees: piecewise constant functions of rows, fitted by boosting."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from stochgp.numerics.arrays import on_device

MOST_INPUTS = 64  # that one tree looks at

Slopes = Callable[[Float[np.ndarray, " N"]], tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]]
Loss = Callable[[Float[np.ndarray, " V"]], float]
Split = tuple[int, int]  # an input, and the bin up to which a row is below


class Trees(eqx.Module):
    """g(x) = Σ_t leaves[t, b_t(x)]: b_t(x) has the binary digits [x[inputs[t, k]] > thresholds[t, k]], k = 1 … d, the first one highest.

    All splits of one level of a tree are the same, so that a tree is d questions and a table of 2^d numbers.
    """

    inputs: Int32[Any, "T d"]
    thresholds: Float[Any, "T d"]
    leaves: Float[Any, "T L"]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """One tree after the other: the memory is that of N rows of d numbers."""
        place = 2 ** jnp.arange(self.inputs.shape[1] - 1, -1, -1, dtype=jnp.int32)

        def add(total: Array, tree: tuple[Array, Array, Array]) -> tuple[Array, None]:
            inputs, thresholds, leaves = tree
            leaf = jnp.sum((X[:, inputs] > thresholds.astype(X.dtype)) * place, axis=1)
            return total + leaves.astype(X.dtype)[leaf], None

        zeros = jnp.zeros(X.shape[0], X.dtype)
        return jax.lax.scan(add, zeros, (self.inputs, self.thresholds, self.leaves))[0]

    def plus(self, constant: float) -> "Trees":
        """g(x) + constant."""
        leaves = np.array(self.leaves)
        leaves[0] += constant
        with jax.enable_x64(True):
            return Trees(self.inputs, self.thresholds, on_device(leaves, leaves.dtype))

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """The same in NumPy, where nothing is compiled for the number of rows or trees."""
        inputs, thresholds, leaves = (
            np.asarray(part) for part in (self.inputs, self.thresholds, self.leaves)
        )
        total, columns = np.zeros(len(X)), np.ascontiguousarray(X.T)
        for j, cut, values in zip(inputs, thresholds, leaves, strict=True):
            leaf = np.zeros(len(X), np.int64)
            for k in range(len(j)):
                leaf = 2 * leaf + (columns[j[k]] > cut[k])
            total += values[leaf]
        return total


class Boosting(NamedTuple):
    """Newton's steps in the space of functions, a symmetric tree at a time (Friedman 2001; trees as in Prokhorenkova et al. 2018).

    With g_i, h_i the slope and the curvature of row i's loss in its value, a split into parts P is worth Σ_P (Σ_P g)²/(Σ_P h + ridge), and a
    leaf's step is −rate Σ g/(Σ h + ridge). Splits lie between quantiles of an input (`edges_of`). A tree sees a random `share` of the rows.
    Trees are added until the loss of other rows has not fallen for `patience` of them; those after its lowest point are dropped.
    """

    n_trees: int = 200
    depth: int = 5
    rate: float = 0.15
    ridge: float = 3.0
    n_bins: int = 32
    fewest: float | None = None
    share: float = 0.5
    patience: int = 15

    def fit(
        self,
        X: Float[np.ndarray, "N D"],
        slopes: Slopes,
        others: Float[np.ndarray, "V D"],
        loss: Loss,
        seed: int,
        weight: Float[np.ndarray, " N"] | None = None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> Trees | None:
        """Trees fitted to rows X by `slopes(values)`, as many as make the `loss(values)` of the other rows smallest; None for none.

        A row of weight ρ counts as ρ equal ones in the quantiles; `slopes` are ρ times those of one. `goes_on` is asked before each tree.
        """
        generator, edges = np.random.default_rng(seed), edges_of(X, self.n_bins, weight, self.fewest)
        bins, other_bins = binned(X, edges), binned(others, edges)
        values, other_values = np.zeros(len(X)), np.zeros(len(others))
        trees: list[Trees] = []
        best, n_best = loss(other_values), 0
        while len(trees) < min(self.n_trees, n_best + self.patience) and goes_on():
            g, h = slopes(values)
            splits, leaves = self._grow(bins, edges, g, h, generator)
            trees.append(_tree(splits, leaves, edges))
            values += leaves[_leaf(bins, splits)]
            other_values += leaves[_leaf(other_bins, splits)]
            now = loss(other_values)
            if now < best:
                best, n_best = now, len(trees)
        return joined(trees[:n_best]) if n_best else None

    def _grow(
        self,
        bins: Int[np.ndarray, "N D"],
        edges: list[Float[np.ndarray, " _"]],
        g: np.ndarray,
        h: np.ndarray,
        generator: np.random.Generator,
    ) -> tuple[list[Split], Float[np.ndarray, " L"]]:
        """The splits of one tree, level by level those of highest worth, and the values of its leaves."""
        N, D = bins.shape
        rows = generator.permutation(N)[: max(1, round(self.share * N))]
        columns = np.sort(generator.permutation(D)[:MOST_INPUTS])
        part = _Part.of([bins[rows, j] for j in columns], [len(edges[j]) + 1 for j in columns])
        g, h = g[rows], h[rows]
        leaf, splits = np.zeros(len(rows), np.int64), []
        for level in range(self.depth):
            worth = self._worth(part, leaf, 1 << level, g, h)
            best = int(np.argmax([each.max() for each in worth]))
            cut = int(np.argmax(worth[best]))
            splits.append((int(columns[best]), cut))
            leaf = 2 * leaf + (part.columns[best] > cut)
        size = 1 << self.depth
        total_g, total_h = np.bincount(leaf, g, size), np.bincount(leaf, h, size)
        return splits, -self.rate * total_g / (total_h + self.ridge)

    def _worth(
        self, part: "_Part", leaf: np.ndarray, n_leaves: int, g: np.ndarray, h: np.ndarray
    ) -> list[Float[np.ndarray, " b"]]:
        """Of every split of every input, from sums of g and h below and above it: Σ over the leaves and both sides."""
        totals = [np.bincount(leaf, w, n_leaves)[:, None] for w in (g, h)]
        found: list[Any] = [None] * len(part.columns)
        for j in part.of_many:
            place = leaf * part.sizes[j] + part.columns[j]
            below = [
                np.bincount(place, w, n_leaves * part.sizes[j]).reshape(n_leaves, -1).cumsum(axis=1)
                for w in (g, h)
            ]
            found[j] = self._both_sides(below, totals)
        if len(part.of_two):
            place = leaf[part.above] * len(part.of_two) + part.column
            above = [
                np.bincount(place, w[part.above], n_leaves * len(part.of_two)).reshape(n_leaves, -1)
                for w in (g, h)
            ]
            for j, worth in zip(part.of_two, self._both_sides(above, totals), strict=True):
                found[j] = np.array([worth])
        return found

    def _both_sides(self, side: list[np.ndarray], totals: list[np.ndarray]) -> Float[np.ndarray, " b"]:
        """Σ (Σg)²/(Σh + ridge) over the leaves and the sides of splits, of one of which the sums of g and h are given."""
        (G, H), (rest_g, rest_h) = side, (total - one for total, one in zip(totals, side, strict=True))
        return (G**2 / (H + self.ridge) + rest_g**2 / (rest_h + self.ridge)).sum(axis=0)


class _Part(NamedTuple):
    """The binned rows that one tree sees. Of inputs of two values only the rows above the cut are looked at: levels of one column are mostly 0."""

    columns: list[Int[np.ndarray, " n"]]
    sizes: list[int]  # bins of each
    of_many: list[int]  # inputs of more than two values
    of_two: list[int]
    above: Int[np.ndarray, " e"]  # rows, of each input of two values in turn
    column: Int[np.ndarray, " e"]  # and its number among these

    @classmethod
    def of(cls, columns: list[Int[np.ndarray, " n"]], sizes: list[int]) -> "_Part":
        of_two = [j for j, size in enumerate(sizes) if size <= 2]
        of_many = [j for j, size in enumerate(sizes) if size > 2]
        above = [np.flatnonzero(columns[j]) for j in of_two]
        column = np.repeat(np.arange(len(of_two)), [len(rows) for rows in above])
        every = np.concatenate(above) if above else np.zeros(0, np.int64)
        return cls(columns, sizes, of_many, of_two, every, column)


def _tree(
    splits: list[Split], leaves: Float[np.ndarray, " L"], edges: list[Float[np.ndarray, " _"]]
) -> Trees:
    """In the memory of the host. A cut above the last threshold is at +∞."""
    thresholds = [edges[j][cut] if cut < len(edges[j]) else np.inf for j, cut in splits]
    inputs = np.array([[j for j, _ in splits]], np.int32)
    return Trees(inputs, np.array([thresholds], np.float64), leaves[None])


def _leaf(bins: Int[np.ndarray, "N D"], splits: list[Split]) -> Int[np.ndarray, " N"]:
    """The leaf of each row."""
    found = np.zeros(len(bins), np.int64)
    for j, cut in splits:
        found = 2 * found + (bins[:, j] > cut)
    return found


def edges_of(
    X: Float[np.ndarray, "N D"],
    n_bins: int,
    weight: Float[np.ndarray, " N"] | None = None,
    fewest: float | None = None,
) -> list[Float[np.ndarray, " _"]]:
    """At most n_bins − 1 thresholds of each input, besides those of its ends: midpoints between a value and the next larger one.

    The values are all of the input where it has at most n_bins, else its quantiles at 1/n_bins, 2/n_bins, … With `fewest` the first and the last bin
    are halved, and what lies at the end again, as long as that has so many rows: few rows far out may be most of the spread, as the longest
    delays of flights are. A row of weight ρ counts as ρ equal ones.
    """
    found = []
    weight = np.ones(len(X)) if weight is None else weight
    most = 1.0 if fewest is None else max(weight.sum() / (n_bins * fewest), 1.0)
    ends = 0.5 ** np.arange(1, int(np.log2(most)) + 1) / n_bins
    for column in np.asarray(X, np.float64).T:
        values = np.unique(column)
        at = np.arange(len(values) - 1)
        if len(values) > n_bins:
            order = np.argsort(column, kind="stable")
            below = np.cumsum(weight[order])
            levels = np.linspace(0, below[-1], n_bins + 1)[1:-1]
            levels = np.concatenate([ends[::-1] * below[-1], levels, (1 - ends) * below[-1]])
            ranks = np.searchsorted(below, levels, side="right")
            at = np.unique(np.searchsorted(values, column[order[np.minimum(ranks, len(column) - 1)]]))
            at = at[at < len(values) - 1]
        found.append(values[at] + (values[at + 1] - values[at]) / 2)
    return found


def binned(X: Float[np.ndarray, "N D"], edges: list[Float[np.ndarray, " _"]]) -> Int[np.ndarray, "N D"]:
    """b_ij, how many thresholds of input j lie below x_ij: b_ij > c exactly where x_ij is above threshold c. Column by column in memory."""
    columns = [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, X.T, strict=True)]
    return np.stack(columns).astype(np.int16).T


def joined(trees: Sequence[Trees], factor: float = 1.0) -> Trees:
    """Their sum times a factor, on the device."""
    every = [(tree.inputs, tree.thresholds, tree.leaves) for tree in trees]
    inputs, thresholds, leaves = (np.concatenate(part) for part in zip(*every, strict=True))
    with jax.enable_x64(True):
        return Trees(
            on_device(inputs, np.int32),
            on_device(thresholds, np.float64),
            on_device(factor * leaves, np.float64),
        )
