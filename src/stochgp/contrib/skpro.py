"""Our regressors as probabilistic regressors of skpro (`pip install 'stochgp[skpro]'`), and their predictions as its distributions.

Values are in the units of the targets given to `fit`.
"""
# pyright: reportMissingImports=false
# skpro is an extra.

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from sklearn.base import clone

from stochgp.distributions import AbstractDistribution, Mixture, Normal, Student
from stochgp.distributions.base import OF_PIECE, inside
from stochgp.families import KernelGPRegressor
from stochgp.pools import GPRegressor

try:
    import pandas as pd
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError as error:
    raise ImportError("stochgp.contrib.skpro needs skpro: pip install 'stochgp[skpro]'") from error

TINY = 1e-12  # the probability below a count from which its energy is summed

CONTINUOUS = ("mean", "var", "pdf", "log_pdf", "cdf", "ppf", "energy")
DISCRETE = ("mean", "var", "pmf", "log_pmf", "cdf", "ppf", "energy")


class PredictedDistribution(BaseDistribution):
    """The distributions of N observations, as a distribution of skpro of N rows and one column.

    Moments, densities (probabilities of counts), F, quantiles and energies are exact. p = 0 and p = 1 of `ppf` count as 1e-300 and 1 − 1e-16.

    Parameters
    ----------
    distribution : AbstractDistribution
        Of N rows, the result of `predict_distribution` of an estimator.
    index : pandas.Index or None
        Of the rows; None = 0, 1, …, N − 1. Of one row with neither index nor columns it is a scalar.
    columns : pandas.Index or None
        One name, that of the targets; None = 0.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp.distributions import Normal
    >>> from stochgp.contrib.skpro import PredictedDistribution
    >>> found = PredictedDistribution(Normal(np.array([0.0, 1.0]), np.array([1.0, 2.0])))
    >>> found.shape
    (2, 1)
    """

    _tags: ClassVar = {
        "capabilities:approx": ["pdfnorm"],
        "capabilities:exact": list(CONTINUOUS),
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
            self.set_tags(**{"distr:measuretype": "discrete", "capabilities:exact": list(DISCRETE)})

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
        return self._of_rows(_own_energy(self.distribution))

    def _energy_x(self, x: Any) -> Any:
        half = _own_energy(self.distribution)[:, None] / 2
        return self._of_points(lambda x: self.distribution.crps(x) + half, x)

    def _of_rows(self, values: Float[np.ndarray, " N"]) -> Any:
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


def _own_energy(distribution: AbstractDistribution) -> Float[np.ndarray, " N"]:
    """E|Y − Y'| of each row, Y and Y' independent: 2 ∫ F (1 − F) dt; of counts from CRPS(y) = E|Y − y| − E|Y − Y'|/2 at a y below them all."""
    if distribution.is_discrete:
        least = distribution.quantile(TINY)
        return 2 * (distribution.mean - least - distribution.crps(least))
    both = lambda t, below, above: [below * above]

    def of_part(part: AbstractDistribution, _: Any) -> Float[np.ndarray, "n 1"]:
        breaks = part._own_breaks()
        found = part._integrals(breaks[:, :-1], breaks[:, 1:], both)[0]
        return 2 * found.sum(axis=1, keepdims=True)

    nothing = np.zeros((distribution.n_rows, 1))
    return distribution._by_parts(of_part, nothing, OF_PIECE * distribution._pieces)[:, 0]


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

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from stochgp import KernelGPRegressor, kernels
    >>> from stochgp.contrib.skpro import ProbaRegressor
    >>> X = pd.DataFrame({"x": np.linspace(0, 6, 30)})
    >>> y = pd.DataFrame({"y": np.sin(X["x"])})
    >>> settings = {"noise_variance": 0.01, "learner": None}
    >>> model = ProbaRegressor(KernelGPRegressor(kernels.RBF(1.0, 1.0), **settings)).fit(X, y)
    >>> found = model.predict_proba(X[:3])
    >>> found.shape, list(found.quantile([0.1, 0.9]).columns)
    ((3, 1), [('y', 0.1), ('y', 0.9)])
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
