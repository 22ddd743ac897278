"""Symmetric trees fitted by boosting to the derivatives of a loss."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.trees import Trees, joined

MOST_INPUTS = 64  # of one tree

Slopes = Callable[[Float[np.ndarray, " N"]], tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]]
Loss = Callable[[Float[np.ndarray, " V"]], float]
Split = tuple[int, int]  # an input, and the last bin of the lower side
Bins = Int[np.ndarray, "N D"]


class Boosting(NamedTuple):
    """Newton's steps in function space by symmetric trees (Friedman 2001; trees as in Prokhorenkova et al. 2018).

    With g_i, h_i the slope and the curvature of row i's loss, a split into parts P has the worth Σ_P (Σ_P g)²/(Σ_P h + ridge), and a leaf's step is
    −rate Σ g/(Σ h + ridge). Splits lie between quantiles of an input (`edges_of`). A tree uses a random `share` of the rows. Trees are added until the loss
    of other rows has not fallen for `patience` of them; those after its minimum are dropped.
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
        """Trees fitted to rows X by `slopes(values)`, as many as minimise the `loss(values)` of the other rows; None for none.

        `weight` has frequency weights ρ for the quantiles; `slopes` include them. Trees are added while `goes_on()`.
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
        self, bins: Bins, edges: list[Float[np.ndarray, " _"]], g: np.ndarray, h: np.ndarray, generator: np.random.Generator
    ) -> tuple[list[Split], Float[np.ndarray, " L"]]:  # fmt: skip
        """The splits of one tree, level by level those of highest worth, and the values of its leaves."""
        N, D = bins.shape
        rows = generator.permutation(N)[: max(1, round(self.share * N))]
        inputs = np.sort(generator.permutation(D)[:MOST_INPUTS])
        columns = [bins[rows, j] for j in inputs]
        # sums of inputs with two values need the rows above the cut only: categories are mostly 0
        entries = [
            (slice(None), column, len(edges[j]) + 1) if len(edges[j]) > 1 else (np.flatnonzero(column), 0, 1)
            for j, column in zip(inputs, columns, strict=True)
        ]
        g, h = g[rows], h[rows]
        leaf, splits = np.zeros(len(rows), np.int64), []
        for level in range(self.depth):
            worth = self._worth(entries, leaf, 1 << level, g, h)
            best = int(np.argmax([each.max() for each in worth]))
            cut = int(np.argmax(worth[best]))
            splits.append((int(inputs[best]), cut))
            leaf = 2 * leaf + (columns[best] > cut)
        size = 1 << self.depth
        total_g, total_h = np.bincount(leaf, g, size), np.bincount(leaf, h, size)
        return splits, -self.rate * total_g / (total_h + self.ridge)

    def _worth(
        self, entries: list[tuple], leaf: np.ndarray, n_leaves: int, g: np.ndarray, h: np.ndarray
    ) -> list[Float[np.ndarray, " b"]]:
        """Σ (Σg)²/(Σh + ridge) over the leaves and both sides, for every split of every input."""
        totals, worth = [np.bincount(leaf, w, n_leaves)[:, None] for w in (g, h)], []
        for rows, column, size in entries:
            place = leaf[rows] * size + column
            sums = [np.bincount(place, w[rows], n_leaves * size).reshape(n_leaves, -1) for w in (g, h)]
            G, H = (one.cumsum(axis=1) for one in sums)
            other_g, other_h = totals[0] - G, totals[1] - H
            worth.append((G**2 / (H + self.ridge) + other_g**2 / (other_h + self.ridge)).sum(axis=0))
        return worth


def _tree(
    splits: list[Split], leaves: Float[np.ndarray, " L"], edges: list[Float[np.ndarray, " _"]]
) -> Trees:
    """One tree as arrays of NumPy. A cut above the last threshold is at +∞."""
    thresholds = [edges[j][cut] if cut < len(edges[j]) else np.inf for j, cut in splits]
    inputs = np.array([[j for j, _ in splits]], np.int32)
    return Trees(inputs, np.array([thresholds], np.float64), leaves[None])


def _leaf(bins: Bins, splits: list[Split]) -> Int[np.ndarray, " N"]:
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

    The values are all of the input if it has at most n_bins, else its quantiles at 1/n_bins, 2/n_bins, … With `fewest` the first and the last bin are halved
    repeatedly, as long as the outer half has so many rows: they may hold most of the variance. `weight` has frequency weights.
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


def binned(X: Float[np.ndarray, "N D"], edges: list[Float[np.ndarray, " _"]]) -> Bins:
    """b_ij, the number of thresholds of input j below x_ij, so b_ij > c if and only if x_ij is above threshold c. Column by column in memory."""
    columns = [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, X.T, strict=True)]
    return np.stack(columns).astype(np.int16).T
