"""What the regressors of all families share: targets as numbers, their transforms and calibrations."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from stochgp.data.rows import Rows
from stochgp.estimators.base import GPEstimator
from stochgp.estimators.calibrating import set_aside
from stochgp.estimators.helps import Scores, scores
from stochgp.estimators.predictor import PosteriorRegressor
from stochgp.selection.likelihood import data_of_counts
from stochgp.selection.warping import (
    targets_in_files,
    transform_wanted,
    untransformed,
    warped_data,
    warped_files,
)
from stochgp.tables.targets import CountTargets, refuse_no_counts
from stochgp.training_data.files import are_files, read_files
from stochgp.training_data.fingerprinted import Inputs
from stochgp.training_data.inputs import read_training_rows
from stochgp.training_data.new_rows import between_if
from stochgp.training_data.run import Run
from stochgp.training_data.units import MEANS, TrainingData


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
    _means: ClassVar[tuple[str, ...]] = tuple(MEANS)  # fitted ones that its prior mean may be
    likelihood: Any = "auto"
    _chosen_likelihood: ClassVar[str | None] = None  # by an earlier fit of more or fewer rows
    target: str = "real"
    calibration: str | None = None
    target_outliers: str = "warn"

    def _read_data(self, X: Any, y: Any, sample_weight: Any, groups: Any, run: Run) -> TrainingData:
        """What the model learns from, of rows in memory or in files."""
        inputs, wanted = self._inputs(), transform_wanted(self.likelihood, self._target)
        if isinstance(self.mean, str):
            self._check_mean(are_files(X), inputs)
        if are_files(X) and self._calibration is not None:
            raise ValueError("calibration takes rows in memory, not files: read the table first")
        if self._counts_as_they_are and wanted is not None:
            raise ValueError(
                f"likelihood {self._likelihood!r} takes counts as they are: leave the transform, or target=, out"
            )
        if are_files(X):
            if inputs is not Inputs.NUMBERS:
                raise ValueError("the Tanimoto kernel takes rows in memory, not files: read the table first")
            targets = CountTargets() if self._counts_as_they_are else targets_in_files(wanted, self._target)
            others, seed = {"sample_weight": sample_weight, "groups": groups}, run.sample_seed
            more = {"keeps_all": self._keeps_all_rows, "targets": targets}
            data, found = read_files(self, X, y, others, run.budget, seed, **more)
            return warped_files(data, found) if wanted is not None else data
        place = between_if(self._calibration is not None, self.new_rows)
        given = X, y, sample_weight, run.budget, self.missing, groups, inputs, place
        rows, encoder, entries = read_training_rows(self, *given)
        settings = bool(self.standardize), self.mean, self.dtype, inputs is not Inputs.NUMBERS
        left_out = None
        if self._calibration is not None:
            rows, left_out = set_aside(rows, self._calibration, self._target, run.sample_seed)
        if self._counts_as_they_are:
            data = data_of_counts(rows, settings[0], self.dtype)
        elif wanted is None:
            data = TrainingData.of(rows, *settings)
        else:
            if self._target == "count":
                refuse_no_counts(rows.y)
            data = warped_data(rows, wanted, settings, run.sample_seed)
        return dataclasses.replace(data, left_out=left_out, encoder=encoder, entries=entries | data.entries)

    def _check_mean(self, are_files: bool, inputs: Inputs) -> None:
        """Raises ValueError where no line, or no trees, can be taken out."""
        refusals = {
            "is not taken by a feature GP: it has a line with features='linear'": self.mean
            not in self._means,
            "takes rows in memory, not files: read the table first": are_files,
            "takes numbers, not fingerprints": inputs is not Inputs.NUMBERS,
            "is not taken with a likelihood of counts: give a number": self._counts_as_they_are,
        }
        for what, holds in refusals.items():
            if holds:
                raise ValueError(f"mean={self.mean!r} {what}")

    @property
    def _calibration(self) -> str | None:
        return self.calibration

    @property
    def _target(self) -> str:
        return self.target

    @property
    def _counts_as_they_are(self) -> bool:
        """Whether the likelihood is of counts, which are neither transformed nor standardised."""
        return False

    @property
    def _likelihood(self) -> Any:
        """`likelihood=` of the targets that the model sees, which may be transformed."""
        return untransformed(self.likelihood)

    def _scores(self, rows: Rows) -> Scores:
        return scores(self._fitted, rows)
