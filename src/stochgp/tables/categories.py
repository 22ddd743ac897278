"""Statistics of the targets in each category, for columns of many categories."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

from stochgp.numerics.clustered import folds

FOLDS = 5
MOST_CLASSES = 8  # classes whose frequencies are inputs
FEWEST_FOR_SPREAD = 5.0  # minimum average number of rows per category to use the spread
WEIGHTS = 0.5, 1_000.0  # smallest and largest weight of the prior, in rows
_TINY = float(np.finfo(np.float64).tiny)


class CategoryTargets(NamedTuple):
    """Targets [N, C] whose statistics encode categories. All rows of a group are in one fold."""

    values: Float64[np.ndarray, "N C"]
    names: tuple[str, ...]
    weight: Float64[np.ndarray, " N"]
    seed: int
    group: Any = None

    @classmethod
    def of(
        cls, y: np.ndarray, seed: int, group: Any = None, target: str = "real", classes: bool = False, weight: Any = None
    ) -> "CategoryTargets":  # fmt: skip
        """Return targets with weights: numbers, logarithms, or a 0/1 column for each class."""
        rho = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
        if classes:
            found, code = np.unique(y, return_inverse=True)
            most = np.argsort(-np.bincount(code, rho), kind="stable")[:MOST_CLASSES]
            chosen = found[1:] if len(found) == 2 else np.sort(found[most])
            values = np.stack([y == label for label in chosen], axis=1).astype(np.float64)
            return cls(values, tuple(f"share of {label:g}" for label in chosen), rho, seed, group)
        values = np.log(np.maximum(y, _TINY)) if target == "positive" else y
        values = np.log(np.maximum(y, 0) + 0.5) if target == "count" else values
        return cls(np.asarray(values, np.float64)[:, None], ("mean",), rho, seed, group)

    @property
    def fold(self) -> Int64[np.ndarray, " N"]:
        """The fold of each row, one of five, in whole groups."""
        return folds(len(self.values), self.group, FOLDS, self.seed)


def codes_of(texts: Any, categories: Sequence[str]) -> Int64[np.ndarray, " N"]:
    """Return the index of each text's category; len(categories) for other texts."""
    found = pc.call_function("index_in", [texts], pc.SetLookupOptions(pa.array(categories, texts.type)))
    return np.asarray(pc.fill_null(found, len(categories)).to_numpy(), np.int64)


def statistics_of(
    texts: Any, categories: tuple[str, ...], targets: CategoryTargets
) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    """Return names and values of statistics, for each category and, last, for new texts."""
    codes = codes_of(texts, categories)
    is_enough = targets.weight[codes < len(categories)].sum() >= FEWEST_FOR_SPREAD * len(categories)
    spread = ("log spread",) if targets.names == ("mean",) and is_enough else ()
    rows = _table(codes, targets, np.ones(len(codes), bool), len(categories), bool(spread))
    return (*targets.names, "log count", *spread), tuple(map(tuple, rows.tolist()))


def at_ranks(table: tuple[tuple[float, ...], ...], n: int) -> Float64[np.ndarray, "n S"]:
    """Return the statistics of n categories at equally spaced ranks of the first statistic."""
    rows = np.array(table[:-1], np.float64)
    return rows[np.argsort(rows[:, 0], kind="stable")[(2 * np.arange(n) + 1) * len(rows) // (2 * n)]]


def out_of_fold(
    texts: Any, categories: Sequence[str], names: Sequence[str], targets: CategoryTargets
) -> Float64[np.ndarray, "N S"]:
    """Return the statistics of each row from rows of other folds; no row uses its own target."""
    codes, fold, found = codes_of(texts, categories), targets.fold, np.empty((len(texts), len(names)))
    for number in np.unique(fold):
        here = fold == number
        table = _table(codes, targets, ~here, len(categories), "log spread" in names)
        found[here] = table[codes[here]]
    return found


def _table(
    codes: np.ndarray, targets: CategoryTargets, rows: np.ndarray, L: int, with_spread: bool
) -> Float64[np.ndarray, "K S"]:
    """Return the statistics of L categories and, in the last row, of new texts.

    Category l with n_l rows has the shrunk mean (Σ_l y + k m)/(n_l + k), log(1 + n_l) and perhaps log σ_l. m
    is the mean of all rows. k = σ²/τ² is the ratio of variances within and between categories, limited to
    values from 0.5 to 1,000. σ_l² is (Σ_l (y − ȳ_l)² + k σ²)/(n_l + k).
    """
    y, rho, scale, center = targets.values[rows], targets.weight[rows], 1.0, np.zeros(targets.values.shape[1])
    if rho.any():
        scale, center = targets.weight.sum() / rho.sum(), np.average(y, axis=0, weights=rho)
    known = codes[rows] < L
    codes, y, rho = codes[rows][known], y[known], rho[known]
    n = np.bincount(codes, rho, minlength=L)
    means, variances = [], np.ones(L + 1)
    for c in range(y.shape[1]):
        sums = np.bincount(codes, rho * (y[:, c] - center[c]), minlength=L)
        mean = sums / np.where(n > 0, n, 1)
        squares = np.bincount(codes, rho * (y[:, c] - center[c] - mean[codes]) ** 2, minlength=L)
        k, within = _prior_rows(n, mean, squares)
        means.append(np.append(center[c] + sums / (n + k), center[c]))
        variances = np.append((squares + k * within) / (n + k), within)
    columns = [*means, np.append(np.log1p(scale * n), 0.0)]
    columns += [0.5 * np.log(np.maximum(variances, _TINY))] if with_spread else []
    return np.stack(columns, axis=1)


def _prior_rows(n: np.ndarray, means: np.ndarray, squares: np.ndarray) -> tuple[float, float]:
    """Return k = σ²/τ² and σ² from an analysis of variance."""
    N, there = float(n.sum()), int((n > 0).sum())
    if there < 2:
        return WEIGHTS[1], float(squares.sum() / (N or 1.0))
    overall = float(n @ means) / N
    between = float(n @ (means - overall) ** 2) / (there - 1)
    within = float(squares.sum()) / (N - there) if there < N else between
    size = (N - float(n @ n) / N) / (there - 1)
    tau = (between - within) / size if size > 0 else 0.0
    return float(np.clip(within / tau, *WEIGHTS)) if tau > 0 else WEIGHTS[1], within
