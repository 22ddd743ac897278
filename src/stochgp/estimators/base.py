"""What the estimators of all families share: their settings and their summary. Each family has its own `fit`."""

import html
from dataclasses import dataclass
from typing import Any, ClassVar

from stochgp.estimators.predictor import PosteriorEstimator, PosteriorRegressor
from stochgp.estimators.report import summarise
from stochgp.likelihoods import Warped


@dataclass(eq=False, repr=False, kw_only=True)
class GPEstimator(PosteriorEstimator):
    """An estimator of one family.

    Parameters
    ----------
    batch_size, epochs, learning_rate
        Of the learner: None = its own, or chosen for you; given here and in a learner: ValueError.
    new_rows : "auto", "between" or "after"
        Between the training rows, or after them in time, held out in blocks of it. "auto": after, where dates or increasing columns say when, and it matters.
    random_state : None, an integer, a NumPy RandomState or Generator
    standardize : bool, inputs, and real targets, to mean 0 and standard deviation 1 by the (weighted) training rows
    missing : "auto": gaps are filled in, rows without a target and columns that tell nothing left out (docs/methods/data.md); "refuse": errors
    dtype : "float32" or "float64", of rows, kernel and features; sums over rows and small factorisations are float64 in any case
    memory_limit : "1GB", bytes or None (half of what is available), for the process during a call; what exceeds it is refused
    time_limit : seconds that the whole fit may take; what would end later is not begun, and `plan_["ended"]` says what was done instead
    devices : None = one; "all", a number of them, or a list of JAX's devices or their numbers: what they share, `plan_` says (docs/methods/devices.md)
    verbose : 0, or 1 for progress on stderr
    """

    # scikit-learn wants any value taken by `__init__`, and judged in `fit`.
    __no_type_check__: ClassVar[bool] = True
    batch_size: int | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    standardize: bool = True
    memory_limit: str | int | float | None = None
    time_limit: float | None = None
    dtype: str = "float32"
    random_state: Any = None
    verbose: int = 0
    missing: str = "auto"
    devices: Any = None
    new_rows: str = "auto"

    def __init_subclass__(cls, **given: Any) -> None:
        """`help` shows the parameters that all estimators share, and all regressors, after those of the family."""
        super().__init_subclass__(**given)
        if cls.__doc__ is not None and "{shared}" in cls.__doc__:
            shared = [
                str(base.__doc__).partition("----------\n")[2]
                for base in cls.__mro__[1:]
                if issubclass(base, GPEstimator)
            ]
            cls.__doc__ = cls.__doc__.replace("{shared}", "\n    ".join(part.strip() for part in shared))

    def summary(self) -> str:
        """The fitted model in words: data, kernel or features, noise, how far from exact, what was chosen and why."""
        return summarise(self)

    def _html_repr(self) -> str:
        """In notebooks: what scikit-learn shows, and the summary."""
        from sklearn.utils import estimator_html_repr  # slow to load

        text = f"<pre>{html.escape(self.summary())}</pre>" if hasattr(self, "plan_") else ""
        return estimator_html_repr(self) + text


@dataclass(eq=False, repr=False, kw_only=True)
class FamilyRegressor(PosteriorRegressor, GPEstimator):
    """A regressor of one family.

    Parameters
    ----------
    mean : None, number, "linear" or "trees"
        Prior mean in target units; None = the average of the targets, or 0 with standardize=False. "linear": a + bᵀx by ridge regression, so that f is what a
        line leaves; not of feature GPs. "trees": a sum of symmetric trees by boosting, cross-fitted: each of five folds is predicted by trees of the others, and f is what these leave
        (Friedman, 2001; Chernozhukov et al., 2018). Both are of rows in memory.
    target : "real", "positive" or "count"
        "positive": log y is modelled, so that predictions are positive; "count": log(y + ½), and predictions are counts.
    calibration : None, "pit" or "conformal"
        "pit": the distributions, or "conformal": the intervals of observations are corrected by a tenth of the rows, 100 to 2,000 of them, that the fit does
        not see.
    target_outliers : "warn", "refuse" or "keep"
        Targets far from all others, more than 20 robust standard deviations from the median. "warn": codes for missing values such as −9999 are left out,
        others are learned from, with a warning for both (docs/methods/data.md). "refuse": ValueError. "keep": all are learned from.
    """

    mean: float | str | None = None
    likelihood: Any = "auto"
    _chosen_likelihood: ClassVar[str | None] = None  # by an earlier fit of more or fewer rows
    target: str = "real"
    calibration: str | None = None
    target_outliers: str = "warn"

    @property
    def _likelihood(self) -> Any:
        """`likelihood=` of the targets that the model sees, which may be transformed."""
        return self.likelihood.likelihood if isinstance(self.likelihood, Warped) else self.likelihood
