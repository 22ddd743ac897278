"""The other methods of the arena: fits, predictions and settings for tuning.

`default` uses the defaults of a package, except for 1,000 trees and the loss RMSEWithUncertainty of CatBoost.
For point predictions, the standard deviation is that of held-out residuals. GPyTorch's SVGP follows its
documentation, with 512 inducing points, a Matérn-5/2 kernel and 40 epochs. GPBoost uses Vecchia's
approximation with 20 neighbours. scikit-learn's GP uses a Matérn-5/2 kernel and at most 2,000 rows. xRFM
stops early on a fifth of the rows. LightGBM has one fit for the mean and one per level of `LEVELS`.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.arena_inputs import Categories, Levels, Numbers

TREES = 1000
VECCHIA_NEIGHBOURS = 20
MOST_OF_EXACT = 2_000  # rows; twice as many take eight times as long
LEVELS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
Settings = dict[str, Any]


class Predicted(NamedTuple):
    """Means [N], with standard deviations [N], quantiles at LEVELS [N, K], or neither."""

    mean: np.ndarray
    std: np.ndarray | None = None
    quantiles: np.ndarray | None = None

    @property
    def is_point(self) -> bool:
        return self.std is None and self.quantiles is None

    def with_deviation(self, std: float) -> "Predicted":
        return self._replace(std=np.full(len(self.mean), std))

    def loss(self, y: np.ndarray) -> float:
        """Return the loss of tuning: NLPD, mean pinball loss, or the log root mean square error."""
        if self.quantiles is not None:
            gap = y[:, None] - np.sort(self.quantiles, axis=1)
            return float(np.mean(np.maximum(np.array(LEVELS) * gap, (np.array(LEVELS) - 1) * gap)))
        if self.std is None:
            return float(np.log(np.mean((y - self.mean) ** 2)) / 2)
        std = np.maximum(self.std, np.finfo(float).tiny)
        return float(np.mean(np.log(std) + ((y - self.mean) / std) ** 2 / 2) + math.log(2 * math.pi) / 2)


Predict = Callable[[Any], Predicted]


class Rival(NamedTuple):
    """A method: `inputs` prepares rows, `fit` fits them, and `draw` draws settings.

    Methods without `draw` are not tuned. `most_rows` limits the number of training rows.
    """

    inputs: Any
    fit: Callable[[Any, np.ndarray, Settings], Predict]
    draw: Callable[[np.random.Generator], Settings] | None
    most_rows: int | None = None

    def fitted(self, X: Any, y: np.ndarray, dates: Mapping[str, str], settings: Settings) -> Predict:
        """Fit rows of a data frame, with inputs prepared from these rows only."""
        made = self.inputs.of(X, dates)
        predict = self.fit(made(X), y, settings)
        return lambda X: predict(made(X))


def _catboost(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from catboost import CatBoostRegressor  # pyrefly: ignore[missing-import]

    from benchmarks.arena_inputs import text_columns

    fixed = {
        "loss_function": "RMSEWithUncertainty",
        "verbose": False,
        "allow_writing_files": False,
        "random_seed": 0,
    }
    model = CatBoostRegressor(**fixed, **{"iterations": TREES} | settings)
    model.fit(X, y, cat_features=text_columns(X))

    def predict(X: Any) -> Predicted:
        found = np.asarray(model.predict(X), np.float64)
        return Predicted(found[:, 0], np.sqrt(found[:, 1]))

    return predict


def _lightgbm(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from lightgbm import LGBMRegressor  # pyrefly: ignore[missing-import]

    of = functools.partial(LGBMRegressor, verbose=-1, random_state=0, **settings)
    mean = of().fit(X, y)
    fits = [of(objective="quantile", alpha=level).fit(X, y) for level in LEVELS]
    return lambda X: Predicted(mean.predict(X), quantiles=np.stack([fit.predict(X) for fit in fits], axis=1))


def _ngboost(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from ngboost import NGBRegressor  # pyrefly: ignore[missing-import]
    from sklearn.tree import DecisionTreeRegressor

    settings = dict(settings)
    base = {}
    if "max_depth" in settings:
        tree = DecisionTreeRegressor(criterion="squared_error", max_depth=settings.pop("max_depth"))
        base = {"Base": tree}
    model = NGBRegressor(verbose=False, random_state=0, **base, **settings).fit(X, y)

    def predict(X: Any) -> Predicted:
        found = model.pred_dist(X)
        return Predicted(found.loc, found.scale)

    return predict


def _quantile_forest(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from quantile_forest import RandomForestQuantileRegressor  # pyrefly: ignore[missing-import]

    model = RandomForestQuantileRegressor(random_state=0, n_jobs=-1, **settings).fit(X, y)
    return lambda X: Predicted(
        model.predict(X, quantiles="mean"), quantiles=model.predict(X, quantiles=list(LEVELS))
    )


def _histograms(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=0, **settings)
    model.fit(X, y)
    return lambda X: Predicted(model.predict(X))


def _ridge(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), Ridge(**settings)).fit(X, y)
    return lambda X: Predicted(model.predict(X))


def _svgp(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    """Fit SVGP with batches of 1,024 rows and Adam, for at least 2,000 steps."""
    import gpytorch
    import torch

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self, points: torch.Tensor):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, q))
            self.mean_module, self.likelihood = (
                gpytorch.means.ZeroMean(),
                gpytorch.likelihoods.GaussianLikelihood(),
            )
            matern = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=points.shape[1])
            self.covar_module, self.likelihood.noise = gpytorch.kernels.ScaleKernel(matern), 0.1

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    torch.manual_seed(0)
    settings = {"n_points": 512, "rate": 0.01, "epochs": 40} | settings
    inputs, targets = _Standardised.of(X), _Standardised.of(y)
    rows, t, batch = torch.as_tensor(inputs(X)), torch.as_tensor(targets(y)), min(1024, len(y))
    model = SVGP(rows[torch.randperm(len(y))[: settings["n_points"]]].clone())
    loss = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(y))
    optimiser = torch.optim.Adam(model.parameters(), lr=settings["rate"])
    generator, whole = torch.Generator().manual_seed(0), len(y) // batch * batch
    remaining = max(2_000, settings["epochs"] * (len(y) // batch))
    while remaining > 0:
        for some in torch.randperm(len(y), generator=generator)[:whole].split(batch)[:remaining]:
            optimiser.zero_grad()
            (-loss(model(rows[some]), t[some])).backward()
            optimiser.step()
            remaining -= 1
    model.eval()

    def predict(X: Any) -> Predicted:
        with torch.no_grad():
            found = [model.likelihood(model(part)) for part in torch.as_tensor(inputs(X)).split(2048)]
        m, v = (
            torch.cat([getattr(of, name) for of in found]).numpy().astype(np.float64)
            for name in ("mean", "variance")
        )
        return Predicted(targets.back(m), targets.scale * np.sqrt(v))

    return predict


def vecchia(
    X: np.ndarray, y: np.ndarray, neighbours: int
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return means and standard deviations of observations from GPBoost's Vecchia GP."""
    from gpboost import GPModel  # pyrefly: ignore[missing-import]

    fixed = {"cov_function": "matern_ard", "cov_fct_shape": 1.5, "likelihood": "gaussian"}
    model = GPModel(gp_coords=X, gp_approx="vecchia", num_neighbors=neighbours, **fixed)
    model.fit(y=y)

    def predict(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = model.predict(gp_coords_pred=X, predict_var=True, predict_response=True)
        return found["mu"], np.sqrt(found["var"])

    return predict


def _gpboost(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    inputs, targets = _Standardised.of(X), _Standardised.of(y)
    varies = np.ptp(inputs(X), axis=0) > 0  # constant columns are not accepted
    coordinates = lambda X: inputs(X)[:, varies].astype(np.float64)
    moments = vecchia(coordinates(X), targets(y).astype(np.float64), VECCHIA_NEIGHBOURS)

    def predict(X: Any) -> Predicted:
        mean, std = moments(coordinates(X))
        return Predicted(targets.back(mean), targets.scale * std)

    return predict


def _exact(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    inputs = _Standardised.of(X)
    lengthscales: Any = np.ones(np.shape(X)[1])
    kernel = ConstantKernel() * Matern(lengthscales, nu=2.5) + WhiteKernel(0.1)
    model: Any = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    model.fit(inputs(X).astype(np.float64), y)
    return lambda X: Predicted(*model.predict(inputs(X).astype(np.float64), return_std=True))


def _xrfm(X: Any, y: np.ndarray, settings: Settings) -> Predict:
    from sklearn.model_selection import train_test_split
    from xrfm import xRFM  # pyrefly: ignore[missing-import]

    inputs, targets = _Standardised.of(X), _Standardised.of(y)
    parts = train_test_split(inputs(X), targets(y)[:, None], test_size=0.2, random_state=0)
    known = {"bandwidth": 10.0, "exponent": 1.0, "kernel": "l2", "diag": False, "bandwidth_mode": "constant"}
    learning = {"reg": 1e-3, "iters": 5, "verbose": False, "early_stop_rfm": True}
    for name, value in settings.items():
        (learning if name in learning else known)[name] = value
    fixed = {"device": "cpu", "max_leaf_size": 10_000, "tuning_metric": "mse", "random_state": 0}
    model = xRFM(rfm_params={"model": known, "fit": learning}, verbose=False, **fixed)
    model.fit(parts[0], parts[2], parts[1], parts[3])
    return lambda X: Predicted(targets.back(np.asarray(model.predict(inputs(X)), np.float64).ravel()))


class _Standardised(NamedTuple):
    """Inputs as standardised float32 numbers, clipped at ±1,000."""

    mean: Any
    scale: Any

    @classmethod
    def of(cls, values: Any) -> "_Standardised":
        values = np.asarray(values, np.float64)
        return cls(values.mean(axis=0), np.maximum(values.std(axis=0), 1e-12))

    def __call__(self, values: Any) -> np.ndarray:
        found = (np.asarray(values, np.float64) - self.mean) / self.scale
        return np.clip(found, -1e3, 1e3).astype(np.float32)

    def back(self, values: np.ndarray) -> np.ndarray:
        return self.mean + self.scale * values


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(generator.uniform(np.log(low), np.log(high))))


def _of_catboost(g: np.random.Generator) -> Settings:
    return {
        "iterations": int(g.choice([500, 1000, 2000])),
        "depth": int(g.integers(4, 9)),
        "learning_rate": _log_uniform(g, 0.01, 0.3),
        "l2_leaf_reg": _log_uniform(g, 0.1, 100),
        "random_strength": _log_uniform(g, 0.1, 10),
    }


def _of_lightgbm(g: np.random.Generator) -> Settings:
    return {
        "n_estimators": int(g.choice([100, 300, 1000])),
        "num_leaves": int(2 ** g.integers(3, 8)),
        "learning_rate": _log_uniform(g, 0.01, 0.3),
        "min_child_samples": int(_log_uniform(g, 5, 100)),
        "reg_lambda": _log_uniform(g, 1e-3, 100),
        "colsample_bytree": float(g.uniform(0.5, 1)),
    }


def _of_ngboost(g: np.random.Generator) -> Settings:
    return {
        "n_estimators": int(g.choice([300, 500, 1000])),
        "learning_rate": _log_uniform(g, 0.01, 0.1),
        "max_depth": int(g.integers(3, 7)),
        "minibatch_frac": float(g.choice([0.5, 1.0])),
        "col_sample": float(g.choice([0.5, 1.0])),
    }


def _of_quantile_forest(g: np.random.Generator) -> Settings:
    return {
        "n_estimators": int(g.choice([100, 300])),
        "min_samples_leaf": int(_log_uniform(g, 1, 30)),
        "max_features": float(g.choice([0.3, 0.5, 0.7, 1.0])),
    }


def _of_histograms(g: np.random.Generator) -> Settings:
    return {
        "max_iter": int(g.choice([100, 300, 1000])),
        "max_leaf_nodes": int(2 ** g.integers(3, 9)),
        "learning_rate": _log_uniform(g, 0.01, 0.3),
        "min_samples_leaf": int(_log_uniform(g, 5, 100)),
        "l2_regularization": _log_uniform(g, 1e-3, 100),
    }


def _of_svgp(g: np.random.Generator) -> Settings:
    return {
        "n_points": int(g.choice([256, 512, 1024])),
        "rate": _log_uniform(g, 3e-3, 3e-2),
        "epochs": int(g.choice([20, 40, 80])),
    }


def _of_xrfm(g: np.random.Generator) -> Settings:
    return {
        "bandwidth": _log_uniform(g, 1, 200),
        "exponent": float(g.uniform(0.7, 1.4)),
        "diag": bool(g.integers(2)),
        "reg": _log_uniform(g, 1e-6, 10),
    }


def _of_ridge(g: np.random.Generator) -> Settings:
    return {"alpha": _log_uniform(g, 1e-3, 1e4)}


RIVALS = {
    "catboost": Rival(Levels, _catboost, _of_catboost),
    "lightgbm": Rival(Categories, _lightgbm, _of_lightgbm),
    "ngboost": Rival(Numbers, _ngboost, _of_ngboost),
    "quantile forest": Rival(Numbers, _quantile_forest, _of_quantile_forest),
    "histograms": Rival(Categories, _histograms, _of_histograms),
    "svgp": Rival(Numbers, _svgp, _of_svgp),
    "gpboost": Rival(Numbers, _gpboost, None),
    "exact": Rival(Numbers, _exact, None, most_rows=MOST_OF_EXACT),
    "xrfm": Rival(Numbers, _xrfm, _of_xrfm),
    "ridge": Rival(Numbers, _ridge, _of_ridge),
}
