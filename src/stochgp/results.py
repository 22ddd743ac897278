"""How a run ended."""

import enum
from typing import Any, NamedTuple


class RESULTS(enum.Enum):
    """Codes of how a fit ended; the value is the text for people, with likely causes."""

    successful = "all planned steps were taken and the criterion had settled"
    not_settled = "all planned steps were taken, but the criterion was still moving: more epochs may help"
    time_limit = "the time limit ended the run; the best state so far was kept"
    interrupted = "an interrupt ended the run; the best state so far was kept"
    diverged = (
        "the run diverged again and again, even at a much smaller step: is an input on a huge scale, or the noise far too small?"
        " The best state before that was kept"
    )


class FitResult(NamedTuple):
    """What `learners.fit` returns. NLML values are per datum, of the targets that the learner saw."""

    gp: Any  # the model with θ̂, variances refitted
    spectrum: Any  # the moments of all rows at θ̂ in their eigenbasis, from which the posterior follows
    nlml: float  # exact, on all rows
    n_iter: int  # steps taken, trials of rates excluded
    converged: bool
    result: RESULTS
    history: list[dict[str, float]]
    seconds: float
