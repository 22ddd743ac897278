"""Sums of symmetric trees: piecewise constant functions of rows, fitted by boosting."""

from collections.abc import Callable
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
        total = np.zeros(len(X))
        for j, cut, values in zip(inputs, thresholds, leaves, strict=True):
            leaf = np.zeros(len(X), np.int64)
            for k in range(len(j)):
                leaf = 2 * leaf + (X[:, j[k]] > cut[k])
            total += values[leaf]
        return total


class Boosting(NamedTuple):
    """Newton's steps in the space of functions, a symmetric tree at a time (Friedman 2001; trees as in Prokhorenkova et al. 2018).

    With g_i, h_i the slope and the curvature of row i's loss in its value, a split into parts P is worth Σ_P (Σ_P g)²/(Σ_P h + ridge), and a
    leaf's step is −rate Σ g/(Σ h + ridge). Splits lie between quantiles of an input. A tree sees a random `share` of the rows.
    Trees are added until the loss of other rows has not fallen for `patience` of them; those after its lowest point are dropped.
    """

    n_trees: int = 200
    depth: int = 5
    rate: float = 0.15
    ridge: float = 3.0
    n_bins: int = 32
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
    ) -> Trees | None:
        """Trees fitted to rows X by `slopes(values)`, as many as make the `loss(values)` of the other rows smallest; None for none.

        A row of weight ρ counts as ρ equal ones in the quantiles; `slopes` are ρ times those of one.
        """
        generator, edges = np.random.default_rng(seed), edges_of(X, self.n_bins, weight)
        bins = binned(X, edges)
        values, other_values = np.zeros(len(X)), np.zeros(len(others))
        trees: list[Trees] = []
        best, n_best = loss(other_values), 0
        while len(trees) < min(self.n_trees, n_best + self.patience):
            g, h = slopes(values)
            tree = self._grow(bins, edges, g, h, generator)
            trees.append(tree)
            values += tree.on_host(X)
            other_values += tree.on_host(others)
            now = loss(other_values)
            if now < best:
                best, n_best = now, len(trees)
        return _joined(trees[:n_best]) if n_best else None

    def _grow(
        self,
        bins: Int[np.ndarray, "N D"],
        edges: list[Float[np.ndarray, " _"]],
        g: np.ndarray,
        h: np.ndarray,
        generator: np.random.Generator,
    ) -> Trees:
        """One tree, in the memory of the host: level by level, the split of highest worth. A cut above the last threshold is at +∞."""
        N, D = bins.shape
        rows = generator.permutation(N)[: max(1, round(self.share * N))]
        columns = np.sort(generator.permutation(D)[:MOST_INPUTS])
        part, g, h = np.asfortranarray(bins[np.ix_(rows, columns)]), g[rows], h[rows]
        leaf, inputs, thresholds = np.zeros(len(rows), np.int64), [], []
        for level in range(self.depth):
            worth = self._worth(part, leaf, 1 << level, g, h)
            column, cut = np.unravel_index(np.argmax(worth), worth.shape)
            edge = edges[columns[column]]
            inputs.append(columns[column])
            thresholds.append(edge[cut] if cut < len(edge) else np.inf)
            leaf = 2 * leaf + (part[:, column] > cut)
        size = 1 << self.depth
        total_g, total_h = np.bincount(leaf, g, size), np.bincount(leaf, h, size)
        leaves = -self.rate * total_g / (total_h + self.ridge)
        return Trees(np.array([inputs], np.int32), np.array([thresholds], np.float64), leaves[None])

    def _worth(
        self, bins: np.ndarray, leaf: np.ndarray, n_leaves: int, g: np.ndarray, h: np.ndarray
    ) -> Float[np.ndarray, "D b"]:
        """Of every split of every input, from histograms: Σ over the leaves and both sides."""
        size, found = n_leaves * self.n_bins, []
        for column in bins.T:
            place = leaf * self.n_bins + column
            G, H = (np.bincount(place, w, size).reshape(n_leaves, -1).cumsum(axis=1) for w in (g, h))
            rest_g, rest_h = G[:, -1:] - G, H[:, -1:] - H
            worth = G**2 / (H + self.ridge) + rest_g**2 / (rest_h + self.ridge)
            found.append(worth.sum(axis=0))
        return np.stack(found)


def edges_of(
    X: Float[np.ndarray, "N D"], n_bins: int, weight: Float[np.ndarray, " N"] | None = None
) -> list[Float[np.ndarray, " _"]]:
    """At most n_bins − 1 thresholds of each input: midpoints between a value and the next larger one.

    The values are all of the input where it has at most n_bins, else its quantiles at 1/n_bins, 2/n_bins, … A row of weight ρ counts as ρ equal ones.
    """
    found = []
    weight = np.ones(len(X)) if weight is None else weight
    for column in np.asarray(X, np.float64).T:
        values = np.unique(column)
        at = np.arange(len(values) - 1)
        if len(values) > n_bins:
            order = np.argsort(column, kind="stable")
            below = np.cumsum(weight[order])
            ranks = np.searchsorted(below, np.linspace(0, below[-1], n_bins + 1)[1:-1], side="right")
            at = np.unique(np.searchsorted(values, column[order[np.minimum(ranks, len(column) - 1)]]))
            at = at[at < len(values) - 1]
        found.append(values[at] + (values[at + 1] - values[at]) / 2)
    return found


def binned(X: Float[np.ndarray, "N D"], edges: list[Float[np.ndarray, " _"]]) -> Int[np.ndarray, "N D"]:
    """b_ij, how many thresholds of input j lie below x_ij: b_ij > c exactly where x_ij is above threshold c."""
    columns = [np.searchsorted(edge, column, side="left") for edge, column in zip(edges, X.T, strict=True)]
    return np.asfortranarray(np.stack(columns, axis=1))


def _joined(trees: list[Trees]) -> Trees:
    """One sum, on the device."""
    every = [(tree.inputs, tree.thresholds, tree.leaves) for tree in trees]
    inputs, thresholds, leaves = (np.concatenate(part) for part in zip(*every, strict=True))
    with jax.enable_x64(True):
        return Trees(
            on_device(inputs, np.int32), on_device(thresholds, np.float64), on_device(leaves, np.float64)
        )
