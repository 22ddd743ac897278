"""How a run ended."""

import enum
from typing import Any, NamedTuple

from jaxtyping import Array, Float


class RESULTS(enum.Enum):
    """Codes of how a fit or a solve ended; the value is the text for people, with likely causes."""

    successful = "all planned steps were taken and the criterion had settled"
    not_settled = "all planned steps were taken, but the criterion was still moving: more epochs may help"
    tolerance_reached = "the residual, measured on all rows, is within the tolerance"
    steps_exhausted = (
        "the planned steps were taken, but the residual is above the tolerance: more steps, a larger noise variance or "
        "shorter lengthscales would help. The best solution found was kept"
    )
    precision_reached = (
        "the residual stopped falling above the tolerance: the floating-point precision does not allow more for a noise variance "
        "as small as this. The best solution found was kept"
    )
    time_limit = "the time limit ended the run; the best state so far was kept"
    interrupted = "an interrupt ended the run; the best state so far was kept"
    stopped = "the callback ended the run; the best state so far was kept"
    diverged = (
        "the run diverged again and again, even at a much smaller step: is an input on a huge scale, or the noise far too small?"
        " The best state before that was kept"
    )


class FitResult(NamedTuple):
    """What `learners.fit` returns. Losses and NLMLs are per datum, of the targets that the learner saw."""

    gp: Any  # the model with θ̂
    loss: float  # the judge's criterion at the evaluation that is returned; NaN before the first
    evidence: (
        Any  # `learners.Evidence` where the judge knows it: the moments of all rows at θ̂, and the exact NLML
    )
    n_iter: int  # steps taken, trials of rates excluded
    converged: bool
    result: RESULTS
    history: list[dict[str, float]]
    seconds: float
    plan: Any  # `StepPlan`: batches, steps and evaluations as planned
    held_out_rows: int  # that the judge held out
    loss_shift: float = 1.0  # of the "loss" in the history, see `AbstractLearner`
    standard_errors: Any = (
        None  # of unconstrained parameters and of the loss, see `AbstractLearner.standard_errors`
    )
    to_go_on: Any = None  # from with further rows, see `AbstractLearner.to_go_on`

    @property
    def nlml(self) -> float:
        """Exact, of all rows, per datum. AttributeError where the judge does not know it."""
        return self.evidence.nlml

    @property
    def spectrum(self) -> Any:
        """The moments of all rows in their eigenbasis. AttributeError where the judge does not know them."""
        return self.evidence.spectrum


class Solution(NamedTuple):
    """What `solvers.solve` returns for A α = b, b: [N, S]."""

    value: Float[Array, "N S"]  # α, the best found
    result: RESULTS
    converged: bool  # every column's residual is within the tolerance
    residual_norms: Float[Any, " S"]  # ‖b − A α‖ / ‖b‖ of each column, measured on all rows
    n_steps: int
    epochs: float  # passes over the rows of A, those for the checks included
    seconds: float
    history: list[dict[str, float]]
    jitter: float  # added to the diagonal of A, or of its blocks, so that it could be factorised; 0 = none
    residual: Float[Array, "N S"] | None  # b − A α; None where the last point measured is not α
