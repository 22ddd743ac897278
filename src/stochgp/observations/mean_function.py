"""Mean functions m(x), linear or a sum of trees; the fit learns them before the GP."""

import abc
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from stochgp import deadline
from stochgp.compiled import in_threads
from stochgp.data import Standardiser
from stochgp.data.rows import Data
from stochgp.numerics.clustered import folds
from stochgp.numerics.seeds import random_rows
from stochgp.numerics.trees import Trees, joined
from stochgp.observations.boosting import Boosting

MAX_ROWS = 50_000  # maximum number of rows to fit slopes, or the trees of one fold
PENALTIES = 10.0 ** np.arange(-3, 6)[:, None]  # ridge penalties of slopes for standardised inputs
MIN_SHARE = 0.1  # lower bound of `noise_factor`, and of the share of degrees of freedom of the residuals

FOLDS = 5  # folds for cross-fitted trees
BOOSTING = Boosting(n_trees=350, depth=6, rate=0.15, ridge=0.5, n_bins=64, fewest=4, patience=20)
SHARES, SEEN = (0.4, 0.8), 10_000  # bounds of the share of rows per tree; rows per tree between them
SHARE_OF_TIME = 0.5  # share of the time limit of a fit for the trees


class AbstractMeanFunction(eqx.Module):
    """A mean function m(x) in the units of the transformed targets T(y).

    The GP learns T(y) − m(x). The covariance of the errors m(x) and m(z) is d(x)·d(z). The method
    `deviations` returns d.

    Parameters
    ----------
    noise_factor, residual, width : float
        `noise_factor` is the noise variance of new rows divided by the learned noise variance. `width` is a
        factor of `deviations`. It is 1 if leave-one-out errors have a variance of at least `residual`.
    """

    __getattribute__ = object.__getattribute__  # bypasses Equinox, which wraps methods in pytrees

    noise_factor: float = eqx.field(default=1.0, kw_only=True)
    residual: float = eqx.field(default=0.0, kw_only=True)
    width: float = eqx.field(default=1.0, kw_only=True)
    described: ClassVar[str]  # the name in messages

    @abc.abstractmethod
    def __call__(self, X: Any, xp: Any = np) -> Any:
        """Return m(x) [N]: in float64 if `xp` is NumPy, in the dtype of X if it is `jax.numpy`."""

    @abc.abstractmethod
    def deviations(self, X: Any, xp: Any = np) -> Any:
        """Return d(x) [N, R] in units of T(y), with dtypes as in `__call__`."""

    def variance(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Return the variance d(x)·d(x) of m(x), in squared units of T(y)."""
        return np.sum(self.deviations(X) ** 2, axis=1)


class LinearMean(AbstractMeanFunction):
    """The mean function m(x) = offset + slope · (x − center), where inputs x are clipped.

    Parameters
    ----------
    offset : float64 array []
    slope : float64 array [D]
        Change of m(x) per unit of each input.
    center : float64 array [D]
        The means of the inputs.
    low, high : float64 array [D]
        Bounds of the clipped inputs: the training range, extended by its own width at both ends.
    root, offset_std
        The slopes have the covariance root rootᵀ. The offset has the variance offset_std².
    noise_factor, residual, width : float
        As in `AbstractMeanFunction`.
    """

    offset: Float[np.ndarray, ""]
    slope: Float[np.ndarray, " D"]
    center: Float[np.ndarray, " D"]
    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]
    root: Float[np.ndarray, "D S"]
    offset_std: float
    described: ClassVar[str] = "a line"

    @classmethod
    def fit(cls, rows: Data) -> "tuple[LinearMean, Float[np.ndarray, ' N']]":
        """Fit m by ridge regression; return m and its leave-one-out values at the rows.

        The penalty λ minimises the leave-one-out error. The covariance of the slopes is an average over λ.
        The slopes have the prior N(0, σ²/λ), and 1/√λ has a half-Cauchy prior.
        """
        some = random_rows(len(rows), MAX_ROWS)
        every, rows = rows, rows.take(some)
        inputs, rho = Standardiser.fit(rows.X, rows.weight), rows.weights.astype(np.float64)
        low, high = (of(rows.X, axis=0).astype(np.float64) for of in (np.min, np.max))
        n, offset = float(rho.sum()), np.average(rows.y, weights=rho)
        Z, y = inputs.transform(rows.X, np.float64), rows.y - offset
        g, V = np.linalg.eigh(Z.T @ (rho[:, None] * Z))
        Z, shrunk = Z @ V, 1 / (np.maximum(g, 0.0) + PENALTIES)  # [N, D], 1/(g + λ) [K, D]
        slopes = shrunk * (Z.T @ (rho * y))  # [K, D]
        errors = y[:, None] - Z @ slopes.T  # [N, K]
        left_out = errors / np.maximum(1 - rho[:, None] * (1 / n + Z**2 @ shrunk.T), 1e-3)
        k = int(np.argmin(rho @ left_out**2))
        s2 = np.maximum(rho @ (y[:, None] * errors), 1e-300) / max(n - 3, 1.0)  # E σ² given λ [K]
        evidence = np.log(PENALTIES * shrunk).sum(axis=1) / 2 - (n - 1) / 2 * np.log(s2)
        w = softmax(evidence - np.log(PENALTIES**0.5 + PENALTIES**-0.5)[:, 0])
        others = np.sqrt(w)[:, None] * (slopes - slopes[k])
        root = V @ np.hstack([np.diag(np.sqrt((w * s2) @ shrunk)), others.T]) / inputs.scale[:, None]
        kept = max(1 - float(1 + np.maximum(g, 0.0) @ shrunk[k]) / n, MIN_SHARE)
        s = float(np.average(errors[:, k] ** 2, weights=rho) / kept)  # residual variance
        line = np.asarray(offset), V @ slopes[k] / inputs.scale, inputs.mean, 2 * low - high, 2 * high - low
        found = cls(*line, root, (s / n) ** 0.5, noise_factor=1 / kept, residual=s)
        values = found(every.X)
        values[some] = rows.y - left_out[:, k]
        return found, values

    def __call__(self, X: Any, xp: Any = np) -> Any:
        within = self._within(X, xp)
        return float(self.offset) + within @ xp.asarray(self.slope, within.dtype)

    def deviations(self, X: Any, xp: Any = np) -> Any:
        within = self._within(X, xp)
        found = within @ xp.asarray(self.width * self.root, within.dtype)
        return xp.concatenate([found, xp.full_like(found[..., :1], self.width * self.offset_std)], axis=-1)

    def _within(self, X: Any, xp: Any = np) -> Any:
        X = np.asarray(X, np.float64) if xp is np else X
        low, high, center = (xp.asarray(part, X.dtype) for part in (self.low, self.high, self.center))
        return xp.clip(X, low, high) - center


class TreeMean(AbstractMeanFunction):
    """The mean function m(x) = offset + Σ_k g_k(x)/K; each of K folds has boosted trees g_k.

    `Boosting` fits the trees g_k to all folds except fold k. In fold k, the GP learns
    T(y) − offset − g_k(x) (cross-fitting; Chernozhukov et al., 2018). All rows of a group are in the same
    fold. The variance of m is the jackknife estimate (K − 1)/K Σ_k (g_k(x) − m(x) + offset)² (Efron, 1982).

    Parameters
    ----------
    offset : float64 array []
        The mean of T(y).
    trees : Trees
        The trees of all folds, with leaf values divided by K.
    sizes : tuple of K int
        The number of trees of each fold.
    noise_factor, residual, width : float
        As in `AbstractMeanFunction`.
    """

    offset: Float[np.ndarray, ""]
    trees: Trees
    sizes: tuple[int, ...] = eqx.field(static=True)
    described: ClassVar[str] = "trees"

    @classmethod
    def fit(cls, rows: Data) -> "tuple[TreeMean, Float[np.ndarray, ' N']]":
        """Fit trees in five folds, and return m with the cross-fitted values at the rows."""
        offset = np.average(rows.y, weights=rows.weights)
        rest = Data(np.asarray(rows.X, np.float64), rows.y - offset, rows.weights)
        values = np.full(len(rows), offset)
        fold, left = folds(len(rows), rows.group, FOLDS), deadline.left()
        n_folds = int(fold.max()) + 1
        last = left * (1 - SHARE_OF_TIME) if np.isfinite(left) else -np.inf

        def of_fold(k: int) -> Trees | None:
            learned, judged = (
                rest.take(part[random_rows(len(part), MAX_ROWS)])
                for part in (np.flatnonzero(fold != k), np.flatnonzero(fold == k))
            )
            return boosted(learned, judged, k, lambda: deadline.left() > last)

        trees = in_threads(of_fold, range(n_folds)) if n_folds > 1 else []
        found = [own for own in trees if own is not None]
        sizes = [0 if own is None else len(own.leaves) for own in trees] or [0]
        for k, own in enumerate(trees):
            if own is not None:
                others = np.flatnonzero(fold == k)
                values[others] += own.on_host(rest.X[others])
        none = Trees(np.zeros((1, 1), np.int32), np.full((1, 1), np.inf), np.zeros((1, 2)))
        m = cls(np.asarray(offset, np.float64), joined(found or [none], 1 / n_folds), tuple(sizes))
        some = rest.take(random_rows(len(rows), SEEN))
        whole = max(np.average((rows.y - values) ** 2, weights=rows.weights), 1e-300)
        share = float(np.average(m.variance(some.X), weights=some.weights) / whole)
        return dataclasses.replace(m, noise_factor=max(1 - share, MIN_SHARE)), values

    def left_out(self, rows: Data) -> Float[np.ndarray, " N"]:
        """Return the cross-fitted values offset + g_k(x) at the training rows, with their folds k."""
        fold, K = folds(len(rows), rows.group, FOLDS), len(self.sizes)
        return self.offset + K * self._of_folds(rows.X, np)[np.arange(len(rows)), fold]

    def __call__(self, X: Any, xp: Any = np) -> Any:
        return float(self.offset) + (
            self.trees.on_host(np.asarray(X, np.float64)) if xp is np else self.trees(X)
        )

    def deviations(self, X: Any, xp: Any = np) -> Any:
        G, K = self._of_folds(X, xp), len(self.sizes)
        return self.width * ((K - 1) * K) ** 0.5 * (G - G.mean(axis=-1, keepdims=True))

    def _of_folds(self, X: Any, xp: Any) -> Any:
        """Return g_k(x)/K [N, K]."""
        arrays = [xp.asarray(part) for part in (self.trees.inputs, self.trees.thresholds, self.trees.leaves)]
        ends = np.cumsum((0, *self.sizes))
        parts = [Trees(*(part[start:end] for part in arrays)) for start, end in itertools.pairwise(ends)]
        return xp.stack([part.on_host(X) if xp is np else part(X) for part in parts], axis=-1)


def boosted(
    seen: Data, others: Data, seed: int = 0, goes_on: Callable[[], bool] = lambda: True
) -> Trees | None:
    """Fit least-squares trees to the rows `seen`, with early stopping on `others`."""
    share = float(np.clip(SEEN / max(len(seen), 1), *SHARES))
    slopes = lambda values: (seen.weights * (values - seen.y), seen.weights)
    loss = lambda values: float(np.average((values - others.y) ** 2, weights=others.weights))
    boosting = dataclasses.replace(BOOSTING, share=share)
    return boosting.fit(seen.X, slopes, others.X, loss, seed, seen.weights, goes_on)


LINEAR_MEAN, TREES = "linear", "trees"  # values of the argument `mean`
MEANS = {LINEAR_MEAN: LinearMean, TREES: TreeMean}
