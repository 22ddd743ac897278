"""Gradient boosting of symmetric trees, for any loss with two derivatives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array

from stochgp.numerics.trees import Trees, joined

MAX_INPUTS = 64  # maximum number of random inputs per tree

Slopes = Callable[[Float[np.ndarray, " N"]], tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]]
Loss = Callable[[Float[np.ndarray, " V"]], float]
Split = tuple[int, int]  # an input and the last bin below the threshold
Bins = Int[np.ndarray, "N D"]
Mask = Bool[np.ndarray, " N"]
Histograms = Callable[[Mask, np.ndarray, int], Float[np.ndarray, "2 L S"]]


@dataclass(frozen=True)
class Boosting:
    """Gradient boosting with symmetric trees (Friedman 2001; Prokhorenkova et al. 2018).

    Let g and h be the first and second derivatives of the loss per row. With sums Σ over its rows, a leaf has
    the value −rate Σ g/(Σ h + ridge). A split maximises (Σ g)²/(Σ h + ridge), added over leaves. Each tree
    uses a random share of the rows, `share`. Boosting stops if `patience` successive trees do not lower
    `loss`.
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
        """Fit trees to X; their number minimises `loss` on the rows `others`; None if it is 0.

        `slopes` returns g and h of the rows X, times the weights of rows. Quantiles of inputs use `weight`.
        Boosting continues while `goes_on()` is true.
        """
        generator, edges = np.random.default_rng(seed), edges_of(X, self.n_bins, weight, self.fewest)
        bins, other_bins = binned(X, edges), binned(others, edges)
        values, other_values = np.zeros(len(X)), np.zeros(len(others))
        trees: list[tuple[list[int], list[float], np.ndarray]] = []  # inputs, thresholds, leaves
        best, n_best = loss(other_values), 0
        sizes = np.array([len(edge) + 1 for edge in edges])
        many, two = np.flatnonzero(sizes > 2), np.flatnonzero(sizes == 2)
        inputs, n_many, dense = np.concatenate([many, two]), len(many), np.ascontiguousarray(bins[:, many])
        sparse: Any = csr_array(bins[:, two])  # inputs with one threshold, such as indicators of categories
        while len(inputs) and len(trees) < min(self.n_trees, n_best + self.patience) and goes_on():
            some = np.sort(generator.permutation(len(inputs))[:MAX_INPUTS])
            rows = np.sort(generator.permutation(len(X))[: max(1, round(self.share * len(X)))])
            g, h = (part[rows] for part in slopes(values))
            drawn = dense[rows][:, some[some < n_many]], sparse[rows][:, some[some >= n_many] - n_many]
            found = _histograms(inputs[some], sizes[inputs[some]], *drawn, g, h)
            splits, leaves = self._grow(bins, rows, *found, g, h)
            thresholds = [edges[j][cut] if cut < len(edges[j]) else np.inf for j, cut in splits]
            trees.append(([j for j, _ in splits], thresholds, leaves))
            values += leaves[_leaf(bins, splits)]
            other_values += leaves[_leaf(other_bins, splits)]
            now = loss(other_values)
            if now < best:
                best, n_best = now, len(trees)
        if n_best == 0:
            return None
        splits_of, thresholds_of, leaves_of = zip(*trees[:n_best], strict=True)
        return joined([Trees(np.array(splits_of, np.int32), np.array(thresholds_of), np.array(leaves_of))])

    def _grow(
        self, bins: Bins, rows: np.ndarray, inputs: np.ndarray, cuts: np.ndarray, order: np.ndarray,
        histograms: Histograms, g: np.ndarray, h: np.ndarray,
    ) -> tuple[list[Split], Float[np.ndarray, " L"]]:  # fmt: skip
        """Return the splits of one tree of these rows, one per level, and the values of its leaves."""
        n, T = len(g), len(order)
        worth = lambda G, H: (np.square(G) / (H + self.ridge)).sum(axis=0)
        leaf, splits = np.zeros(n, np.int64), []
        sums = histograms(np.ones(n, bool), leaf, 1)
        for level in range(self.depth):
            totals = np.stack([np.bincount(leaf, w, 1 << level)[:, None] for w in (g, h)])
            side = sums.copy()
            np.cumsum(sums[..., :T], axis=2, out=side[..., :T])
            side[..., :T] -= totals * order
            k = int(np.argmax(worth(*side) + worth(*(totals - side))))
            splits.append((int(inputs[k]), int(cuts[k])))
            is_above = bins[rows, inputs[k]] > cuts[k]
            if level < self.depth - 1:
                is_few = 2 * np.count_nonzero(is_above) <= n
                part = histograms(is_above == is_few, leaf, 1 << level)
                both = [sums - part, part] if is_few else [part, sums - part]
                sums = np.stack(both, axis=2).reshape(2, 2 << level, -1)
            leaf = 2 * leaf + is_above
        G, H = (np.bincount(leaf, w, 1 << self.depth) for w in (g, h))
        return splits, -self.rate * G / (H + self.ridge)


def _histograms(
    inputs: np.ndarray, sizes: np.ndarray, many: Bins, two: Any, g: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Histograms]:
    """Return inputs, cuts and order of S splits, and a function for Σ g and Σ h [2, L, S]."""
    M, B = many.shape[1], two.shape[1]
    order = np.repeat(np.arange(M), sizes[:M])
    start = np.cumsum(sizes[:M]) - sizes[:M]
    slots, input_of_pair = many + start, two.indices.astype(np.int64)
    row_of_pair = np.repeat(np.arange(len(g)), np.diff(two.indptr))
    T, is_equal = len(order), bool((h == h[0]).all())

    def histograms(chosen: Mask, leaf: np.ndarray, L: int) -> Float[np.ndarray, "2 L S"]:
        rows, there = np.flatnonzero(chosen), np.flatnonzero(chosen[row_of_pair])
        above, found = row_of_pair[there], np.empty((2, L, T + B))
        place = (slots[rows] + T * leaf[rows, None]).ravel()
        place_of_two = input_of_pair[there] + B * leaf[above]
        for k, w in enumerate((g, None if is_equal else h)):
            dense, sparse = (None, None) if w is None else (np.repeat(w[rows], M), w[above])
            found[k, :, :T] = np.bincount(place, dense, L * T).reshape(L, T)
            found[k, :, T:] = np.bincount(place_of_two, sparse, L * B).reshape(L, B)
        if is_equal:
            found[1] *= h[0]
        return found

    cuts = np.concatenate([np.arange(T) - start[order], np.zeros(B, np.int64)])
    return np.concatenate([inputs[:M][order], inputs[M:]]), cuts, order, histograms


def _leaf(bins: Bins, splits: list[Split]) -> Int[np.ndarray, " N"]:
    """Return the leaf of each row."""
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
    """Return thresholds of each input: midpoints between two successive values.

    An input with more than n_bins distinct values has its thresholds at the quantiles 1/n_bins, 2/n_bins, and
    so on. If `fewest` is set, the first and last bins are halved while outer halves have ≥ `fewest` rows.
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
    """Return the bin of each value: the number of thresholds that are below the value."""
    columns = [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, X.T, strict=True)]
    return np.stack(columns).astype(np.int16).T
