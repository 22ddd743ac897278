"""Other methods of `likelihoods` with their defaults: boosting, a Vecchia GP and ridge."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

TREES, LEVELS = 1000, np.linspace(0.025, 0.975, 39)  # quantile levels
Method = Callable[[Any, Any, Any], tuple[Any, dict]]


class Quantiles(NamedTuple):
    """Predicted quantiles at LEVELS [N, Q], sorted, and the mean."""

    values: np.ndarray
    mean: np.ndarray

    def affine(self, scale: float, shift: float) -> "Quantiles":
        return Quantiles(scale * self.values + shift, scale * self.mean + shift)

    def crps(self, y: np.ndarray) -> np.ndarray:
        """Return the CRPS as twice the mean pinball loss over the levels."""
        d = y[:, None] - self.values
        return 2 * np.mean(np.maximum(LEVELS * d, (LEVELS - 1) * d), axis=1)

    def coverage(self, y: np.ndarray, level: float) -> float:
        """Return the coverage of a central interval between quantiles, or NaN outside them."""
        p = (1 - level) / 2
        if p < LEVELS[0] - 1e-9:
            return float("nan")
        at = lambda q: np.array([np.interp(q, LEVELS, row) for row in self.values])
        return float(np.mean((at(p) <= y) & (y <= at(1 - p))))


def available() -> tuple[str, ...]:
    """Return the methods whose packages are installed."""
    return tuple(name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is not None)


def histogram_boosting(X: Any, y: Any, X_test: Any) -> tuple[Any, dict]:
    """Fit histogram boosting, with the standard deviation of held-out residuals."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_iter=1500, max_leaf_nodes=127, random_state=0)
    return _with_residuals(model, X, y, X_test), {}


def catboost(X: Any, y: Any, X_test: Any) -> tuple[Any, dict]:
    """Fit CatBoost; its second output is a variance."""
    from catboost import CatBoostRegressor  # pyrefly: ignore[missing-import]

    fixed = {"loss_function": "RMSEWithUncertainty", "verbose": False, "allow_writing_files": False}
    rival = CatBoostRegressor(iterations=TREES, random_seed=0, **fixed).fit(X, y)
    found = np.asarray(rival.predict(X_test), np.float64)
    return _normal(found[:, 0], np.sqrt(found[:, 1])), {}


def lightgbm_quantiles(X: Any, y: Any, X_test: Any) -> tuple[Any, dict]:
    """Fit nine quantile levels; the others are interpolated and sorted."""
    from lightgbm import LGBMRegressor  # pyrefly: ignore[missing-import]

    some = LEVELS[[0, 1, 3, 9, 19, 29, 35, 37, 38]]
    fits = [LGBMRegressor(objective="quantile", alpha=float(p), verbose=-1).fit(X, y) for p in some]
    found = np.sort(np.stack([fit.predict(X_test) for fit in fits], axis=1), axis=1)
    values = np.array([np.interp(LEVELS, some, row) for row in found])
    return Quantiles(values, np.asarray(LGBMRegressor(verbose=-1).fit(X, y).predict(X_test))), {}


def ridge(X: Any, y: Any, X_test: Any) -> tuple[Any, dict]:
    """Fit ridge regression, with the standard deviation of held-out residuals."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return _with_residuals(make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))), X, y, X_test), {}


def _with_residuals(model: Any, X: Any, y: Any, X_test: Any) -> Any:
    """Return predictions, with the standard deviation of errors on the last tenth of rows."""
    n = len(y) - len(y) // 10
    found = model.fit(X[:n], y[:n])
    std = float(np.sqrt(np.mean((y[n:] - found.predict(X[n:])) ** 2)))
    return _normal(found.predict(X_test), std)


def _normal(mean: Any, std: Any) -> Any:
    from stochgp.distributions import Normal

    mean = np.asarray(mean, np.float64)
    return Normal(mean, np.broadcast_to(np.asarray(std, np.float64), mean.shape).copy())


PACKAGES = {
    "histogram boosting": "sklearn",
    "catboost": "catboost",
    "ridge": "sklearn",
    "lightgbm quantiles": "lightgbm",
}
METHODS: dict[str, Method] = {
    "histogram boosting": histogram_boosting,
    "catboost": catboost,
    "ridge": ridge,
    "lightgbm quantiles": lightgbm_quantiles,
}
