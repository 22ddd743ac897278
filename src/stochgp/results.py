"""Results of runs, and estimates with standard errors."""

import enum
from typing import Any, NamedTuple

from jaxtyping import Array, Float


class RESULTS(enum.Enum):
    """Reasons why a fit or a solve ended; values are messages with likely causes."""

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


class Estimate(NamedTuple):
    """A number and its standard error.

    Parameters
    ----------
    value, stderr : float
        The number; 0 for an exact one.
    """

    value: float
    stderr: float = 0.0


class ExactNLML(NamedTuple):
    """The exact negative log marginal likelihood at one θ.

    Parameters
    ----------
    nlml, gradient, jitter : float, tree, float
        Per datum; a tree like the model, with derivatives for trainable parts; the number added to the diagonal, 0 = none.
    """

    nlml: float
    gradient: Any
    jitter: float


class FitResult(NamedTuple):
    """The result of `learning.fit`. Losses and NLMLs are per datum, for the learner's targets.

    Parameters
    ----------
    gp, loss, evidence : AbstractGP, float, learners.Evidence or None
        The model with θ̂; the criterion there, NaN before the first evaluation; the moments of all rows at θ̂, if the evaluator computes them.
    n_iter, converged, result : int, bool, RESULTS
        Steps taken, trials of rates excluded; True if the result is `RESULTS.successful`; the reason why the run ended.
    history, seconds : list of dict, float
        Numbers by name, an entry for every trial of a rate and every evaluation; the duration, including the time before a checkpoint.
    plan, held_out_rows, state : StepPlan, int, Any
        Planned batches and steps; rows held out for evaluations; the learner's last state if its model is the returned one, else None: streams continue from it.
    """

    gp: Any
    loss: float
    evidence: Any
    n_iter: int
    converged: bool
    result: RESULTS
    history: list[dict[str, float]]
    seconds: float
    plan: Any
    held_out_rows: int
    state: Any = None

    @property
    def nlml(self) -> float:
        """The exact NLML of all rows, per datum. AttributeError if it is unknown."""
        return self.evidence.nlml

    @property
    def spectrum(self) -> Any:
        """The moments of all rows in their eigenbasis. AttributeError if they are unknown."""
        return self.evidence.spectrum


class Solution(NamedTuple):
    """The result of `solvers.solve` for A α = b, b: [N, S].

    Parameters
    ----------
    value, residual : array [N, S], array [N, S] or None
        The best α; b − A α, or None if the last measured point is not α.
    result, converged, residual_norms : RESULTS, bool, array [S]
        Why the solve ended; True if every column is within the tolerance; ‖b − A α‖ / ‖b‖ of each column, measured on all rows.
    n_steps, epochs, seconds : int, float, float
        Steps (1 for a direct solver), passes over the rows of A with checks, and the duration.
    history : list of dict
        An entry for every epoch, with an estimated residual, and for every measurement.
    jitter : float
        Number added to the diagonal of A, or of its blocks, for the factorisation; 0 = none.
    """

    value: Float[Any, "N S"]
    result: RESULTS
    converged: bool
    residual_norms: Float[Any, " S"]
    n_steps: int
    epochs: float
    seconds: float
    history: list[dict[str, float]]
    jitter: float
    residual: Float[Array, "N S"] | None
