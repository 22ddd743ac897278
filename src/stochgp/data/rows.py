"""Rows in memory and their standardisation."""

import functools
import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Real
from numpy.typing import DTypeLike

from stochgp.exceptions import DataWarning
from stochgp.numerics.clustered import equal_rows
from stochgp.tables.columns import LARGEST
from stochgp.tables.targets import read_weights
from stochgp.warning import warn

_CHUNK_ELEMENTS = 1 << 20  # values per chunk, 8 MB in float64
MERGED_ROWS = 10_000
MOST_EQUAL = 0.9  # maximum share of pairs with equal targets, among pairs of rows with equal inputs
NEAR, FEWEST_NEAR = 1e-8, 0.01  # relative tolerance of equal values; minimum share of equal rows to remove


@dataclass(frozen=True, eq=False)
class Standardiser:
    """Standardisation of columns: z = (x − mean) / scale.

    Parameters
    ----------
    mean : float64 array [D], or [] for targets
        The mean of each column.
    scale : float64 array [D], or [] for targets
        The standard deviation with divisor N, or 1 for a constant column. A column is constant if its
        standard deviation is at most 10 ε times the largest absolute value, where ε is the machine epsilon.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, X: Real[np.ndarray, " N *D"], weight: np.ndarray | None = None) -> "Standardiser":
        """Compute mean and scale of X [N, D] or [N] in float64, with frequency weights.

        Raises ValueError if there are no rows, a weight is invalid, or a value is not finite or above 1e150.
        """
        X = np.asarray(X)
        if X.ndim not in (1, 2) or X.shape[0] == 0:
            raise ValueError(f"values must have the shape [N, D] or [N] with N > 0, not {X.shape}")
        weight = read_weights(weight, X)
        weight = None if weight is None else weight / weight.max()  # so that sums stay in range
        rows, found = X.reshape(X.shape[0], -1), NO_ROWS
        for part in _chunks(X.shape):
            found = found.plus(rows[part], None if weight is None else weight[part])
        scales = found.standardiser(np.float32 if X.dtype in (np.float16, np.float32) else np.float64)
        return cls(scales.mean.reshape(X.shape[1:]), scales.scale.reshape(X.shape[1:]))

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> "Standardiser":
        """Return mean 0 and scale 1 of shape (D,) for inputs, or of shape () for targets."""
        return cls(np.zeros(shape, np.float64), np.ones(shape, np.float64))

    def transform(
        self, X: Real[np.ndarray, " N *D"], dtype: DTypeLike = np.float64, start: int = 0
    ) -> Float[np.ndarray, " N *D"]:
        """Return (X − mean) / scale, computed in float64 and stored as `dtype`.

        Raises ValueError for values that are not finite. `start` is added to the row number in the message.
        """
        X = np.asarray(X)
        if X.ndim != 1 + self.mean.ndim or X.shape[1:] != self.mean.shape:
            wanted = f"[N, {self.mean.size}]" if self.mean.ndim else "[N]"
            raise ValueError(f"values must have the shape {wanted}, not {X.shape}")
        Z = np.empty(X.shape, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in _chunks(X.shape):
                Z[rows] = (X[rows].astype(np.float64) - self.mean) / self.scale
        if (bad := first_not_finite(Z)) is not None:
            refuse_not_finite(X, start)
            raise ValueError(
                f"{X[bad]!s} at {_place(bad, start)} is too large for {Z.dtype} after standardising"
            )
        return Z

    def inverse(self, Z: Real[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return Z · scale + mean in float64; Z has the shape [N, D], or any shape for targets."""
        return np.asarray(Z, np.float64) * self.scale + self.mean


class Summary(NamedTuple):
    """The sum of weights, and the minimum, maximum, mean and Σ (x − mean)² of each column."""

    count: float
    low: Any
    high: Any
    mean: Any
    squares: Any

    def plus(self, X: Float[np.ndarray, "N D"], weight: Float[np.ndarray, " N"] | None = None) -> "Summary":
        """Return the summary after adding rows (Chan, Golub and LeVeque 1983)."""
        X, rho = np.asarray(X, np.float64), np.ones(len(X)) if weight is None else weight
        if not (rho > 0).all():
            X, rho = X[rho > 0], rho[rho > 0]
        bad = ~(np.abs(X) <= LARGEST).all(axis=0)  # also True for NaN
        if bad.any():
            column = int(np.argmax(bad)) + 1
            raise ValueError(f"column {column} has values that are not finite or exceed {LARGEST:g}")
        if len(X) == 0:
            return self
        n = float(np.sum(rho))
        mean, total = X[0] + rho @ (X - X[0]) / n, self.count + n
        delta = mean - self.mean
        squares = self.squares + rho @ (X - mean) ** 2 + delta**2 * (self.count * n / total)
        low, high = np.minimum(self.low, X.min(axis=0)), np.maximum(self.high, X.max(axis=0))
        return Summary(total, low, high, self.mean + delta * (n / total), squares)

    def standardiser(self, dtype: type[np.floating] = np.float64) -> Standardiser:
        """Return mean and scale; the scale is 1 if values of a column differ only by rounding."""
        mean = np.where(self.low == self.high, self.low, self.mean)
        deviation = np.sqrt(self.squares / self.count)
        rounding = 10 * np.finfo(dtype).eps * np.maximum(np.abs(self.low), np.abs(self.high))
        return Standardiser(mean, np.where(deviation <= rounding, 1.0, deviation))


NO_ROWS = Summary(0.0, np.inf, -np.inf, 0.0, 0.0)


def first_not_finite(X: Float[np.ndarray, "..."]) -> tuple[int, ...] | None:
    """Return the indices of the first infinite value or NaN; None if all values are finite."""
    bad = ~np.isfinite(X)
    return tuple(int(index) for index in np.argwhere(bad)[0]) if bad.any() else None


def refuse_not_finite(X: Float[np.ndarray, " N *D"], start: int = 0) -> None:
    """Raise ValueError for infinite values or NaN; its message adds `start` to the row number."""
    if (bad := first_not_finite(X)) is not None:
        what = "NaN" if np.isnan(X[bad]) else "infinity (inf)"
        raise ValueError(f"Input X contains {what} at {_place(bad, start)} (rows and columns count from 1)")


def _place(index: tuple[int, ...], start: int) -> str:
    row, *column = index
    return f"row {start + row + 1}" + "".join(f", column {j + 1}, x{j}" for j in column)


def _chunks(shape: tuple[int, ...]) -> list[slice]:
    step = max(1, _CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    starts = range(0, shape[0], step)
    return list(map(slice, starts, range(step, step + shape[0], step)))


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["X", "y", "weight", "group"], meta_fields=[]
)
@dataclass(frozen=True, eq=False)
class Data:
    """Rows: inputs X [N, D], targets y [N], frequency weights [N] and group numbers [N].

    Without weights, all weights are 1. Without groups, each row is a group. Rows with weight 0 are padding.
    """

    X: Any
    y: Any
    weight: Any = None
    group: Any = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def weights(self) -> Real[Any, " N"]:
        """The frequency weight of every row."""
        return np.ones(len(self)) if self.weight is None else self.weight

    def take(self, rows: Any) -> "Data":
        """Return some rows; `rows` is an array of indices, a slice or a mask."""
        return jax.tree.map(itemgetter(rows), self)

    def wide(self) -> "Data":
        """Return the rows on the host in float64."""
        X, y = np.asarray(self.X, np.float64), np.asarray(self.y, np.float64)
        return Data(X, y, np.asarray(self.weights, np.float64), self.group)

    def counted(self) -> "Data":
        """Return the rows with positive weight."""
        return self if self.weight is None or (self.weight > 0).all() else self.take(self.weight > 0)

    def merged(self, is_packed: bool = False) -> "Data":
        """Replace equal rows of a group by one row with the sum of their weights.

        At most 10,000 rows are also sorted. If there are more, equal rows are merged only if they are copies
        (`apart`). Rows that equal earlier rows after rounding are removed, if they are at least 1 % of all.
        """
        few, D, rows = len(self) <= MERGED_ROWS, self.X.shape[1], self
        if few:  # replaces −0.0 by 0.0
            rows = replace(self, X=self.X.astype(np.float64) + 0.0, y=self.y.astype(np.float64) + 0.0)
        columns = rows.columns
        first, count = equal_rows(columns[::-1]), lambda of: pairs(np.bincount(of))
        equal = first
        if few or count(first) > MOST_EQUAL * count(equal_rows(columns[:D] + columns[D + 1 :])):
            kept = np.unique(first)
            kept = kept[np.lexsort(np.stack(columns[::-1])[:, kept])] if few else kept
            rows = replace(rows.take(kept), weight=np.bincount(first, self.weights, len(self))[kept])
            equal = np.arange(len(rows))
        # Rows that equal an earlier, different row after rounding are removed.
        kept = equal == equal if is_packed else equal_rows(rows.columns[::-1], rounded) == equal
        if kept.mean() <= 1 - FEWEST_NEAR:
            said = f"{(~kept).sum()} of {len(rows)} rows equal other rows except for rounding errors"
            warn(f"{said}; the fit ignores these duplicates", DataWarning, stacklevel=5)
            rows = rows.take(kept)
        return replace(rows, weight=None) if (rows.weights == 1).all() else rows

    @property
    def groups(self) -> np.ndarray | None:
        """The groups, or None if all rows are in one group, which cannot be held out."""
        return None if self.group is None or len(np.unique(self.group)) < 2 else self.group

    @property
    def columns(self) -> list[np.ndarray]:
        """The columns of inputs, targets and groups."""
        return [*self.X.T, self.y, *([] if self.group is None else [self.group])]

    def apart(self) -> "Data":
        """Replace each row of weight ρ by ρ rows, so that each of them can be held out alone.

        Nothing changes if there would be more than 10,000 rows, or if equal rows are copies. Rows are copies
        if, among the pairs of rows with equal inputs and group, more than 90 % have equal targets.
        """
        rho = self.weights
        if self.weight is None or rho.sum() > MERGED_ROWS or np.any(rho != np.floor(rho)) or np.all(rho == 1):
            return self
        place = equal_rows([*self.X.T, *([] if self.group is None else [self.group])])
        if pairs(rho) > MOST_EQUAL * pairs(np.bincount(place, rho)):
            return self
        return replace(self.take(np.repeat(np.arange(len(self)), rho.astype(np.int64))), weight=None)


def pairs(n: Real[np.ndarray, " G"]) -> float:
    """Return the number of ordered pairs of rows within groups of sizes n."""
    return float(n @ (n - 1))


def rounded(values: Real[np.ndarray, " N"]) -> Real[np.ndarray, " N"]:
    """Replace values that differ only by rounding errors by a common value."""
    x, where = np.unique(np.asarray(values, np.float64), return_inverse=True)
    with np.errstate(over="ignore"):
        single = x.astype(np.float32).astype(np.float64)
    _, code, count = np.unique(single, return_inverse=True, return_counts=True)
    x = np.where((count[code] <= 2) & np.isin(single, x), single, x)
    low, high = np.quantile(x[where], (0.1, 0.9))
    limit = NEAR * (high - low)
    part = np.cumsum(np.diff(x, prepend=x[:1]) > limit)
    least, most = x[np.searchsorted(part, part)], x[np.searchsorted(part, part, "right") - 1]
    return np.where(most - least > 4 * limit, x, least)[where]  # a wide chain of values is not rounding
