"""Few rows: features learned again from all of them, with the variances that held-out rows chose."""

import dataclasses
import os
from typing import Any

from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.devices import ONE, Devices
from stochgp.learning.base import AbstractLearner
from stochgp.learning.evidence import ByEvidence
from stochgp.learning.fit import fit, judge_of
from stochgp.learning.going_on import DONE, unless_ended
from stochgp.learning.step_plan import FEW_ROWS
from stochgp.models import FeatureGP
from stochgp.objectives import nlml_of_spectrum
from stochgp.results import FitResult


def closes(first: FitResult, learner: AbstractLearner, source: AbstractSource) -> bool:
    """Whether a run is to be closed so: a whole one of mini-batches that held rows out, of which fewer than FEW_ROWS were left."""
    few = first.held_out_rows > 0 and source.size - first.held_out_rows < FEW_ROWS
    refits = isinstance(judge := judge_of(learner, first.gp), ByEvidence) and judge.refit
    return few and refits and learner.batch_size is not None and first.result in DONE


def on_all_rows(
    first: FitResult,
    gp: FeatureGP,
    learner: AbstractLearner,
    source: AbstractSource,
    rate: float | None,
    *,
    key: PRNGKeyArray,
    checkpoint: str | os.PathLike | None = None,
    devices: Devices = ONE,
) -> FitResult:
    """A run from `gp`, where `first` began, as long and at the same rate, with no rows held out; `first` itself where time ended it.

    A third of few rows is held out, and which third that is, and rounding, moved the error by a half. Features of all rows vary little. Their own likelihood
    would say too small a noise, as they come near to interpolating; so both variances are those of `first`, chosen by rows that it had not seen.
    """
    learner = _closing(first, gp, learner, source.size, rate)
    second = fit(learner, gp, source, key=key, checkpoint=checkpoint, devices=devices)
    if second.result not in DONE or second.evidence is None:
        return first._replace(result=unless_ended(first, second))
    variances = float(first.gp.variance), float(first.gp.noise_variance)
    evidence = first.evidence._replace(
        moments=second.evidence.moments,
        spectrum=second.evidence.spectrum,
        nlml=nlml_of_spectrum(second.evidence.spectrum, *variances)[0],
    )
    closed = second.gp.with_variances(*variances)
    return first._replace(
        gp=closed,
        evidence=evidence,
        n_iter=first.n_iter + second.n_iter,
        seconds=first.seconds + second.seconds,
    )


def _closing(
    first: FitResult, gp: FeatureGP, learner: AbstractLearner, n_rows: int, rate: float | None
) -> AbstractLearner:
    """The learner with as many steps as `first` took, at that rate, that holds no rows out."""
    B, judge = first.plan.batch_size, dataclasses.replace(judge_of(learner, gp), validation_fraction=0.0)
    options: dict[str, Any] = {"batch_size": B, "epochs": max(1, round(first.n_iter / max(1, n_rows // B)))}
    options |= {} if rate is None else {"learning_rate": rate}
    return dataclasses.replace(learner, **options, judge=judge)
