"""Results of fits and solves, and estimates with standard errors."""

import enum
from typing import Any, NamedTuple

from jaxtyping import Array, Float


class RESULTS(enum.Enum):
    """Reasons for the end of a fit or a solve. The values are messages."""

    successful = "all planned steps were taken, and the criterion has converged"
    not_settled = "all planned steps were taken, but the criterion was still changing: more epochs may help"
    tolerance_reached = "the residual, measured on all rows, is within the tolerance"
    steps_exhausted = (
        "all planned steps were taken, but the residual is above the tolerance: more steps, a larger noise variance or "
        "shorter lengthscales would help. The best solution was kept"
    )
    precision_reached = (
        "the residual stopped decreasing before it reached the tolerance, because the noise variance is too small for the "
        "floating-point precision. The best solution was kept"
    )
    time_limit = "the time limit ended the run; the best state so far was kept"
    interrupted = "Ctrl-C ended the run; the best state so far was kept"
    stopped = "the callback ended the run; the best state so far was kept"
    diverged = (
        "the run diverged repeatedly, even with much smaller steps: the values of an input may be huge, or the noise variance too small."
        " The best earlier state was kept"
    )


class Estimate(NamedTuple):
    """A number and its standard error.

    Parameters
    ----------
    value, stderr : float
        The estimate and its standard error; the standard error of an exact number is 0.
    """

    value: float
    stderr: float = 0.0


class ExactNLML(NamedTuple):
    """The exact negative log marginal likelihood (NLML) of a model.

    Parameters
    ----------
    nlml, gradient, jitter : float, tree, float
        The NLML per row; its derivatives, as a tree like the model; the number added to the diagonal.
    """

    nlml: float
    gradient: Any
    jitter: float


class FitResult(NamedTuple):
    """The result of `learning.fit`; losses are averages per row.

    Losses refer to the targets in the units in which the learner receives them.

    Parameters
    ----------
    gp, loss, evidence : AbstractGP, float, learners.Evidence or None
        The learned model; its criterion (NaN before the first evaluation); its evidence on all rows, or None.
    n_iter, converged, result : int, bool, RESULTS
        The number of steps, not counting trials of learning rates; True if `result` is `RESULTS.successful`;
        the reason for the end of the fit.
    history, seconds : list of dict, float
        An entry for each evaluation and each trial of a learning rate; the duration, including the time of
        earlier calls if the fit resumed a checkpoint.
    plan, held_out_rows, state : StepPlan, int, Any
        The planned batches and steps; the number of held-out rows; the learner's last state, from which
        updates continue. The state is None if it does not belong to the returned model.
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
        """The exact NLML per row. Raises AttributeError if the NLML is unknown."""
        return self.evidence.nlml

    @property
    def spectrum(self) -> Any:
        """The moments of all rows in their eigenbasis. Raises AttributeError if unknown."""
        return self.evidence.spectrum


class Solution(NamedTuple):
    """The result of `solvers.solve` for A α = b, where b has S columns.

    Parameters
    ----------
    value, residual : array [N, S], array [N, S] or None
        The best α; b − A α, or None if it was not measured at α.
    result, converged, residual_norms : RESULTS, bool, array [S]
        The reason for the end; True if all columns are within the tolerance; ‖b − A α‖ / ‖b‖ per column.
    n_steps, epochs, seconds : int, float, float
        The number of steps (1 for a direct solver); the number of passes over the rows of A, including checks
        of the residual; the duration.
    history : list of dict
        One entry for each epoch, with an estimated residual; one entry for each measured residual.
    jitter : float
        The number added to the diagonal of A, or of blocks of A, for a factorisation; 0 if not needed.
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
