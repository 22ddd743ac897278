"""A run that goes on from another one, with another model or learner: history, steps and seconds are those of both."""

from typing import Any

from stochgp.data.streams import AbstractSource
from stochgp.learning.base import AbstractLearner
from stochgp.learning.fit import fit
from stochgp.learning.log import Report
from stochgp.learning.run import after, joined
from stochgp.models import AbstractGP
from stochgp.results import RESULTS, FitResult

DONE = (RESULTS.successful, RESULTS.not_settled)


def gone_on(
    first: FitResult,
    gp: AbstractGP,
    learner: AbstractLearner,
    source: AbstractSource,
    *,
    closes: bool = False,
    progress: Report | None = None,
    **options: Any,
) -> FitResult:
    """Further steps from `first` on with the model `gp`. `options` are those of `fit`; with the key of `first` the same rows are held out.

    Whether the run has converged is what `first` found; what these steps found, where they close it.
    """
    later = None if progress is None else lambda entry: progress(after(first, entry))
    found = fit(learner, gp, source, progress=later, **options)
    both = joined(first, found)
    return both._replace(converged=found.converged, result=found.result) if closes else both


def unless_ended(first: FitResult, second: FitResult) -> RESULTS:
    """How a run ended whose further part was given up: as the user ended that, or else, if by time or as it diverged, as if it had not been."""
    return second.result if second.result in (RESULTS.interrupted, RESULTS.stopped) else first.result
