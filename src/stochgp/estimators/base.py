"""Base classes of all estimators: settings, checks of settings, and prediction methods."""

import logging
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from stochgp.budget import Budget
from stochgp.choosing import Decisions
from stochgp.data.reading import read_inputs
from stochgp.distributions import AbstractDistribution
from stochgp.estimators.report import summarise
from stochgp.estimators.saving import pack, save, unpack
from stochgp.exceptions import DataWarning, ExtrapolationWarning
from stochgp.likelihoods import Warped
from stochgp.likelihoods.base import COUNT
from stochgp.names import lookup
from stochgp.numerics.seeds import as_key, split_key
from stochgp.observations import MEANS
from stochgp.solvers import AbstractSolver
from stochgp.solvers.choice import NAMES
from stochgp.tables.encoding import known_instead
from stochgp.transforms import Log
from stochgp.warning import say, warn

FEW_BYTES = 1 << 25  # smaller predictions skip the memory check if memory_limit is None

logger = logging.getLogger("stochgp.estimators")


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int | np.integer) and not isinstance(v, bool) and bool(v >= least)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {  # the check of a setting, end of the error
    "n_features": (lambda v: v is None or _whole(1)(v), "None or a whole number of at least 1"),
    "n_inducing": (_whole(1), "a whole number of at least 1"),
    "n_inducing_mean": (lambda v: v is None or _whole(0)(v), "None or a whole number of at least 0"),
    "time_limit": (lambda v: v is None or (_is_number(v) and v > 0), "None or a positive number of seconds"),
    "mean": (
        lambda v: v is None or v in tuple(MEANS) or (_is_number(v) and math.isfinite(v)),
        f"None, {', '.join(map(repr, MEANS))} or a finite number",
    ),
    "point_mass": (
        lambda v: v is None or v == "auto" or (_is_number(v) and math.isfinite(v)),
        "'auto', None or a finite number",
    ),
    "members": (lambda v: len(v) > 0, "'auto' or contain at least one estimator"),
}
CHOICES = {
    "dtype": ("float32", "float64"),
    "missing": ("auto", "refuse", "keep"),
    "time_order": ("auto", "interpolate", "forecast"),
}


def check_settings(settings: dict[str, Any], choices: Mapping[str, tuple[str, ...]] = CHOICES) -> None:
    """Raise ValueError if a setting is invalid, or TypeError if `solver` has the wrong type."""
    for name, value in settings.items():
        if name in RULES:
            holds, what = RULES[name]
            if not holds(value):
                raise ValueError(f"{name} is {value!r}; it must be {what}")
        if name in choices:
            lookup(value, dict.fromkeys(choices[name]), name)
    solver = settings.get("solver", "auto")
    if isinstance(solver, str):
        lookup(solver, dict.fromkeys(("auto", "local", *NAMES)), "solver")
    elif not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a name or a solver of stochgp.solvers, not {solver!r}")


@dataclass(eq=False, repr=False, kw_only=True)
class PosteriorEstimator(BaseEstimator):
    """Base class of all estimators. `GPEstimator` documents the settings."""

    # Types are not checked in `__init__`: scikit-learn requires that `fit` checks the settings.
    __no_type_check__: ClassVar[bool] = True
    memory_limit: str | int | float | None = None
    time_limit: float | None = None
    dtype: str = "float32"
    random_state: Any = None
    verbose: Any = "auto"
    missing: str = "auto"
    devices: Any = None
    time_order: str = "auto"

    if typing.TYPE_CHECKING:
        _fitted: Any = field(init=False)
        target_name_: str | None = field(init=False)
        plan_: Decisions = field(init=False)
        fit_report_: dict[str, Any] = field(init=False)
        fit_seconds_: float = field(init=False)
        n_rows_: int = field(init=False)

    def save(self, path: Any) -> None:
        """Write the fitted model to a safetensors file or a binary file object.

        `stochgp.load` reads the file. Saved kernel GPs contain their training rows and targets; other models
        do not. Raises ValueError if the model contains a class that is not registered (`stochgp.register`);
        classes of stochgp and equinox.nn need no registration. Warns about settings that cannot be saved.
        """
        check_is_fitted(self)
        save(self, path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.input_tags.allow_nan = self.missing != "refuse"
        return tags

    def __getstate__(self) -> dict[str, Any]:
        return pack(dict(vars(self)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(unpack(state))

    def _read(self, X: Any, *, learns: bool = False) -> Float[np.ndarray, "N D"]:
        """Return checked inputs. Warn about unused columns and (not if `learns`) extrapolation."""
        check_is_fitted(self)
        encoder = self._fitted.encoder
        if encoder is not None:
            unknown = [name for name in encoder.unknown(X) if name != self.target_name_]
            if unknown:
                warn(
                    f"the model does not use the column(s) {', '.join(map(repr, unknown))}",
                    DataWarning,
                    stacklevel=3,
                )
        found = read_inputs(self, encoder, X)
        seen = self._fitted.seen
        if seen is not None:
            new = known_instead(encoder, found)[0]
            if text := seen.varying(encoder, found[~new] if new.any() else found):
                warn(text, DataWarning, stacklevel=3)
            text, is_far = ("", False) if learns else seen.extrapolation(encoder, found)
            if is_far:
                warn(text, ExtrapolationWarning, stacklevel=3)
            elif text:
                logger.info(text)
                say(self.verbose, text)
        return found

    def _distribution(self, X: Float[np.ndarray, "N D"], what: str, bytes_of_row: int) -> Any:
        """Return the distribution of an observation at each row. Raise MemoryLimitError if needed."""
        self._reserve(f"{what} at {len(X)} rows", len(X), bytes_of_row * len(X))
        return self._fitted.distribution(X)

    def _reserve(self, what: str, n_rows: int = 0, results: int = 0, **wanted: Any) -> None:
        """Raise MemoryLimitError if a prediction, with `results` bytes of output, is too large."""
        need = self._fitted.need_bytes(n_rows, **wanted) + results
        if self.memory_limit is not None or need > FEW_BYTES:
            Budget.of(self.memory_limit).require(need, what)


class PosteriorRegressor(RegressorMixin, PosteriorEstimator):
    """Prediction methods of regressors."""

    mean: float | str | None
    _checks_targets: ClassVar[bool] = True  # False for pool members: the pool checks the targets

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = False
    ) -> Any:
        """Predict the mean and, on request, the uncertainty of the latent function f.

        For transformed targets and counts, predict the mean of an observation instead of the mean of f.

        Parameters
        ----------
        X : array or table
            Input rows [N, D], with the columns of the training data.
        return_std, return_cov : bool
            Also return the standard deviation [N] or the covariance matrix [N, N], but not both.
        include_noise : bool
            True includes the noise of an observation in the uncertainty. False returns the uncertainty of f.

        Returns
        -------
        The mean [N], or a tuple of the mean and the uncertainty, as float64 arrays in target units.

        Raises
        ------
        ValueError
            If the inputs are invalid, if `return_std` and `return_cov` are True, or if memory is too small.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be True")
        X = self._read(X)
        if return_cov:
            self._reserve(f"a covariance of {len(X)} rows", len(X), covariance=True)
            return self._fitted.mean(X), self._fitted.covariance(X, include_noise=include_noise)
        self._reserve(f"predictions for {len(X)} rows", len(X))
        fitted = self._fitted
        return fitted.mean_and_std(X, include_noise=include_noise) if return_std else fitted.mean(X)

    def predict_distribution(self, X: Any) -> AbstractDistribution:
        """Return the predictive distribution of a noisy observation at each row.

        Returns
        -------
        A distribution of `stochgp.distributions` in target units. The methods `logpdf`, `cdf`, `sf`,
        `quantile`, `interval`, `sample` and `crps`, and the properties `mean` and `std`, give values per row.
        """
        return self._distribution(self._read(X), "distributions", 24)

    def predict_quantiles(self, X: Any, q: Any) -> Float[np.ndarray, " N *Q"]:
        """Return quantiles of a noisy observation at each row, in target units.

        For N rows, the result has the shape [N] if q is a number, and [N, Q] if q is a list of Q numbers.
        Raises ValueError if a value of q is not between 0 and 1.
        """
        found = np.asarray(q, np.float64)
        if found.ndim > 1 or not np.all((found > 0) & (found < 1)):
            raise ValueError(f"q must be a number between 0 and 1 or a list of such numbers, but is {q!r}")
        distribution = self._distribution(self._read(X), f"{found.size} quantiles", 16 * found.size)
        return distribution.quantile(found)

    def predict_frame(self, X: Any, level: float = 0.95) -> Any:
        """Return predictions of noisy observations as a pandas data frame.

        The columns are mean, std (standard deviation), median, lower and upper. `lower` and `upper` are the
        limits that `predict_interval` returns. If X is a pandas data frame, the result has the index of X.
        """
        frame = self._distribution(self._read(X), "intervals", 32).to_frame(level)
        return frame.set_axis(X.index) if hasattr(X, "index") and hasattr(X, "loc") else frame

    def predict_interval(self, X: Any, level: float = 0.95) -> Float[np.ndarray, "N 2"]:
        """Return the lower and upper limits of the central predictive interval for each row.

        A noisy observation at the row lies in the interval with probability `level`. Raises ValueError if
        `level` is not between 0 and 1.
        """
        return self._distribution(self._read(X), "intervals", 32).interval(level)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, include_noise: bool = False
    ) -> Float[np.ndarray, "N S"]:
        """Draw joint samples of f at the rows of X from the posterior, in target units.

        With `include_noise=True`, draw observations with independent noise. At each row, observations have
        the distribution that `predict_distribution` returns, but a pool does not recalibrate the samples.
        """
        key = as_key(random_state)
        functions = self.sample_functions(n_samples, key)
        X = self._read(X)
        self._reserve(f"{n_samples} samples at {len(X)} rows", results=24 * len(X) * n_samples)
        if include_noise:
            return self._fitted.observed(functions, X, key=split_key(key)[1])
        return functions.at_numbers(X)

    def sample_functions(self, n_samples: int, random_state: Any = 0) -> Any:
        """Draw functions from the posterior. A drawn function can be evaluated at any rows.

        After `f = model.sample_functions(8)`, `f(X)` is an array [rows, 8] in target units. If X is a JAX
        array, f(X) is differentiable. Raises ValueError if `n_samples` is not a positive whole number.
        """
        check_is_fitted(self)
        if isinstance(n_samples, bool) or int(n_samples) != n_samples or n_samples < 1:
            raise ValueError(f"n_samples is {n_samples!r}; it must be a whole number of at least 1")
        n_samples = int(n_samples)
        self._reserve(f"drawing {n_samples} functions", n_samples=n_samples)
        return self._fitted.sample_functions(n_samples, key=as_key(random_state))


class PosteriorClassifier(ClassifierMixin, PosteriorEstimator):
    """Prediction methods of classifiers."""

    classes_: np.ndarray

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """Return class probabilities [N, C] for N rows and C classes, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """Return the logarithms of `predict_proba`, accurate even for tiny probabilities."""
        X = self._read(X)
        return self._distribution(X, "probabilities", 32 * len(self.classes_)).log_probabilities

    def predict(self, X: Any) -> Shaped[np.ndarray, " N"]:
        """Return the most probable class of each row."""
        number = np.argmax(self.predict_log_proba(X), axis=1)
        return self.classes_[number]


@dataclass(eq=False, repr=False, kw_only=True)
class GPEstimator(PosteriorEstimator):
    """Base class of estimators that fit a single model, not a pool.

    Parameters
    ----------
    time_order : "auto", "interpolate" or "forecast"
        "interpolate": new rows lie between training rows. "forecast": new rows are later than the training
        rows, so `fit` holds out whole blocks of time. "auto" chooses "forecast" if columns contain dates or
        increasing numbers, and errors of successive rows are correlated; otherwise "interpolate".
    random_state : None, int, NumPy RandomState or Generator
        The seed of all random numbers.
    standardize : bool
        Scale inputs and continuous targets. Then each input column and the targets have the weighted mean 0
        and the standard deviation 1 over the training rows.
    missing : "auto", "refuse" or "keep"
        "auto": `fit` fills in missing inputs, and drops rows whose target is missing or a code such as −9999.
        "refuse": `fit` raises an error for missing values and codes. "keep": like "auto", but `fit` treats
        codes as ordinary targets.
    dtype : "float32" or "float64"
        The floating-point type of rows, kernels and features.
    memory_limit : str, int or None
        A string such as "1GB", a number of bytes, or None, which allows half of the available memory.
        A call raises MemoryLimitError if the process would need more memory.
    time_limit : float or None
        Maximum seconds for a fit. If the limit shortens the fit, `plan_["ended"]` contains the reason.
    devices : None, "all" or int
        The number of devices that share the rows (docs/methods/scale.md). None uses one device.
    verbose : "auto", 0 or 1
        Show progress on stderr. With "auto", progress appears after 3 s, on a terminal or in a notebook.

    Attributes
    ----------
    converged_, plan_, history_
        False if the fit ended early or did not converge; decisions; log of steps (docs/methods/history.md).
    n_iter_, fit_seconds_, n_features_in_, feature_names_in_, target_name_
        Number of steps; duration; number and names of input columns; name of the target column.
    """

    standardize: bool = True

    def __init_subclass__(cls, **given: Any) -> None:
        """Insert the shared parameters and attributes into the docstring of a subclass."""
        super().__init_subclass__(**given)
        bases = [str(base.__doc__) for base in cls.__mro__[1:] if issubclass(base, GPEstimator)]
        parts = [t.partition("----------\n")[2].partition("Attributes\n    ----------\n") for t in bases]
        for name, k in (("{shared}", 0), ("{fitted}", 2)):
            shared = "\n    ".join(filter(None, (part[k].strip() for part in parts)))
            cls.__doc__ = cls.__doc__ and cls.__doc__.replace(name, shared)

    def summary(self) -> str:
        """Describe data, model, noise, accuracy and notes of the fit in at most 20 lines."""
        return summarise(self)


@dataclass(eq=False, repr=False, kw_only=True)
class FamilyRegressor(PosteriorRegressor, GPEstimator):
    """Base class of regressors that fit a single model, not a pool.

    Parameters
    ----------
    mean : None, number, "linear" or "trees"
        Prior mean in target units. None: the average of the targets, or 0 with standardize=False. "linear":
        a ridge regression, not available for feature GPs. "trees": boosted symmetric trees (Friedman, 2001),
        cross-fitted with five folds (Chernozhukov et al., 2018). "linear" and "trees" need rows in memory.
    """

    mean: float | str | None = None
    likelihood: Any = "auto"
    _chosen_likelihood: ClassVar[str | None] = None  # the choice of an earlier fit, which a refit repeats

    @property
    def _target(self) -> str:
        """Return "positive" for transform "log", "count" for transform "count", else "real"."""
        T = self.likelihood.transform if isinstance(self.likelihood, Warped) else None
        if isinstance(T, Log) and T.shift == 0:
            return "positive"
        return COUNT if isinstance(T, str) and T == COUNT else "real"

    @property
    def _likelihood(self) -> Any:
        """Return `likelihood` without its transform. A refit replaces "auto" by an earlier choice."""
        found = self.likelihood.likelihood if isinstance(self.likelihood, Warped) else self.likelihood
        is_auto = isinstance(found, str) and found == "auto"
        return self._chosen_likelihood or found if is_auto else found
