"""Rows in the user's units go through compiled functions as the model sees them, block by block."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float

from stochgp.compiled import kept_on_disk
from stochgp.numerics.arrays import filled_up

from .standardise import Standardiser

MOST_ROWS = 1 << 16  # of one call where any number of rows is alike
_FINITE_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class ModelRows:
    """Rows X of a user, which the model sees standardised, in `dtype`. With `skips` rows of NaN are molecules that were left out."""

    X: Float[np.ndarray, "N D"]
    inputs: Standardiser
    dtype: str
    skips: bool = False

    def by_block(self, evaluate: Callable, n_block: int | None) -> tuple[np.ndarray, ...]:
        """What `evaluate` returns for the standardised rows, as float64 arrays [N, …], from blocks of `n_block` rows, the last one filled up.

        With None it is given MOST_ROWS rows at a time, and none to fill up. Results of skipped rows are NaN. Raises ValueError where a result
        is not finite: inputs so far from the training rows that the features overflow.
        """
        results: tuple[np.ndarray, ...] = ()
        X, step = self._there, MOST_ROWS if n_block is None else n_block
        with jax.enable_x64(True), kept_on_disk():
            for start in range(0, len(X), step):
                part = X[start : start + step]
                Z = filled_up(self._standardised(part, self.dtype, start), n_block or 0, 0.0)
                values = [np.asarray(value)[: len(part)] for value in evaluate(Z)]
                if not results:
                    results = tuple(np.empty((len(X), *value.shape[1:]), np.float64) for value in values)
                for result, value in zip(results, values, strict=True):
                    result[start : start + len(part)] = value
                _refuse_overflow(values, part, start)
        for result in results:
            result[self._skipped] = np.nan
        return results

    def standardised(self, dtype: str | None = None) -> Float[np.ndarray, "N D"]:
        """All of them at once, in their own dtype or in this one. ValueError for skipped ones."""
        return self._standardised(self.X, self.dtype if dtype is None else dtype, 0)

    @functools.cached_property
    def _skipped(self) -> Bool[np.ndarray, " N"]:
        return np.isnan(self.X[:, 0]) if self.skips else np.zeros(len(self.X), bool)

    @property
    def _there(self) -> Float[np.ndarray, "N D"]:
        """With zeros for skipped rows."""
        if not self._skipped.any():
            return self.X
        return np.where(self._skipped[:, None], np.zeros((), self.X.dtype), self.X)

    def _standardised(self, part: np.ndarray, dtype: str, start: int) -> np.ndarray:
        """Rows start, start + 1, … of what a user gave; ValueError says which of them are not finite."""
        try:
            return self.inputs.transform(part, dtype)
        except ValueError as error:
            refuse_not_finite(part)
            raise ValueError(f"in the rows from {start + 1} on: {error}") from error


def is_finite(X: Float[np.ndarray, "N D"]) -> bool:
    """Whether all values are, in blocks of rows."""
    size = max(1, _FINITE_CHUNK // max(1, X.shape[1]))
    return all(np.isfinite(X[start : start + size]).all() for start in range(0, len(X), size))


def refuse_not_finite(X: Float[np.ndarray, "N D"]) -> None:
    """ValueError with the first row and column whose value is infinite or NaN."""
    size = max(1, _FINITE_CHUNK // max(1, X.shape[1]))
    for start in range(0, len(X), size):
        part = X[start : start + size]
        bad = ~np.isfinite(part)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            what = "NaN" if np.isnan(X[start + row, column]) else "infinity (inf)"
            raise ValueError(
                f"Input X contains {what} at row {start + row + 1}, column {column + 1}, x{column} (rows and columns count from 1)"
            )


def _refuse_overflow(values: list[np.ndarray], part: np.ndarray, start: int) -> None:
    for value in values:
        bad = ~np.isfinite(value).reshape(len(part), -1).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"the prediction of row {start + row + 1} is not a finite number: its inputs, up to {np.abs(part[row]).max():g} "
                "in size, lie too far from the training rows"
            )
