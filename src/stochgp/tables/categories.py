"""Columns of many categories as statistics of the targets within each category; of training rows out of fold: no row sees its own target."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

from stochgp.numerics.clustered import folds

FOLDS = 5
MOST_CLASSES = 8  # whose frequencies within a category are inputs
FEWEST_FOR_SPREAD = 5.0  # rows of a category, on average, from which their standard deviation is an input
WEIGHTS = 0.5, 1_000.0  # the least and the largest number of rows that the prior of a category counts as
_TINY = float(np.finfo(np.float64).tiny)


class CategoryTargets(NamedTuple):
    """Targets [N, C] for statistics within categories, and the weights of rows. Rows of a `group` share a fold."""

    values: Float64[np.ndarray, "N C"]
    names: tuple[str, ...]
    weight: Float64[np.ndarray, " N"]
    seed: int
    group: Any = None

    @classmethod
    def of(
        cls, y: np.ndarray, seed: int, group: Any = None, target: str = "real", classes: bool = False, weight: Any = None
    ) -> "CategoryTargets":  # fmt: skip
        """Return real targets unchanged, logarithms of positive targets and counts, and 0 or 1 for each class. `weight` has frequency weights."""
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
        """The fold of each row, one of five; groups stay whole."""
        return folds(len(self.values), self.group, FOLDS, self.seed)


def codes_of(texts: Any, categories: Sequence[str]) -> Int64[np.ndarray, " N"]:
    """Return the index of each text's category; len(categories) for other texts."""
    found = pc.call_function("index_in", [texts], pc.SetLookupOptions(pa.array(categories, texts.type)))
    return np.asarray(pc.fill_null(found, len(categories)).to_numpy(), np.int64)


def statistics_of(
    texts: Any, categories: tuple[str, ...], targets: CategoryTargets
) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    """Return names and values of the statistics of each category and, last, of unknown texts, from all rows."""
    codes = codes_of(texts, categories)
    is_enough = targets.weight[codes < len(categories)].sum() >= FEWEST_FOR_SPREAD * len(categories)
    spread = ("log spread",) if targets.names == ("mean",) and is_enough else ()
    rows = _table(codes, targets, np.ones(len(codes), bool), len(categories), bool(spread))
    return (*targets.names, "log count", *spread), tuple(map(tuple, rows.tolist()))


def at_ranks(table: tuple[tuple[float, ...], ...], n: int) -> Float64[np.ndarray, "n S"]:
    """Return the statistics of n categories, at equally spaced ranks of the first statistic."""
    rows = np.array(table[:-1], np.float64)
    return rows[np.argsort(rows[:, 0], kind="stable")[(2 * np.arange(n) + 1) * len(rows) // (2 * n)]]


def out_of_fold(
    texts: Any, categories: Sequence[str], names: Sequence[str], targets: CategoryTargets
) -> Float64[np.ndarray, "N S"]:
    """Return the statistics of each row from the rows of the other folds, with counts scaled up to all rows."""
    codes, fold, found = codes_of(texts, categories), targets.fold, np.empty((len(texts), len(names)))
    for number in np.unique(fold):
        here = fold == number
        table = _table(codes, targets, ~here, len(categories), "log spread" in names)
        found[here] = table[codes[here]]
    return found


def _table(
    codes: np.ndarray, targets: CategoryTargets, rows: np.ndarray, L: int, with_spread: bool
) -> Float64[np.ndarray, "K S"]:
    """Return the statistics by these rows of L categories and of none, K = L + 1: shrunk mean targets, log(1 + n), and perhaps log σ.

    n_l is Σ_l ρ, and all sums are weighted. mean_l = (Σ_l y + k m)/(n_l + k), m the mean of all rows and k = σ²/τ², the variances within and between
    categories (analysis of variance), within 0.5 to 1,000; σ_l² = (Σ_l (y − ȳ_l)² + k σ²)/(n_l + k). Without a category n = 0: m and σ.
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
    """Return k = σ²/τ² and σ²; between categories τ² = (Σ n (ȳ_l − ȳ)²/(L − 1) − σ²)/n₀, n₀ = (N − Σ n²/N)/(L − 1)."""
    N, there = float(n.sum()), int((n > 0).sum())
    if there < 2:
        return WEIGHTS[1], float(squares.sum() / (N or 1.0))
    overall = float(n @ means) / N
    between = float(n @ (means - overall) ** 2) / (there - 1)
    within = float(squares.sum()) / (N - there) if there < N else between
    size = (N - float(n @ n) / N) / (there - 1)
    tau = (between - within) / size if size > 0 else 0.0
    return float(np.clip(within / tau, *WEIGHTS)) if tau > 0 else WEIGHTS[1], within
