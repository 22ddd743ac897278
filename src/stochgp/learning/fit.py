"""`fit`, which runs any learner, and runs that follow others."""

import os
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from stochgp.data.memory import MemorySource
from stochgp.deadline import within
from stochgp.devices import together
from stochgp.learners.base import AbstractLearner
from stochgp.learning.run import Report, Run
from stochgp.models import AbstractGP
from stochgp.results import RESULTS, FitResult

DONE = (RESULTS.successful, RESULTS.not_settled)


def fit(
    learner: AbstractLearner,
    gp: AbstractGP,
    source: MemorySource,
    *,
    key: PRNGKeyArray,
    progress: Report | None = None,
    checkpoint: str | os.PathLike | None = None,
    time_limit: float | None = None,
    max_steps: int | None = None,
    prior: AbstractGP | None = None,
) -> FitResult:
    """Learn θ of `gp` from the rows of `source`.

    After every stretch of steps the learner's evaluator evaluates the state, the history gets an entry, and the checkpoint is written. A criterion that is
    not finite, or 1 nat per datum above the lowest (a mean of noisy losses: by three of its standard errors), returns the run to the state of the
    lowest one, at 0.3 of the rate. This happens at most 6 times; such entries have `recovered` 1. The evaluator says which state the run returns, and
    which rates are tried first. Of several processes all call this with the same rows; process 0 alone reads and writes the checkpoint.

    `converged`: the learner has finished; or all planned steps were taken and the evaluator finds the run settled.

    Raises CheckpointError, a ValueError, for a damaged checkpoint and for that of another run.

    Parameters
    ----------
    learner, gp : AbstractLearner, AbstractGP
        How θ is learned; the model, with the θ at which the run starts.
    source : MemorySource
        All rows, of which the evaluator may hold some out. Its mesh shares passes and large batches.
    key : JAX key
        Of all that is random: held-out rows, preparation, first state and steps.
    progress : function or None
        Called with every entry of the history; if it returns True, the run ends as by Ctrl-C.
    checkpoint : path or None
        A file: if it exists, the run resumes from it and gives the same result as an unbroken one.
    time_limit, max_steps : float or None, int or None
        Seconds, and steps; 0 steps = the model is evaluated as it is. They, a deadline around this call (`deadline.within`) and Ctrl-C end the run
        with the state that it would return. No step and no evaluation is begun that is expected to end later.
    prior : AbstractGP or None
        The parameters around which the prior of a learner is; None = those of `gp`.
    """
    with jax.enable_x64(True), together(source.mesh), within(time_limit):
        return Run(learner, gp, source, key, max_steps, progress, prior).result(checkpoint)


def continued(
    first: FitResult,
    gp: AbstractGP,
    learner: AbstractLearner,
    source: MemorySource,
    *,
    progress: Report | None = None,
    **options: Any,
) -> FitResult:
    """`first` and a run that follows it with another model and learner: steps, seconds and history of both. `options` are those of `fit`.

    With the key of `first` the same rows are held out.
    """
    later = lambda entry: entry | {"step": entry["step"] + first.n_iter, "stage": 1.0}
    report = None if progress is None else lambda entry: progress(later(entry))
    second = fit(learner, gp, source, progress=report, **options)
    return second._replace(
        n_iter=first.n_iter + second.n_iter,
        history=[*first.history, *map(later, second.history)],
        seconds=first.seconds + second.seconds,
        plan=first.plan,
    )


def unless_ended(first: FitResult, second: FitResult) -> RESULTS:
    """The result of a run whose second part was given up: that of the second if the user ended it, else that of the first."""
    return second.result if second.result in (RESULTS.interrupted, RESULTS.stopped) else first.result
