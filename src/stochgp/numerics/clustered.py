"""Weighted means and medians, standard errors for clustered rows, and random folds."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped

from stochgp.numerics.arrays import effective_number

CELLS = 64  # number of clusters of nearby rows


def paired(
    difference: Float[np.ndarray, " R"],
    cell: Int[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"] | None = None,
) -> tuple[float, float]:
    """Return the weighted mean d̄ of differences d_i, and the standard error of d̄.

    With a_i = weight_i / Σ weight, d̄ is Σ_i a_i d_i. Rows in different clusters g = 1 … G are independent.
    The standard error is √(G/(G − 1) Σ_g (Σ_(i∈g) a_i (d_i − d̄))²) (Liang and Zeger 1986), or inf if G = 1.
    """
    weight = np.ones(len(difference)) if weight is None else weight
    mean = float(np.average(difference, weights=weight))
    sums = np.bincount(cell, weight * (difference - mean))
    G = len(np.unique(cell))
    if G < 2:
        return mean, float("inf")
    return mean, float(np.sqrt(G / (G - 1) * np.sum(sums**2)) / weight.sum())


def cells(X: Float[np.ndarray, "R D"], n_cells: int) -> Int[np.ndarray, " R"]:
    """Divide rows into clusters of nearby rows: split each cluster at the median of an input."""
    cell = np.zeros(len(X), np.int64)
    n = 1
    while 2 * n <= min(n_cells, len(X)):
        for c in range(n):
            rows = np.flatnonzero(cell == c)
            column = int(np.argmax(np.var(X[rows], axis=0)))
            upper = rows[np.argsort(X[rows, column], kind="stable")[len(rows) // 2 :]]
            cell[upper] = c + n
        n *= 2
    return cell


def clusters(X: Float[np.ndarray, "R D"], group: Int[np.ndarray, " R"] | None) -> Int[np.ndarray, " R"]:
    """Return the cluster number of each row: the row's group, or one of 64 nearby clusters."""
    return cells(X, CELLS) if group is None else np.unique(group, return_inverse=True)[1]


def divisible(group: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
    """Return the unit of each row: its group, or the row itself in a group of most rows."""
    _, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    alone = len(sizes) + np.arange(len(group))
    return np.unique(np.where(2 * sizes[number] > len(group), alone, number), return_inverse=True)[1]


def folds(
    n_rows: int, group: Int[np.ndarray, " R"] | None, n_folds: int, seed: int | np.random.Generator = 0
) -> Int[np.ndarray, " R"]:
    """Assign each row to a random fold. Units of rows stay together (see `divisible`)."""
    number = np.arange(n_rows) if group is None else divisible(group)
    n = int(number.max()) + 1
    return np.random.default_rng(seed).permutation(np.arange(n) % min(n_folds, n))[number]


def train_test_indices(
    n: int, fraction: float, seed: int, group: Shaped[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Divide rows 0 … n−1 at random; return sorted indices of training rows and of test rows.

    Equal arguments always give the same division (NumPy's PCG64 generator). Raises ValueError if `fraction`
    is not between 0 and 1, or if there would be no training rows or no test rows.

    Parameters
    ----------
    n : int
        The number of rows.
    fraction : float
        The share of test rows; if `group` is set, the share of test groups.
    seed : int
        The seed of the random division.
    group : array [n], optional
        The label of each row. Rows with the same label are in the same set.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the test fraction must be between 0 and 1, but is {fraction!r}")
    names, member = np.unique(np.arange(n) if group is None else group, return_inverse=True)
    n_test = round(len(names) * fraction)
    if not 1 <= n_test <= len(names) - 1:
        raise ValueError(
            f"a test fraction of {fraction} divides {len(names)} rows or groups into {len(names) - n_test} for training "
            f"and {n_test} for tests; both sets need at least one row or group"
        )
    of_test = np.isin(member, np.random.default_rng(seed).permutation(len(names))[:n_test])
    return np.flatnonzero(~of_test), np.flatnonzero(of_test)


def equal_rows(
    columns: Sequence[np.ndarray], places: Callable[[np.ndarray], np.ndarray] = lambda values: values
) -> Int[np.ndarray, " N"]:
    """Return for each row the index of the first equal row, after `places` maps each column."""
    first = np.arange(len(columns[0]))
    rows, key = first, np.zeros(len(first), np.int64)
    for column in columns:
        value = np.unique(places(column[rows]), return_inverse=True)[1]
        _, key, count = np.unique(key * len(rows) + value, return_inverse=True, return_counts=True)
        rows, key = rows[count[key] > 1], key[count[key] > 1]  # all other rows are unique
        if len(rows) == 0:
            return first
    start, key = np.unique(key, return_index=True, return_inverse=True)[1:]
    first[rows] = rows[start[key]]
    return first


def reaching(sizes: Int[np.ndarray, " G"], n_rows: float) -> int:
    """Return the smallest number of first groups that together have `n_rows` rows."""
    return int(np.searchsorted(np.cumsum(sizes), n_rows)) + 1


def median(values: Float[np.ndarray, " R"], weight: Float[np.ndarray, " R"] | None = None) -> float:
    """Return the weighted median: the mean of the lower and the upper weighted median."""
    weight = np.ones(len(values)) if weight is None else weight
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    last = len(values) - 1
    lower, upper = (min(int(np.searchsorted(below, below[-1] / 2, side)), last) for side in ("left", "right"))
    return float((values[order[lower]] + values[order[upper]]) / 2)


def scale_of(
    squares: Float[np.ndarray, " P"],
    weight: Float[np.ndarray, " P"],
    group: Int[np.ndarray, " P"] | None = None,
) -> float:
    """Return a factor for predictive variances, from squared standardised errors.

    The factor is (1 + n s)/(1 + n) for the weighted mean s of `squares` and n effective rows or groups.
    """
    number = np.arange(len(squares)) if group is None else np.unique(group, return_inverse=True)[1]
    n = effective_number(np.bincount(number, weight))
    total = float(np.sum(weight / weight.mean() * squares)) * (n / len(squares))
    return (1 + total) / (1 + n)
