"""Few rows: features learned again from all of them, with the variances that held-out rows chose."""

import dataclasses
from typing import Any

from stochgp.context import FitContext
from stochgp.data.streams import AbstractSource
from stochgp.learners.base import AbstractLearner
from stochgp.learners.evidence import ByEvidence
from stochgp.learners.step_plan import FEW_ROWS
from stochgp.learning.fit import DONE, evaluator_of, fit, unless_ended
from stochgp.models import FeatureGP
from stochgp.objectives import nlml_of_spectrum
from stochgp.results import FitResult


def refit_on_all_rows(
    first: FitResult,
    gp: FeatureGP,
    learner: AbstractLearner,
    source: AbstractSource,
    context: FitContext,
) -> FitResult:
    """A run from `gp`, where `first` began, as long and at the same rate, with no rows held out. `first` itself if it trained on many rows, or if time ended the second run.

    A third of few rows is held out, and which third that is, and rounding, moved the error by a half. Features of all rows vary little. Their own likelihood
    would say too small a noise, as they come near to interpolating; so both variances are those of `first`, chosen by rows that it had not seen.
    """
    evaluator = evaluator_of(learner, first.gp)
    few = first.held_out_rows > 0 and source.size - first.held_out_rows < FEW_ROWS
    refits = isinstance(evaluator, ByEvidence) and evaluator.refit and learner.batch_size is not None
    if not (few and refits and first.result in DONE):
        return first
    again = _without_held_out_rows(first, gp, learner, source.size)
    checkpoint = context.checkpoint_of("refit")
    second = fit(again, gp, source, key=context.learn_key, checkpoint=checkpoint, devices=context.devices)
    if second.result not in DONE or second.evidence is None:
        return first._replace(result=unless_ended(first, second))
    variances = float(first.gp.variance), float(first.gp.noise_variance)
    evidence = first.evidence._replace(
        moments=second.evidence.moments,
        spectrum=second.evidence.spectrum,
        nlml=nlml_of_spectrum(second.evidence.spectrum, *variances)[0],
    )
    context.report["refit_steps"] = second.n_iter
    return first._replace(
        gp=second.gp.with_variances(*variances),
        evidence=evidence,
        n_iter=first.n_iter + second.n_iter,
        seconds=first.seconds + second.seconds,
    )


def _without_held_out_rows(
    first: FitResult, gp: FeatureGP, learner: AbstractLearner, n_rows: int
) -> AbstractLearner:
    """The learner with as many steps as `first` took, at its rate, that holds no rows out."""
    B, evaluator = (
        first.plan.batch_size,
        dataclasses.replace(evaluator_of(learner, gp), validation_fraction=0.0),
    )
    options: dict[str, Any] = {"batch_size": B, "epochs": max(1, round(first.n_iter / max(1, n_rows // B)))}
    if learner.learning_rate is None:  # the rate that trials chose; None if a rule of the step sets it
        options["learning_rate"] = next((entry["rate"] for entry in first.history if "rate" in entry), None)
    return dataclasses.replace(learner, **options, evaluator=evaluator)
