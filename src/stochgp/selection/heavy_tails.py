"""Student-t noise, fitted to what a feature GP has learned with Gaussian noise, and learned on from there."""

import dataclasses
from typing import Any

from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.devices import ONE, Devices
from stochgp.learners.scgd import SCGD
from stochgp.learning.base import AbstractLearner
from stochgp.learning.evidence import ByEvidence
from stochgp.learning.fit import fit, judge_of
from stochgp.learning.run import Going
from stochgp.results import FitResult
from stochgp.selection.noise_of_inputs import learned_further

START_DF = 10.0
ROUNDS = 4  # of weights of rows, both variances and ν in turn


def heavy_tailed(
    first: FitResult,
    learner: AbstractLearner,
    source: AbstractSource,
    *,
    key: PRNGKeyArray,
    df: float | None = None,
    devices: Devices = ONE,
) -> FitResult:
    """`first` with its features, and Student-t noise: ν, unless it is given, and both variances are those of the held-out rows' predictive density.

    The rows held out are those of `first` where `key` is. ν comes from START_DF in ROUNDS rounds, each an evaluation of the judge. Raises ValueError for a ν
    that no held-out rows can find.
    """
    if df is None and first.held_out_rows == 0:
        raise ValueError(
            "the degrees of freedom of a Student-t are found by rows held out, and there are none: give StudentT(frozen(df))"
        )
    found, nu = first, START_DF if df is None else df
    for _ in range(ROUNDS):
        student = _of_df(learner, first, nu, keeps=df is not None)
        found = fit(student, found.gp, source, key=key, max_steps=0, devices=devices)
        nu = found.evidence.df or nu  # a run that was cut at once has none
    return first._replace(gp=found.gp, evidence=found.evidence, loss=found.loss)


def learned_with_tails(
    first: FitResult, learner: AbstractLearner, source: AbstractSource, going: Going
) -> FitResult:
    """`first`, of Student-t noise, learned on by the steps of that noise, with ν held; `first` where no held-out rows found that better."""
    if not isinstance(learner, SCGD):
        return first
    student = _of_df(learner, first, first.evidence.df, keeps=True)
    found = learned_further(first, first.gp, student, source, going)
    scores = [run.evidence.held_out_nlpd for run in (first, found)]
    is_better = None not in scores and scores[1] < scores[0]
    return found if is_better else found._replace(gp=first.gp, evidence=first.evidence, loss=first.loss)


def _of_df(learner: AbstractLearner, first: FitResult, df: float, *, keeps: bool) -> Any:
    """The learner, with a judge of Student-t noise."""
    judge = judge_of(learner, first.gp)
    if not isinstance(judge, ByEvidence):
        raise ValueError("Student-t noise is fitted by the evidence of all rows: judge=ByEvidence()")
    judge = dataclasses.replace(judge, df=df, keeps_df=keeps)
    options = {"df": df} if isinstance(learner, SCGD) else {}
    return dataclasses.replace(learner, judge=judge, **options)
