"""Regressors of this package as probabilistic regressors of skpro (`pip install 'stochgp[skpro]'`), in the units of the targets."""
# pyright: reportMissingImports=false
# skpro is an extra.

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from stochgp.distributions import AbstractDistribution, Mixture, Normal, Student
from stochgp.distributions.base import inside
from stochgp.families import KernelGPRegressor
from stochgp.pools import GPRegressor

try:
    import pandas as pd
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError as error:
    raise ImportError("stochgp.contrib.skpro needs skpro: pip install 'stochgp[skpro]'") from error

TINY = 1e-12  # the probability below the point whose CRPS gives E|Y − Y'|
EXACT = ["mean", "var", "cdf", "ppf", "energy"]


class PredictedDistribution(BaseDistribution):
    """The distributions of N observations, as a distribution of skpro of N rows and one column.

    Moments, densities (probabilities of counts), F and quantiles are those of the distribution. p = 0 and p = 1 of `ppf` count as 1e-300 and 1 − 1e-16.

    Parameters
    ----------
    distribution : AbstractDistribution
        Of N rows, the result of `predict_distribution` of an estimator.
    index, columns : pandas.Index or None
        Of the rows, None = 0, 1, …, N − 1; one name, that of the targets, None = 0. One row with neither is a scalar.
    """

    _tags: ClassVar = {
        "capabilities:approx": ["pdfnorm"],
        "capabilities:exact": [*EXACT, "pdf", "log_pdf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "general",
    }

    def __init__(self, distribution: AbstractDistribution, index: Any = None, columns: Any = None):
        self.distribution = distribution
        if not (index is None and columns is None and distribution.n_rows == 1):
            index = pd.RangeIndex(distribution.n_rows) if index is None else index
            columns = pd.RangeIndex(1) if columns is None else columns
            if (len(index), len(columns)) != (distribution.n_rows, 1):
                raise ValueError(
                    f"index and columns have lengths {len(index)} and {len(columns)}; wanted are {distribution.n_rows} and 1"
                )
        super().__init__(index=index, columns=columns)
        if distribution.is_discrete:
            exact = [*EXACT, "pmf", "log_pmf"]
            self.set_tags(**{"distr:measuretype": "discrete", "capabilities:exact": exact})

    def _subset_params(self, rowidx: Any, colidx: Any, coerce_scalar: bool = False) -> dict[str, Any]:
        if rowidx is None:
            return {"distribution": self.distribution}
        rows = np.arange(self.distribution.n_rows)[np.asarray(rowidx)]
        return {"distribution": self.distribution[np.atleast_1d(rows)]}

    def _mean(self) -> Any:
        return self._of_rows(self.distribution.mean)

    def _var(self) -> Any:
        return self._of_rows(self.distribution.std**2)

    def _log_pdf(self, x: Any) -> Any:
        return self._of_points(self.distribution.logpdf, x)

    def _pdf(self, x: Any) -> Any:
        return np.exp(self._log_pdf(x))

    _log_pmf, _pmf = _log_pdf, _pdf

    def _cdf(self, x: Any) -> Any:
        return self._of_points(self.distribution.cdf, x)

    def _surv(self, x: Any) -> Any:
        return self._of_points(self.distribution.sf, x)

    def _ppf(self, p: Any) -> Any:
        quantiles = lambda part, p: part._quantile(p)
        return self._of_points(lambda p: self.distribution._by_parts(quantiles, inside(p)), p)

    def _energy_self(self) -> Any:
        return self._of_rows(self._own_energy())

    def _energy_x(self, x: Any) -> Any:
        half = self._own_energy()[:, None] / 2
        return self._of_points(lambda x: self.distribution.crps(x) + half, x)

    def _own_energy(self) -> np.ndarray:
        """E|Y − Y'| [N] from CRPS(y) = E|Y − y| − E|Y − Y'|/2 at a y below nearly all of Y, where E|Y − y| = EY − y."""
        least = self.distribution.quantile(TINY)
        return 2 * (self.distribution.mean - least - self.distribution.crps(least))

    def _of_rows(self, values: np.ndarray) -> Any:
        """[N, 1], or a number where this is a scalar."""
        return values[:, None] if self.ndim else values[0]

    def _of_points(self, evaluate: Callable, x: Any) -> Any:
        """`evaluate` of points [N, Q], in the shape of x."""
        found = evaluate(np.asarray(x, np.float64).reshape(self.distribution.n_rows, -1))
        return found.reshape(np.shape(x))[()]

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Parameters of skpro's tests: a mixture of several rows, a Gaussian, a scalar."""
        normal = Normal(np.array([0.0, 1.0, -2.0]), np.array([1.0, 2.0, 0.5]))
        student = Student(np.array([1.0, 0.0, 3.0]), np.array([1.0, 0.5, 2.0]), 5.0)
        mixture = Mixture((normal, student), np.array([0.3, 0.7]))
        named = {"index": pd.Index([3, 5, 8]), "columns": pd.Index(["y"])}
        return [{"distribution": mixture} | named, {"distribution": normal}, {"distribution": normal[:1]}]


class ProbaRegressor(BaseProbaRegressor):
    """One of our regressors as a probabilistic regressor of skpro.

    `predict_proba` gives the distribution of an observation, noise included; `predict` its mean, `predict_var` its variance. `predict_interval` is that
    of the estimator, with its conformal calibration.

    Parameters
    ----------
    estimator : PosteriorRegressor or None
        A regressor of this package with its settings; a clone of it is fitted. None: `GPRegressor()`.

    Attributes
    ----------
    estimator_ : PosteriorRegressor
        The fitted clone.

    Raises
    ------
    ValueError
        By `fit`, for targets of several columns, and for data that the estimator refuses.
    """

    _tags: ClassVar = {
        "capability:multioutput": False,
        "capability:missing": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, estimator: Any = None):
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame, C: Any = None) -> "ProbaRegressor":
        if y.shape[1] != 1:
            raise ValueError(f"y has {y.shape[1]} columns; one is wanted, with a regressor for each")
        made: Any = GPRegressor() if self.estimator is None else clone(self.estimator)
        self.estimator_ = made.fit(_named(X), y.iloc[:, 0].to_numpy())
        self._columns = y.columns
        return self

    def _predict_proba(self, X: pd.DataFrame) -> PredictedDistribution:
        found = self.estimator_.predict_distribution(_named(X))
        return PredictedDistribution(found, index=X.index, columns=self._columns)

    def _predict_interval(self, X: pd.DataFrame, coverage: list[float]) -> pd.DataFrame:
        found = [self.estimator_.predict_interval(_named(X), level) for level in coverage]
        columns = pd.MultiIndex.from_product([self._columns, coverage, ["lower", "upper"]])
        return pd.DataFrame(np.concatenate(found, axis=1), index=X.index, columns=columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Parameters of skpro's tests: fixed hyperparameters, and learned ones."""
        return [
            {"estimator": KernelGPRegressor("rbf", noise_variance=0.1, learner=None)},
            {"estimator": KernelGPRegressor("matern32", random_state=0)},
        ]


def _named(X: pd.DataFrame) -> pd.DataFrame:
    """With names that are texts, as scikit-learn requires; skpro numbers the columns of an array."""
    return X.set_axis([str(name) for name in X.columns], axis=1)
