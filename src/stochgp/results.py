"""How a run ended, and numbers with how exact they are."""

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


class Estimate(NamedTuple):
    """A number that may be estimated, and how exact it is.

    Parameters
    ----------
    value : float
        The number.
    stderr : float
        Its standard error; 0 of an exact one.
    """

    value: float
    stderr: float = 0.0


class ExactNLML(NamedTuple):
    """The exact negative log marginal likelihood at one θ.

    Parameters
    ----------
    nlml : float
        Per datum.
    gradient : tree
        Of the model's shape, by what trains; None elsewhere.
    jitter : float
        Added to the diagonal of what was factorised; 0 = none.
    """

    nlml: float
    gradient: Any
    jitter: float


class FitResult(NamedTuple):
    """What `learning.fit` returns. Losses and NLMLs are per datum, of the targets that the learner saw.

    Parameters
    ----------
    gp : AbstractGP
        The model with θ̂.
    loss : float
        The judge's criterion at the evaluation that is returned; NaN before the first.
    evidence : learners.Evidence or None
        Where the judge knows it: the moments of all rows at θ̂, and the exact NLML.
    n_iter : int
        Steps taken, trials of rates excluded.
    converged : bool
        Whether the result is `RESULTS.successful`.
    result : RESULTS
        How the run ended.
    history : list of dict
        Numbers by name, an entry for every trial of a rate and every evaluation.
    seconds : float
        Of the run, with those before a checkpoint from which it went on.
    plan : StepPlan
        Batches, steps and evaluations as planned.
    held_out_rows : int
        How many rows the judge held out.
    to_go_on : Any
        What learning from further rows starts from, see `AbstractLearner.to_go_on`; None where the learner learns from no stream.
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
    to_go_on: Any = None

    @property
    def nlml(self) -> float:
        """Exact, of all rows, per datum. AttributeError where the judge does not know it."""
        return self.evidence.nlml

    @property
    def spectrum(self) -> Any:
        """The moments of all rows in their eigenbasis. AttributeError where the judge does not know them."""
        return self.evidence.spectrum


class Solution(NamedTuple):
    """What `solvers.solve` returns for A α = b, b: [N, S].

    Parameters
    ----------
    value : array [N, S]
        α, the best found.
    result : RESULTS
        How the solve ended.
    converged : bool
        Whether every column's residual is within the tolerance.
    residual_norms : array [S]
        ‖b − A α‖ / ‖b‖ of each column, measured on all rows.
    n_steps : int
        Of an iterative solver; 1 of a direct one.
    epochs : float
        Passes over the rows of A, those for the checks included.
    seconds : float
        Of the solve.
    history : list of dict
        Numbers by name: of an iterative solver an entry for every epoch, whose residual is an estimate, and every measurement; of a direct one a single entry.
    jitter : float
        Added to the diagonal of A, or of its blocks, so that it could be factorised; 0 = none.
    residual : array [N, S] or None
        b − A α; None where the last point measured is not α.
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
