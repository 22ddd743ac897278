"""Prior means of f that are fitted before the rest: linear in the inputs, or a sum of trees."""

import abc
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp import deadline
from stochgp.data import Standardiser
from stochgp.data.rows import Rows
from stochgp.numerics.clustered import folds
from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import random_rows
from stochgp.numerics.trees import Boosting, Trees, joined

MOST_ROWS = 50_000  # that slopes, or the trees of a fold, are fitted to
# Of slopes in standard deviations of the inputs; left-out rows choose.
PENALTIES = tuple(10.0**k for k in range(-3, 6))

FOLDS = 5  # of trees
BOOSTING = Boosting(n_trees=350, depth=6, rate=0.15, ridge=0.5, n_bins=256, fewest=4, patience=30)
SHARES, SEEN = (0.4, 0.8), 10_000  # of the rows, that one tree sees: as many as this, within these bounds
SHARE_OF_TIME = 0.5  # of a fit whose time is limited


class AbstractMeanFunction(eqx.Module):
    """m(x) in the user's units of x and those of T(y), fitted to rows whose T(y) − m(x) are then learned from."""

    described: ClassVar[str]  # what is taken out of the targets

    @classmethod
    @abc.abstractmethod
    def fit(cls, rows: Rows) -> "tuple[AbstractMeanFunction, Float[np.ndarray, ' N']]":
        """(m, its values at these rows as they would be if a row had not been one of them)."""

    @abc.abstractmethod
    def __call__(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N"]:
        """In float64, on the host."""

    @abc.abstractmethod
    def gradient(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N D"]:
        """∂m/∂x."""

    @abc.abstractmethod
    def on_device(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """In the dtype of X, differentiable in X."""


class LinearMean(AbstractMeanFunction):
    """m(x) = offset + slope · (x̃ − center), x̃ the inputs within `low` and `high`: in the user's units, m in those of T(y).

    Within one width of their range beyond it: dates go on, and one reading of 9,831 mm of rain does not count as such.

    Parameters
    ----------
    offset : float64 array []
    slope : float64 array [D]
        Units of T(y) for each unit of an input.
    center : float64 array [D]
        The means of the inputs.
    low, high : float64 array [D]
        Beyond which m is constant.
    """

    offset: Float[np.ndarray, ""]
    slope: Float[np.ndarray, " D"]
    center: Float[np.ndarray, " D"]
    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]
    described: ClassVar[str] = "a line"

    @classmethod
    def fit(cls, rows: Rows) -> "tuple[LinearMean, Float[np.ndarray, ' N']]":
        """Ridge regression of at most 50,000 of the rows, at random, on their standardised inputs: the penalty is that of the least error of left-out rows.

        Its values at the rows are those of m itself: there are few slopes for so many rows.
        """
        from sklearn.linear_model import RidgeCV  # slow to import, and of no other use

        every, rows = rows, rows.some(random_rows(len(rows), MOST_ROWS))
        inputs = Standardiser.fit(rows.X, rows.weight)
        low, high = (of(rows.X, axis=0).astype(np.float64) for of in (np.min, np.max))
        ridge = RidgeCV(PENALTIES).fit(inputs.transform(rows.X, np.float64), rows.y, rows.weight)
        offset, slope = np.asarray(ridge.intercept_, np.float64), ridge.coef_ / inputs.scale
        found = cls(offset, slope, inputs.mean, 2 * low - high, 2 * high - low)
        return found, found(every.X)

    def __call__(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N"]:
        within = np.clip(np.asarray(X, np.float64), self.low, self.high)
        return float(self.offset) + (within - self.center) @ self.slope

    def gradient(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N D"]:
        """The slope, 0 in inputs beyond `low` and `high`."""
        return self.slope * ((self.low <= X) & (self.high >= X))

    def on_device(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        given = self.offset, self.slope, self.center, self.low, self.high
        offset, slope, center, low, high = (jnp.asarray(part, X.dtype) for part in given)
        return offset + matmul(jnp.clip(X, low, high) - center, slope)


class TreeMean(AbstractMeanFunction):
    """m(x) = offset + the mean over K folds of g_k(x), g_k a sum of symmetric trees that are fitted to the rows of all other folds.

    Trees are fitted by boosting, as long as the rows of their fold gain (`Boosting`; Friedman, 2001; Prokhorenkova et al., 2018). A row of fold k is learned from as
    T(y) − offset − g_k(x), an error of rows that g_k has not seen (cross-fitting; Chernozhukov et al., 2018), so that noise is as large as that of new rows. Groups are
    in one fold.

    Parameters
    ----------
    offset : float64 array []
        The mean of T(y).
    trees : Trees
        Those of all folds, their leaves divided by K.
    """

    offset: Float[np.ndarray, ""]
    trees: Trees
    described: ClassVar[str] = "trees"

    @classmethod
    def fit(cls, rows: Rows) -> "tuple[TreeMean, Float[np.ndarray, ' N']]":
        """Five folds, as many as there are rows or groups if these are fewer; where time is limited trees take half of it."""
        offset = np.average(rows.y, weights=rows.weights)
        rest = Rows(np.asarray(rows.X, np.float64), rows.y - offset, rows.weights)
        values = np.full(len(rows), offset)
        fold, found = folds(len(rows), rows.group, FOLDS), []
        n_folds, left = int(fold.max()) + 1, deadline.left()
        for k in range(n_folds if n_folds > 1 else 0):
            last = left * (1 - SHARE_OF_TIME * (k + 1) / n_folds) if np.isfinite(left) else -np.inf
            seen, others = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            learned, judged = (rest.some(part[random_rows(len(part), MOST_ROWS)]) for part in (seen, others))
            trees = _boosted(learned, judged, k, lambda last=last: deadline.left() > last)
            if trees is not None:
                found.append(trees)
                values[others] += trees.on_host(rest.X[others])
        none = Trees(np.zeros((1, 1), np.int32), np.full((1, 1), np.inf), np.zeros((1, 2)))
        return cls(np.asarray(offset, np.float64), joined(found or [none], 1 / n_folds)), values

    def __call__(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N"]:
        flat = np.asarray(X, np.float64).reshape(-1, X.shape[-1])
        return float(self.offset) + self.trees.on_host(flat).reshape(X.shape[:-1])

    def gradient(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N D"]:
        """0, but for the steps."""
        return np.zeros(X.shape)

    def on_device(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.asarray(self.offset, X.dtype) + self.trees(X)


def _boosted(seen: Rows, others: Rows, seed: int, goes_on: Callable[[], bool]) -> Trees | None:
    """Trees of least squares from the rows `seen`, as many as serve the `others`."""
    share = float(np.clip(SEEN / max(len(seen), 1), *SHARES))
    slopes = lambda values: (seen.weights * (values - seen.y), seen.weights)
    loss = lambda values: float(np.average((values - others.y) ** 2, weights=others.weights))
    boosting = BOOSTING._replace(share=share)
    return boosting.fit(seen.X, slopes, others.X, loss, seed, seen.weights, goes_on)
