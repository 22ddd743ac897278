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
    nlml : float
        The NLML per row.
    gradient : tree
        The derivatives of `nlml`, in a tree with the structure of the model.
    jitter : float
        The number added to the diagonal of the covariance matrix.
    """

    nlml: float
    gradient: Any
    jitter: float


class FitResult(NamedTuple):
    """The result of `learning.fit`; losses are averages per row.

    Losses refer to the units of the targets that the learner receives.

    Parameters
    ----------
    gp : AbstractGP
        The learned model.
    loss : float
        The criterion of the learned model; NaN before the first evaluation.
    evidence : learners.Evidence or None
        The evidence on all rows, if the learner computes it.
    n_iter : int
        The number of steps, except steps that only compare learning rates.
    converged : bool
        True if `result` is `RESULTS.successful`.
    result : RESULTS
        The reason for the end of the fit.
    history : list of dict
        An entry for each evaluation and for each trial of a learning rate.
    seconds : float
        The duration, including the time before the checkpoint if the fit resumed a checkpoint.
    plan : StepPlan
        The planned batches and steps.
    held_out_rows : int
        The number of held-out rows.
    state : object
        The learner's last state, from which updates continue, or None if the state does not belong to `gp`.
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
    value : array [N, S]
        The best α.
    result : RESULTS
        The reason for the end of the run.
    converged : bool
        True if the residuals of all columns are within the tolerance.
    residual_norms : array [S]
        ‖b − A α‖ / ‖b‖ for each column.
    n_steps : int
        The number of steps; 1 for a direct solver.
    epochs : float
        The number of passes over the rows of A, including measurements of the residual.
    seconds : float
        The duration.
    history : list of dict
        One entry with an estimated residual for each epoch, and one entry for each measured residual.
    jitter : float
        The number added to the diagonal of A, or of blocks of A, for a factorisation; 0 if not needed.
    residual : array [N, S] or None
        The residual b − A α, or None if it was not measured for the returned α.
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
