"""Weighted means and medians, standard errors for clustered rows, and random divisions."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped

from stochgp.numerics.arrays import effective_number

CELLS = 64  # clusters of near rows


def paired(
    difference: Float[np.ndarray, " R"],
    cell: Int[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"] | None = None,
) -> tuple[float, float]:
    """Return the weighted mean d̄ of differences, and its standard error for clustered rows.

    d̄ = Σ_i a_i d_i with shares a_i = ρ_i/Σρ has the error √(G/(G − 1) Σ_g (Σ_(i∈g) a_i (d_i − d̄))²), which is inf for one cluster. The sums of the G
    clusters count as independent (Liang and Zeger 1986). Without `weight` ρ = 1; ρ equal rows in one cluster are one row of weight ρ.
    """
    weight = np.ones(len(difference)) if weight is None else weight
    mean = float(np.average(difference, weights=weight))
    sums = np.bincount(cell, weight * (difference - mean))
    G = len(np.unique(cell))
    if G < 2:
        return mean, float("inf")
    return mean, float(np.sqrt(G / (G - 1) * np.sum(sums**2)) / weight.sum())


def cells(X: Float[np.ndarray, "R D"], n_cells: int) -> Int[np.ndarray, " R"]:
    """Return clusters of near rows, a power of 2: each is halved at a median of an input."""
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
    """Return cluster numbers of the rows: their groups, or 64 clusters of near rows."""
    return cells(X, CELLS) if group is None else np.unique(group, return_inverse=True)[1]


def divisible(group: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
    """Return numbers of parts to hold out: groups, but single rows of a group with a majority."""
    _, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    alone = len(sizes) + np.arange(len(group))
    return np.unique(np.where(2 * sizes[number] > len(group), alone, number), return_inverse=True)[1]


def folds(
    n_rows: int, group: Int[np.ndarray, " R"] | None, n_folds: int, seed: int | np.random.Generator = 0
) -> Int[np.ndarray, " R"]:
    """Return random folds with equal numbers of rows, or of whole `divisible` groups."""
    number = np.arange(n_rows) if group is None else divisible(group)
    n = int(number.max()) + 1
    return np.random.default_rng(seed).permutation(np.arange(n) % min(n_folds, n))[number]


def train_test_indices(
    n: int, fraction: float, seed: int, group: Shaped[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Divide rows 0 … n−1 at random into training and test rows, each in ascending order.

    The same n, fraction and seed always give the same division (NumPy's PCG64 generator).

    Raises ValueError unless 0 < fraction < 1 and at least one row falls on each side.

    Parameters
    ----------
    n : int
        Number of rows.
    fraction : float
        Share of the test rows; their number is rounded. With `group`, share of the groups.
    seed : int
        Seed of the division.
    group : array [n], optional
        Label of each row; rows with the same label fall on the same side.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the test fraction must lie between 0 and 1, not {fraction!r}")
    names, member = np.unique(np.arange(n) if group is None else group, return_inverse=True)
    n_test = round(len(names) * fraction)
    if not 1 <= n_test <= len(names) - 1:
        raise ValueError(
            f"a test fraction of {fraction} leaves {len(names) - n_test} training rows and {n_test} test rows "
            f"of {len(names)}; each side needs at least one"
        )
    of_test = np.isin(member, np.random.default_rng(seed).permutation(len(names))[:n_test])
    return np.flatnonzero(~of_test), np.flatnonzero(of_test)


def equal_rows(
    columns: Sequence[np.ndarray], places: Callable[[np.ndarray], np.ndarray] = lambda values: values
) -> Int[np.ndarray, " N"]:
    """Return, for each row of the columns [N], the index of the first row with equal `places`."""
    first = np.arange(len(columns[0]))
    rows, key = first, np.zeros(len(first), np.int64)
    for column in columns:
        value = np.unique(places(column[rows]), return_inverse=True)[1]
        _, key, count = np.unique(key * len(rows) + value, return_inverse=True, return_counts=True)
        rows, key = rows[count[key] > 1], key[count[key] > 1]  # the others equal no other row
        if len(rows) == 0:
            return first
    start, key = np.unique(key, return_index=True, return_inverse=True)[1:]
    first[rows] = rows[start[key]]
    return first


def reaching(sizes: Int[np.ndarray, " G"], n_rows: float) -> int:
    """Return the number of first groups that have at least `n_rows` rows together."""
    return int(np.searchsorted(np.cumsum(sizes), n_rows)) + 1


def median(values: Float[np.ndarray, " R"], weight: Float[np.ndarray, " R"] | None = None) -> float:
    """Return the weighted median, the middle of the two values at which Σρ/2 is reached."""
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
    """Return (1 + n Σρz²/Σρ)/(1 + n), the factor of all variances that makes n standardised errors and one more of 1 of size 1 on average.

    n is `effective_number`, P for equal weights: errors of rows of one `group` have much in common, and a single row says little, whatever it weighs.
    """
    number = np.arange(len(squares)) if group is None else np.unique(group, return_inverse=True)[1]
    n = effective_number(np.bincount(number, weight))
    total = float(np.sum(weight / weight.mean() * squares)) * (n / len(squares))
    return (1 + total) / (1 + n)
