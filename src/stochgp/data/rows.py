"""Rows in memory: as they were given, or as a model sees them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Integer, Real
from numpy.typing import DTypeLike

from .standardise import Standardiser

MERGED_ROWS = 10_000
MOST_EQUAL = 0.9  # of pairs of rows of equal inputs, whose targets are equal too


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs and targets of N rows, their weights (None = 1 each), and a number for each row's group (None = every row is a group of its own).

    A row of weight ρ stands for ρ rows of its inputs and target.
    """

    X: Real[np.ndarray, "N D"]
    y: Real[np.ndarray, " N"]
    weight: Real[np.ndarray, " N"] | None = None
    group: Integer[np.ndarray, " N"] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def weights(self) -> Real[np.ndarray, " N"]:
        """ρ of every row."""
        return np.ones(len(self)) if self.weight is None else self.weight

    def some(self, which: Any) -> "Rows":
        """The rows of these numbers, or where a mask says so."""
        weight, group = (None if part is None else part[which] for part in (self.weight, self.group))
        return Rows(self.X[which], self.y[which], weight, group)

    def counted(self) -> "Rows":
        """Those of positive weight."""
        if self.weight is None or (self.weight > 0).all():
            return self
        return self.some(self.weight > 0)

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """All rows of all parts, in order: every part has weights and groups, or none has."""
        columns = zip(*((part.X, part.y, part.weight, part.group) for part in parts), strict=True)
        found: Any = [None if column[0] is None else np.concatenate(column) for column in columns]
        return cls(*found)

    def merged(self) -> "Rows":
        """Up to 10,000 rows in lexicographic order, equal ones of a group as one with the sum of their weights; more as they are."""
        rows = self._merged() if len(self) <= MERGED_ROWS else self
        if rows.weight is not None and (rows.weight == 1).all():
            return Rows(rows.X, rows.y, None, rows.group)
        return rows

    def apart(self) -> "Rows":
        """Up to 10,000 rows of weight 1 in place of those that count as several, where these are equal by chance; else the rows as they are.

        So they are where of two rows of equal inputs and group one in ten has another target, as of few levels: each is an observation of its own, that may be held
        out without the others. Copies, of the same row again and again, are not.
        """
        rho = self.weights
        if self.weight is None or rho.sum() > MERGED_ROWS or np.any(rho != np.floor(rho)) or np.all(rho == 1):
            return self
        columns = self.X if self.group is None else np.column_stack([self.X, self.group])
        place = np.unique(columns, axis=0, return_inverse=True)[1].ravel()
        pairs = lambda n: float(n @ (n - 1))
        if pairs(rho) > MOST_EQUAL * pairs(np.bincount(place, rho)):
            return self
        apart = self.some(np.repeat(np.arange(len(self)), rho.astype(np.int64)))
        return Rows(apart.X, apart.y, None, apart.group)

    def _merged(self) -> "Rows":
        D = self.X.shape[1]
        columns = [self.X, self.y] if self.group is None else [self.X, self.y, self.group]
        rows = np.column_stack(columns).astype(np.float64) + 0.0  # -0.0 becomes 0.0
        unique, which = np.unique(rows, axis=0, return_inverse=True)
        total = np.bincount(which.ravel(), weights=self.weight, minlength=len(unique)).astype(np.float64)
        group = None if self.group is None else unique[:, -1].astype(np.int32)
        return Rows(np.ascontiguousarray(unique[:, :D]), unique[:, D].copy(), total, group)

    def standardised(self, inputs: Standardiser, targets: Standardiser, dtype: DTypeLike) -> "Rows":
        """In the units of a model. Raises ValueError, with row and column, for what is not finite in `dtype`."""
        X, y = inputs.transform(self.X, dtype), targets.transform(self.y, dtype)
        return Rows(X, y, self.weight, self.group)
