"""Shift and scale by the training rows, and back; what is to be known of rows for that, in a form that can be merged."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real
from numpy.typing import DTypeLike

from stochgp.tables.columns import LARGEST
from stochgp.tables.targets import read_weights

_CHUNK_ELEMENTS = 1 << 20  # 8 MB of float64 at a time


@dataclass(frozen=True, eq=False)
class Standardiser:
    """z = (x − mean) / scale, column by column; x = z · scale + mean.

    Parameters
    ----------
    mean : float64 array [D], or [] for targets
        Of each column.
    scale : float64 array [D], or [] for targets
        The standard deviation, divisor N. A column that does not vary, or only by rounding (standard deviation at most 10 machine epsilons of its largest
        magnitude), has scale 1; a constant one becomes exactly 0 and comes back exactly.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(
        cls, X: Real[np.ndarray, " N *D"], weight: Real[np.ndarray, " N"] | None = None
    ) -> "Standardiser":
        """Mean and standard deviation of X: [N, D] or [N], read in chunks of rows, in float64.

        Weights count as repetitions: weight 2 equals the row given twice, weight 0 its absence.

        Raises ValueError on no rows, on values that are not finite or beyond 1e150, and on weights that are
        negative, not finite or all zero.
        """
        X = np.asarray(X)
        if X.ndim not in (1, 2) or X.shape[0] == 0:
            raise ValueError(f"expected values of shape [N, D] or [N] with N > 0, got {X.shape}")
        weight = read_weights(weight, X)
        weight = None if weight is None else weight / weight.max()  # so that sums stay in range
        rows, found = X.reshape(X.shape[0], -1), NO_ROWS
        for part in _chunks(X.shape):
            found = found.merged(Summary.of(rows[part], None if weight is None else weight[part]))
        scales = found.standardiser(np.float32 if X.dtype in (np.float16, np.float32) else np.float64)
        return cls(scales.mean.reshape(X.shape[1:]), scales.scale.reshape(X.shape[1:]))

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> "Standardiser":
        """Mean 0 and scale 1: shape (D,) for inputs, () for targets."""
        return cls(np.zeros(shape, np.float64), np.ones(shape, np.float64))

    def transform(
        self, X: Real[np.ndarray, " N *D"], dtype: DTypeLike = np.float64, start: int = 0
    ) -> Float[np.ndarray, " N *D"]:
        """(X − mean) / scale, computed in float64 and stored as `dtype`; X itself is untouched.

        Raises ValueError, with row (counted from `start`) and column, where X or the result is not finite in `dtype`.
        """
        X = np.asarray(X)
        if X.ndim != 1 + self.mean.ndim or X.shape[1:] != self.mean.shape:
            wanted = f"[N, {self.mean.size}]" if self.mean.ndim else "[N]"
            raise ValueError(f"expected values of shape {wanted}, got {X.shape}")
        Z = np.empty(X.shape, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in _chunks(X.shape):
                Z[rows] = (X[rows].astype(np.float64) - self.mean) / self.scale
        if (bad := first_not_finite(Z)) is not None:
            refuse_not_finite(X, start)
            raise ValueError(
                f"{X[bad]!s} at {_place(bad, start)} is too large for {Z.dtype} once standardised"
            )
        return Z

    def inverse(self, Z: Real[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Z · scale + mean in float64; Z: [N, D], or any shape where the mean is a single number."""
        return np.asarray(Z, np.float64) * self.scale + self.mean


class Summary(NamedTuple):
    """Of some rows, column by column: their number (or the sum of their weights), smallest and largest value, mean, and Σ (x − mean)²."""

    count: float
    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]
    mean: Float[np.ndarray, " D"]
    squares: Float[np.ndarray, " D"]

    @classmethod
    def of(cls, X: Float[np.ndarray, "N D"], weight: Float[np.ndarray, " N"] | None = None) -> "Summary":
        """Two passes over the rows of positive weight, in float64. Raises ValueError for values whose squares are no numbers."""
        X, rho = np.asarray(X, np.float64), np.ones(len(X)) if weight is None else weight
        if weight is not None and not (rho > 0).all():
            X, rho = X[rho > 0], rho[rho > 0]
        bad = ~(np.abs(X) <= LARGEST).all(axis=0)  # of NaN too
        if bad.any():
            column = int(np.argmax(bad)) + 1
            raise ValueError(f"column {column} holds values that are not finite or beyond {LARGEST:g}")
        if len(X) == 0:
            return NO_ROWS
        count = float(np.sum(rho))
        mean = X[0] + rho @ (X - X[0]) / count
        return cls(count, X.min(axis=0), X.max(axis=0), mean, rho @ (X - mean) ** 2)

    def merged(self, other: "Summary") -> "Summary":
        """Of the rows of both (Chan, Golub and LeVeque 1983): M₂ = M₂ₐ + M₂ᵦ + δ² nₐnᵦ/n with δ the difference of the means."""
        if self.count == 0 or other.count == 0:
            return other if self.count == 0 else self
        n, delta = self.count + other.count, other.mean - self.mean
        squares = self.squares + other.squares + delta**2 * (self.count * other.count / n)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Summary(n, low, high, self.mean + delta * (other.count / n), squares)

    def standardiser(self, dtype: DTypeLike = np.float64) -> Standardiser:
        """Mean and standard deviation; scale 1 of a column that does not vary, or only by the rounding of `dtype`."""
        mean = np.where(self.low == self.high, self.low, self.mean)
        deviation = np.sqrt(self.squares / self.count)
        rounding = 10 * np.finfo(dtype).eps * np.maximum(np.abs(self.low), np.abs(self.high))
        return Standardiser(mean, np.where(deviation <= rounding, 1.0, deviation))


NO_ROWS = Summary(0.0, *(np.zeros(0),) * 4)


def first_not_finite(X: Float[np.ndarray, "..."]) -> tuple[int, ...] | None:
    """Row and column of the first value that is infinite or NaN; None if all are finite."""
    for rows in _chunks(X.shape):
        finite = np.isfinite(X[rows])
        if not finite.all():
            row, *column = (int(index) for index in np.argwhere(~finite)[0])
            return (rows.start + row, *column)
    return None


def refuse_not_finite(X: Float[np.ndarray, " N *D"], start: int = 0) -> None:
    """ValueError with the first row, counted from `start`, and column whose value is infinite or NaN."""
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
