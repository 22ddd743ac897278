"""The interface of scikit-learn that all estimators share: settings, and everything that follows from a posterior. Each family has its own `fit`."""

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

FEW_BYTES = 1 << 25  # whose check would take longer than the prediction of a row

logger = logging.getLogger("stochgp.estimators")


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int | np.integer) and not isinstance(v, bool) and bool(v >= least)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {  # what a value must be, and how that is said
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
    "members": (lambda v: len(v) > 0, "'auto', or name at least one estimator"),
}
CHOICES = {
    "dtype": ("float32", "float64"),
    "missing": ("auto", "refuse", "keep"),
    "time_order": ("auto", "interpolate", "forecast"),
}


def check_settings(settings: dict[str, Any], choices: Mapping[str, tuple[str, ...]] = CHOICES) -> None:
    """Raise ValueError, naming the setting, its value and what it must be, or TypeError for another kind of thing."""
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
    """A scikit-learn estimator whose `fit` leaves a `Fitted`, or a pool of these, in `_fitted`. Its settings are described by `GPEstimator`."""

    # scikit-learn requires that `__init__` takes any value, and that `fit` checks it.
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
        """Write the fitted model to one safetensors file, or to a binary file object; `stochgp.load` reads it. Of the data only a kernel GP keeps rows and targets.

        Raises ValueError, naming it, for a part that is neither of this package nor of Equinox, nor registered by `stochgp.register`, and warns
        of settings that the file cannot hold.
        """
        check_is_fitted(self)
        save(self, path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "refuse"
        return tags

    def __getstate__(self) -> dict[str, Any]:
        return pack(dict(vars(self)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(unpack(state))

    def _read(self, X: Any, *, learns: bool = False) -> Float[np.ndarray, "N D"]:
        """Return checked inputs, with warnings about odd ones; rows to learn from may be outside of the training range."""
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
        """Return the distribution of an observation at each row of `_read`, if the memory limit allows it."""
        self._reserve(f"{what} at {len(X)} rows", len(X), bytes_of_row * len(X))
        return self._fitted.distribution(X)

    def _reserve(self, what: str, n_rows: int = 0, results: int = 0, **wanted: Any) -> None:
        """Refuse what would exceed the memory limit (`AbstractPosterior.need_bytes`, and so many bytes of results). Few bytes always fit into half of what is available."""
        need = self._fitted.need_bytes(n_rows, **wanted) + results
        if self.memory_limit is not None or need > FEW_BYTES:
            Budget.of(self.memory_limit).require(need, what)


class PosteriorRegressor(RegressorMixin, PosteriorEstimator):
    """Predictions of a regressor, from its `Fitted`."""

    mean: float | str | None
    _checks_targets: ClassVar[bool] = True  # False for members of a pool, which has checked them

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = False
    ) -> Any:
        """Mean and uncertainty of the latent function f, without the observation noise unless `include_noise=True`.

        Rows are taken in blocks, so that memory grows with N only by the result.

        Parameters
        ----------
        X
            Rows [N, D], with the columns of `fit`.
        return_std, return_cov : bool
            One of them: the standard deviation [N], or the covariance [N, N] too.
        include_noise : bool
            False: of f, as in scikit-learn. True: of an observation, whose variance is that of f and of the noise.

        Returns
        -------
        The mean [N], or a pair of it and what was asked for. All float64, in target units, covariances in their squares.

        Raises
        ------
        ValueError
            For both at once, for inputs that cannot be used, and for a covariance over the memory limit (with both numbers).
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other: ask for one of them")
        X = self._read(X)
        if return_cov:
            self._reserve(f"a covariance of {len(X)} rows", len(X), covariance=True)
            mean = self._fitted.mean(X)
            return mean, self._fitted.covariance(X, include_noise=include_noise)
        self._reserve(f"predictions for {len(X)} rows", len(X))
        if return_std:
            return self._fitted.mean_and_std(X, include_noise=include_noise)
        return self._fitted.mean(X)

    def predict_distribution(self, X: Any) -> AbstractDistribution:
        """Return the distribution of an observation at each row, noise included, in target units: a value of `stochgp.distributions`.

        Returns
        -------
        A value with `logpdf`, `cdf`, `sf`, `quantile`, `interval`, `mean`, `std`, `sample` and `crps`, each of all rows at once. A Gaussian's `mean`
        and `std` are those of `predict(X, return_std=True, include_noise=True)`.
        """
        return self._distribution(self._read(X), "distributions", 24)

    def predict_quantiles(self, X: Any, q: Any) -> Float[np.ndarray, " N *Q"]:
        """Return the quantiles of an observation at each row, noise included, in target units.

        For a Gaussian they are mean + std · Φ⁻¹(q). The result is [N] for a number q and [N, Q] for a list.

        Raises
        ------
        ValueError
            Unless every q is above 0 and below 1.
        """
        found = np.asarray(q, np.float64)
        if found.ndim > 1 or not np.all((found > 0) & (found < 1)):
            raise ValueError(f"q is {q!r}; it must be a number, or a list of numbers, above 0 and below 1")
        distribution = self._distribution(self._read(X), f"{found.size} quantiles", 16 * found.size)
        return distribution.quantile(found)

    def predict_frame(self, X: Any, level: float = 0.95) -> Any:
        """Return a pandas data frame of predicted observations, noise included, with the index of X.

        Its columns are mean, std (the standard deviation), median, lower and upper; the last two are the ends of `predict_interval`.
        """
        frame = self._distribution(self._read(X), "intervals", 32).to_frame(level)
        return frame.set_axis(X.index) if hasattr(X, "index") and hasattr(X, "loc") else frame

    def predict_interval(self, X: Any, level: float = 0.95) -> Float[np.ndarray, "N 2"]:
        """Return (lower, upper) of the central interval that contains an observation at each row with probability `level`.

        The noise is included.

        Raises
        ------
        ValueError
            Unless 0 < level < 1.
        """
        return self._distribution(self._read(X), "intervals", 32).interval(level)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, include_noise: bool = False
    ) -> Float[np.ndarray, "N S"]:
        """Joint draws of f at the rows of X from the posterior, in target units; with `include_noise` of observations there.

        Observations have independent noise, and at each row the distribution of `predict_distribution`, heavy tails and corrections included; what a pool corrects in the
        probabilities of its mixture, and its frequent values, are not.
        """
        key = as_key(random_state)
        functions = self.sample_functions(n_samples, key)
        X = self._read(X)
        self._reserve(f"{n_samples} samples at {len(X)} rows", results=24 * len(X) * n_samples)
        if include_noise:
            return self._fitted.observed(functions, X, key=split_key(key)[1])
        return functions.at_numbers(X)

    def sample_functions(self, n_samples: int, random_state: Any = 0) -> Any:
        """Whole functions drawn from the posterior: `f = model.sample_functions(8)`, then `f(X)` is [rows, 8], in target units.

        With a JAX array X it is differentiable; with a NumPy array or a data frame it is evaluated in blocks. Raises ValueError unless
        `n_samples` is a whole number of at least 1.
        """
        check_is_fitted(self)
        if isinstance(n_samples, bool) or int(n_samples) != n_samples or n_samples < 1:
            raise ValueError(f"n_samples is {n_samples!r}; it must be a whole number of at least 1")
        n_samples = int(n_samples)
        self._reserve(f"drawing {n_samples} functions", n_samples=n_samples)
        return self._fitted.sample_functions(n_samples, key=as_key(random_state))


class PosteriorClassifier(ClassifierMixin, PosteriorEstimator):
    """Predictions of a classifier, from its `Fitted`, whose distribution is `Categorical`."""

    classes_: np.ndarray

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """P(y = c) of each row and class, in the order of `classes_`, averaged over the posterior of the latent functions."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """Return the logarithms of the probabilities, accurate where these are small."""
        X = self._read(X)
        return self._distribution(X, "probabilities", 32 * len(self.classes_)).log_probabilities

    def predict(self, X: Any) -> Shaped[np.ndarray, " N"]:
        """Return the most probable class of each row."""
        most_probable = np.argmax(self.predict_log_proba(X), axis=1)
        return self.classes_[most_probable]


@dataclass(eq=False, repr=False, kw_only=True)
class GPEstimator(PosteriorEstimator):
    """An estimator of one family.

    Parameters
    ----------
    time_order : "auto", "interpolate" or "forecast"
        New rows lie between the training rows, or after them in time; then whole blocks of time are held out. "auto": "forecast", if dates or increasing
        columns give the time, and errors of neighbours in time resemble each other.
    random_state : None, an integer, a NumPy RandomState or Generator
    standardize : bool, inputs, and real targets, to mean 0 and standard deviation 1 by the (weighted) training rows
    missing : "auto": gaps are filled in, rows without a target, or with a code such as −9999 for a missing one, are left out (docs/methods/data.md);
        "refuse": errors; "keep": as "auto", but codes are learned from
    dtype : "float32" or "float64", of rows, kernel and features; sums over rows and small factorisations are float64 in any case
    memory_limit : "1GB", bytes or None (half of what is available), for the process during a call; what exceeds it is refused
    time_limit : seconds that the whole fit may take; what would end later is not begun, and `plan_["ended"]` says what was done instead
    devices : None, "all" or a number: one device, all, or so many; `plan_` reports what they share (docs/methods/devices.md)
    verbose : "auto", 0 or 1
        "auto": fits of more than 3 s show a line of progress on a terminal or in a notebook; 0: nothing; 1: progress everywhere, and notes, on stderr.

    Attributes
    ----------
    converged_, plan_, history_
        False if a limit ended the run (see the learner's docstring); choices and reasons; a dict per evaluation (docs/methods/history.md).
    n_iter_, fit_seconds_, n_features_in_, feature_names_in_, target_name_
        Steps; seconds; inputs and names, the latter for data frames.
    """

    standardize: bool = True

    def __init_subclass__(cls, **given: Any) -> None:
        """`help` shows the parameters and attributes that estimators share after those of the family."""
        super().__init_subclass__(**given)
        if cls.__doc__ is None or "{shared}" not in cls.__doc__:
            return
        parts = [
            str(base.__doc__).partition("----------\n")[2].partition("Attributes\n    ----------\n")[::2]
            for base in cls.__mro__[1:]
            if issubclass(base, GPEstimator)
        ]
        for name, shared in zip(("{shared}", "{fitted}"), zip(*parts, strict=True), strict=True):
            cls.__doc__ = cls.__doc__.replace(name, "\n    ".join(filter(None, map(str.strip, shared))))

    def summary(self) -> str:
        """Describe the fitted model in at most 20 lines: data, model, noise, accuracy, notes; `print(plan_)` shows all decisions."""
        return summarise(self)


@dataclass(eq=False, repr=False, kw_only=True)
class FamilyRegressor(PosteriorRegressor, GPEstimator):
    """A regressor of one family.

    Parameters
    ----------
    mean : None, number, "linear" or "trees"
        Prior mean in target units; None = the average of the targets, or 0 with standardize=False. "linear": a + bᵀx by ridge regression, so that f is what a
        line leaves; not of feature GPs. "trees": a sum of symmetric trees by boosting, cross-fitted: each of five folds is predicted by trees of the others, and f is what these leave
        (Friedman, 2001; Chernozhukov et al., 2018). Both are of rows in memory.
    """

    mean: float | str | None = None
    likelihood: Any = "auto"
    _chosen_likelihood: ClassVar[str | None] = None  # by an earlier fit of more or fewer rows

    @property
    def _target(self) -> str:
        """Return "positive" or "count" if the targets are transformed by "log" or "count", else "real"."""
        T = self.likelihood.transform if isinstance(self.likelihood, Warped) else None
        if isinstance(T, Log) and T.shift == 0:
            return "positive"
        return COUNT if isinstance(T, str) and T == COUNT else "real"

    @property
    def _likelihood(self) -> Any:
        """`likelihood=` of the targets that the model sees, which may be transformed; for "auto" the choice of an earlier fit."""
        found = self.likelihood.likelihood if isinstance(self.likelihood, Warped) else self.likelihood
        is_auto = isinstance(found, str) and found == "auto"
        return self._chosen_likelihood or found if is_auto else found
