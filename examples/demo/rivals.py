"""Other methods of the demo: ridge regression, and boosting if it is installed."""

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from examples.demo.departures import MANY_LEVELS, Departures
from stochgp.data import TableEncoder
from stochgp.distributions import Normal

TREES, BOOSTED = 1000, 300  # trees of CatBoost, and of the others, whose learning rate is 0.05
LEVELS = np.array([0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975])  # quantile levels of LightGBM
BETWEEN = np.linspace(0.025, 0.975, 39)
MOST_LEVELS = 255  # categories per text column for histogram boosting; columns with more are dropped


class Quantiles(NamedTuple):
    """Predicted quantiles at LEVELS [N, Q], ascending, and means [N]."""

    values: np.ndarray
    mean: np.ndarray

    def crps(self, y: np.ndarray) -> np.ndarray:
        """Return the CRPS as twice the mean pinball loss over 39 interpolated levels."""
        right = np.clip(np.searchsorted(LEVELS, BETWEEN), 1, len(LEVELS) - 1)
        share = (BETWEEN - LEVELS[right - 1]) / (LEVELS[right] - LEVELS[right - 1])
        q = (1 - share) * self.values[:, right - 1] + share * self.values[:, right]
        d = y[:, None] - q
        return 2 * np.mean(np.maximum(BETWEEN * d, (BETWEEN - 1) * d), axis=1)

    def interval(self, level: float) -> np.ndarray:
        """Return a central interval between two of the levels."""
        low = int(np.argmin(np.abs(LEVELS - (1 - level) / 2)))
        return self.values[:, [low, len(LEVELS) - 1 - low]]


Method = Callable[[Departures, Departures], Any]


def rivals(seed: int) -> Iterator[tuple[str, Method | None]]:
    """Yield name and method, or None if its package is not installed."""
    yield "ridge", _ridge
    yield "histogram boosting", partial(_boosted, seed)
    for name, package, method in (
        ("CatBoost", "catboost", _catboost),
        ("LightGBM quantiles", "lightgbm", _lightgbm),
    ):
        yield name, partial(method, seed) if importlib.util.find_spec(package) is not None else None


def _ridge(known: Departures, new: Departures) -> Normal:
    encoder = TableEncoder.fit(known.table.drop_columns(list(MANY_LEVELS)), missing="auto")
    X, X_new = (encoder.transform(part.table) for part in (known, new))
    return _with_residuals(lambda: make_pipeline(StandardScaler(), Ridge()), X, X_new, known)


def _boosted(seed: int, known: Departures, new: Departures) -> Normal:
    X, X_new, texts = _coded(known, new)
    few = [j for j in range(X.shape[1]) if j not in texts or np.nanmax(X[:, j]) < MOST_LEVELS]
    kinds = [few.index(j) for j in texts if j in few]
    settings = {
        "max_iter": BOOSTED,
        "learning_rate": 0.05,
        "random_state": seed,
        "categorical_features": kinds,
    }
    fit = lambda: HistGradientBoostingRegressor(**settings)
    return _with_residuals(fit, X[:, few], X_new[:, few], known)


def _with_residuals(fresh: Callable[[], Any], X: np.ndarray, X_new: np.ndarray, known: Departures) -> Normal:
    """Return means, and the standard deviation of errors on held-out days."""
    days = np.unique(known.day)
    aside = np.isin(known.day, days[:: min(10, len(days))])
    errors = known.lost[aside] - fresh().fit(X[~aside], known.lost[~aside]).predict(X[aside])
    mean = fresh().fit(X, known.lost).predict(X_new)
    return Normal(mean, np.full(len(mean), float(np.sqrt(np.mean(errors**2)))))


def _catboost(seed: int, known: Departures, new: Departures) -> Normal:
    """Predict a Gaussian with a variance for each row, and encode text with CatBoost."""
    from catboost import CatBoostRegressor, Pool  # pyrefly: ignore[missing-import]

    names = [name for name in known.table.column_names if _is_text(known.table, name)]
    settings = {"loss_function": "RMSEWithUncertainty", "random_seed": seed, "verbose": False}
    rival = CatBoostRegressor(iterations=TREES, allow_writing_files=False, **settings)
    pools = [
        Pool([list(row.values()) for row in _filled(part.table).to_pylist()], label=part.lost,
             cat_features=[part.table.column_names.index(name) for name in names])
        for part in (known, new)
    ]  # fmt: skip
    found = rival.fit(pools[0]).predict(pools[1])
    return Normal(found[:, 0], np.sqrt(found[:, 1]))


def _lightgbm(seed: int, known: Departures, new: Departures) -> Quantiles:
    """Fit nine quantile levels and the mean; quantiles are sorted."""
    from lightgbm import LGBMRegressor  # pyrefly: ignore[missing-import]

    X, X_new, texts = _coded(known, new)
    settings = {"n_estimators": BOOSTED, "learning_rate": 0.05, "random_state": seed, "verbose": -1}
    fit = lambda **more: LGBMRegressor(**settings, **more).fit(X, known.lost, categorical_feature=texts)
    at = [np.asarray(fit(objective="quantile", alpha=float(p)).predict(X_new)) for p in LEVELS]
    return Quantiles(np.sort(np.stack(at, axis=1), axis=1), np.asarray(fit().predict(X_new)))


def _coded(known: Departures, new: Departures) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return training and test rows with text as numbers, and which columns are text."""
    parts, texts = ([], []), []
    for j, name in enumerate(known.table.column_names):
        if _is_text(known.table, name):
            texts.append(j)
        levels = pc.call_function("unique", [known.table[name]]).drop_null()
        for found, part in zip(parts, (known, new), strict=True):
            column = part.table[name]
            if j in texts:
                column = pc.call_function("index_in", [column], pc.SetLookupOptions(value_set=levels))
            found.append(column.to_numpy().astype(np.float64))
    return np.column_stack(parts[0]), np.column_stack(parts[1]), texts


def _is_text(table: pa.Table, name: str) -> bool:
    return pa.types.is_string(table.schema.field(name).type)


def _filled(table: pa.Table) -> pa.Table:
    """Replace missing text by a separate category."""
    filled = {
        name: table[name].fill_null("missing") if _is_text(table, name) else table[name]
        for name in table.column_names
    }
    return pa.table(filled)
