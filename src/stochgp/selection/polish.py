"""Hyperparameters of leave-one-out learned on by likelihoods, Vecchia's and the exact one of a subset, where left-out rows gain by it."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import AS_ASKED, AS_GIVEN, choice
from stochgp.data.streams import AbstractSource
from stochgp.learners import FullBatch, LeaveOneOut, Vecchia
from stochgp.learners.conditionals import SCORINGS, TRIAL_ROWS
from stochgp.learning.base import AbstractLearner
from stochgp.learning.going_on import DONE, gone_on, unless_ended
from stochgp.learning.log import Report
from stochgp.models import KernelGP
from stochgp.numerics.clustered import folds
from stochgp.objectives.dispersion import student_dispersion
from stochgp.results import FitResult
from stochgp.selection.choices import LOCAL_ROWS, SUBSET_ROWS
from stochgp.selection.left_out import OVERHEAD, SEED, JudgingRows, Scores, some_rows
from stochgp.training_data.run import Run

TRIAL, VECCHIA, UNTURNED, EXACT = "vecchia-trial", "vecchia", "vecchia-before-turns", "full-batch"
ROWS = 8192  # left out, to judge


def with_polish(
    is_automatic: bool,
    first: FitResult,
    turned: FitResult,
    learner: AbstractLearner,
    source: AbstractSource,
    run: Run,
    report: Report,
) -> tuple[FitResult, dict[str, Any]]:
    """(`turned`, or what the likelihoods make of it where left-out rows gain; what `plan_` says of that).

    Scoring steps of Vecchia's likelihood come first, of all scored rows where fewer steps of 4,096 pay. Where they pay, they are taken from `first` too, the run before
    its lengthscales were turned (`turned` itself where they were not), and the better of both ends is kept. From there the exact likelihood of 3,000 rows is tried.

    Leave-one-out has the θ of the highest density of rows given their neighbours, so by that density no other θ could win. But the scale and the tails of errors are
    fitted afterwards (`selection.dispersion`). So rows are scored by a Student-t density around the same mean, and of a scale proportional to the same
    standard deviation, whose factor and ν are fitted to the other half of the rows.
    """
    planned = run.planned_or_none("polish")
    if run.plan is not None and planned is None:
        return turned, {"polish": choice(None, AS_GIVEN)}
    if not isinstance(learner, LeaveOneOut):
        return turned, {"polish": choice(None, "only leave-one-out is learned on")}
    if refusal := _refusal(is_automatic, turned, learner, source, run.budget):
        return turned, {"polish": choice(None, refusal)}
    polish = _Polish.of(learner, source, run, report)
    if planned is not None:
        best = polish.learned(turned, VECCHIA)
        best = polish.learned(best, EXACT) if planned == EXACT else best
        return best, {"polish": choice(planned, AS_GIVEN)}
    trial, promises, why = polish.compared(turned, turned, TRIAL)
    if not promises:
        return trial, {"polish": choice(None, why)}
    best, is_better, why = polish.compared(turned, turned, VECCHIA)
    if not is_better:
        return best, {"polish": choice(None, why)}
    entries = {}
    if turned is not first:
        best, is_better, unturned = polish.compared(best, first, UNTURNED)
        entries = {"metric": choice(0, unturned)} if is_better else {}
    best, is_better, exact = polish.compared(best, best, EXACT)
    return best, entries | {"polish": choice(EXACT if is_better else VECCHIA, f"{why}; {exact}")}


def _refusal(
    is_automatic: bool,
    found: FitResult,
    learner: LeaveOneOut,
    source: AbstractSource,
    budget: Budget,
) -> str | None:
    """Why no further steps are tried; None where they can be."""
    if not is_automatic:
        return AS_ASKED
    if source.size > LOCAL_ROWS:
        return f"beyond {LOCAL_ROWS:,} rows near rows say nearly all"
    if source.in_groups:
        return "Vecchia's likelihood takes no notice of groups"
    if found.result not in DONE:
        return "the run was ended before further steps could be tried"
    needs = (of.need_bytes(found.gp, source.size, source.n_inputs) for of in _further(learner).values())
    return "no memory to try further steps" if max(needs) > budget.free() else None


def _further(learner: LeaveOneOut) -> dict[str, AbstractLearner]:
    """A few scoring steps of as many rows, and the likelihood of a subset, with the same prior."""
    vecchia = Vecchia(n_centres=learner.n_centres, spread=learner.spread).closing()
    trial = dataclasses.replace(vecchia, n_centres=min(TRIAL_ROWS, learner.n_centres), epochs=SCORINGS)
    exact = FullBatch(subset_rows=SUBSET_ROWS, precision="float64", spread=learner.spread)
    return {TRIAL: trial, VECCHIA: vecchia, UNTURNED: vecchia, EXACT: exact}


@dataclasses.dataclass(frozen=True)
class _Polish:
    """How the steps are taken, and the rows that judge them."""

    learners: dict[str, AbstractLearner]
    source: AbstractSource
    run: Run
    report: Report
    judges: JudgingRows
    half: Int[np.ndarray, " R"]

    @classmethod
    def of(cls, learner: LeaveOneOut, source: AbstractSource, run: Run, report: Report) -> "_Polish":
        judges = JudgingRows.of(source, some_rows(source.size, ROWS))
        half = folds(len(judges.rows), None, 2, SEED)
        return cls(_further(learner), source, run, report, judges, half)

    def learned(self, start: FitResult, name: str) -> FitResult:
        """One run of `start` and of the further steps of that name; `start`, if these were ended."""
        going = self.run.going(self.report, f"polish.{name}")
        found = gone_on(start, start.gp, self.learners[name], self.source, going, closes=True)
        return found if found.result in DONE else start._replace(result=unless_ended(start, found))

    def compared(self, old: FitResult, start: FitResult, name: str) -> tuple[FitResult, bool, str]:
        """(What the steps make of `start` where left-out rows prefer it to `old`, else `old`; whether they do; why)."""
        if old.result not in DONE:
            return old, False, "the run was ended before further steps"
        if deadline.left() < start.seconds + OVERHEAD:
            return old, False, "no time was left for further steps"
        new = self.learned(start, name)
        if new.gp is start.gp:
            return old._replace(result=unless_ended(old, new)), False, "further steps were ended"
        found = self.judges.preferred(self.scores(old.gp), self.scores(new.gp), name)
        is_better = found.name is not None
        return new if is_better else old, is_better, f"by left-out rows: {found.why}"

    def scores(self, gp: KernelGP) -> Scores:
        """log p of each judging row given its neighbours."""
        found, weight = self.judges.predicted(gp), self.judges.weight
        squares = np.square(np.asarray(found.z, np.float64))
        scores = -0.5 * np.log(np.asarray(found.variance, np.float64))
        for number in range(2):
            fitted, scored = self.half != number, self.half == number
            shape = student_dispersion(squares[fitted], weight=weight[fitted])
            scores[scored] += shape.log_density(squares[scored], np.zeros(1))
        return scores
