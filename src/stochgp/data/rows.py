"""Rows in memory: as they were given, or as a model sees them."""

import functools
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import jax
import numpy as np
from jaxtyping import Integer, Real
from numpy.typing import DTypeLike

from stochgp.numerics.clustered import equal_rows
from stochgp.warning import warn

from .standardise import Standardiser

MERGED_ROWS = 10_000
MOST_EQUAL = 0.9  # of pairs of rows of equal inputs, whose targets are equal too
NEAR, FEWEST_NEAR = 1e-8, 0.01  # of the range of the middle 80 % of a column; of the rows


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["X", "y", "weight", "group"], meta_fields=[]
)
@dataclass(frozen=True, eq=False)
class Data:
    """Rows: inputs X [N, D], targets y [N], frequency weights [N] (None = 1 each) and the number of each row's group [N] (None = a group each).

    Leading axes may be added, for a stack of K batches. A row of weight 0 marks padding.
    """

    X: Any
    y: Any
    weight: Any = None
    group: Any = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def weights(self) -> Real[Any, " N"]:
        """ρ of every row."""
        return np.ones(len(self)) if self.weight is None else self.weight

    def take(self, rows: Any) -> "Data":
        """The rows of these numbers, of a slice or of a mask."""
        return jax.tree.map(itemgetter(rows), self)

    def wide(self) -> "Data":
        """The rows on the host in float64."""
        X, y = np.asarray(self.X, np.float64), np.asarray(self.y, np.float64)
        return Data(X, y, np.asarray(self.weights, np.float64), self.group)

    def counted(self) -> "Data":
        """The rows of positive weight."""
        return self if self.weight is None or (self.weight > 0).all() else self.take(self.weight > 0)

    def merged(self, is_packed: bool = False) -> "Data":
        """Equal rows of a group as one with the sum of their weights: up to 10,000 in lexicographic order; more where they are copies (`apart`), in theirs.

        Inputs that are not packed bits are also compared up to rounding (`without_near_copies`).
        """
        few, D = len(self) <= MERGED_ROWS, self.X.shape[1]
        rows = self
        if few:  # -0.0 becomes 0.0
            rows = replace(self, X=self.X.astype(np.float64) + 0.0, y=self.y.astype(np.float64) + 0.0)
        columns = rows.columns
        first, count = equal_rows(columns[::-1]), lambda of: pairs(np.bincount(of))
        equal = first
        if few or count(first) > MOST_EQUAL * count(equal_rows(columns[:D] + columns[D + 1 :])):
            kept = np.unique(first)
            kept = kept[np.lexsort(np.stack(columns[::-1])[:, kept])] if few else kept
            rows = replace(rows.take(kept), weight=np.bincount(first, self.weights, len(self))[kept])
            equal = np.arange(len(rows))
        rows = rows if is_packed else rows.without_near_copies(equal)
        return replace(rows, weight=None) if (rows.weights == 1).all() else rows

    def without_near_copies(self, equal: Integer[np.ndarray, " N"]) -> "Data":
        """One of all rows that are equal when `rounded`, with a warning; all, where fewer than 1 % would go.

        `equal` has the number of the first row that equals each row as it stands (`equal_rows`).
        """
        near = equal_rows(self.columns[::-1], rounded)
        kept = near == equal  # also those that equal by chance the first of near ones
        if kept.mean() > 1 - FEWEST_NEAR:
            return self
        warn(
            f"{(~kept).sum()} of {len(self)} rows equal others up to rounding: they are taken for copies, and left out",
            UserWarning,
            stacklevel=6,
        )
        return self.take(kept)

    @property
    def columns(self) -> list[np.ndarray]:
        """Inputs, targets, groups."""
        return [*self.X.T, self.y, *([] if self.group is None else [self.group])]

    def apart(self) -> "Data":
        """Up to 10,000 rows of weight 1 in place of those that count as several, where these are equal by chance; else the rows as they are.

        So they are where of two rows of equal inputs and group one in ten has another target, as of few levels: each is an observation of its own, that may be held
        out without the others. Copies, of the same row again and again, are not.
        """
        rho = self.weights
        if self.weight is None or rho.sum() > MERGED_ROWS or np.any(rho != np.floor(rho)) or np.all(rho == 1):
            return self
        place = equal_rows([*self.X.T, *([] if self.group is None else [self.group])])
        if pairs(rho) > MOST_EQUAL * pairs(np.bincount(place, rho)):
            return self
        return replace(self.take(np.repeat(np.arange(len(self)), rho.astype(np.int64))), weight=None)

    def standardised(self, inputs: Standardiser, targets: Standardiser, dtype: DTypeLike) -> "Data":
        """In the units of a model. Raises ValueError, with row and column, for what is not finite in `dtype`."""
        X, y = inputs.transform(self.X, dtype), targets.transform(self.y, dtype)
        return replace(self, X=X, y=y)


def pairs(n: Real[np.ndarray, " G"]) -> float:
    """Of rows of the same group, whose sizes are n, each in both orders."""
    return float(n @ (n - 1))


def rounded(values: Real[np.ndarray, " N"]) -> Real[np.ndarray, " N"]:
    """Values with one in place of all that differ by rounding: of x and float32(x), where these alone are near, and of those within 10⁻⁸ of the spread."""
    x, where = np.unique(np.asarray(values, np.float64), return_inverse=True)
    with np.errstate(over="ignore"):
        single = x.astype(np.float32).astype(np.float64)
    _, code, count = np.unique(single, return_inverse=True, return_counts=True)
    x = np.where((count[code] <= 2) & np.isin(single, x), single, x)
    low, high = np.quantile(x[where], (0.1, 0.9))
    limit = NEAR * (high - low)
    part = np.cumsum(np.diff(x, prepend=x[:1]) > limit)
    least, most = x[np.searchsorted(part, part)], x[np.searchsorted(part, part, "right") - 1]
    return np.where(most - least > 4 * limit, x, least)[where]  # a long chain is no rounding
