"""What the regressors of all families share: settings of targets, of their transforms and of calibration."""

from dataclasses import dataclass
from typing import Any, ClassVar

from stochgp.estimators.base import GPEstimator
from stochgp.estimators.predictor import PosteriorRegressor
from stochgp.likelihoods import Warped


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
