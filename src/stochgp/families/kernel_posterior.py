"""The posterior of a kernel GP: from all rows by a solve, or from the nearest rows."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from stochgp import deadline
from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError
from stochgp.families.default_learners import LOCAL_ROWS
from stochgp.families.hyperparameters import integrated
from stochgp.families.left_out import some_left_out, typical_error
from stochgp.families.solving import choose, solved
from stochgp.kernels.dense import mean_variance
from stochgp.learning.fit import COMPILER_BYTES
from stochgp.models import KernelGP
from stochgp.objectives.conditionals import Conditional
from stochgp.parameters import frozen
from stochgp.posteriors import AbstractPosterior, LocalPosterior
from stochgp.posteriors.local import FEWER, LOST, NEIGHBOURS, local_search_bytes
from stochgp.results import RESULTS, Solution
from stochgp.solvers import Cholesky
from stochgp.solvers.base import SMALL
from stochgp.solvers.choice import choose_solver

CALIBRATION_ROWS = 2000  # training rows that set the scale of local variances
FEW_CALIBRATION_ROWS = 64  # if time is short: blocks of one size, so one program
LOCAL_SECONDS = 2.5  # preparation of local prediction, including compiling
MAX_GROWTH = 0.25  # of the variances of observations, by a noise floor: beyond it prediction is local
MAX_RESIDUAL = 0.5  # relative residual of a solve that was cut: beyond it local prediction is better
NOISE_ROWS, NOISE_SHARE, NOISE_ROUNDINGS, NOISE_QUANTILE = 500, 0.05, 3.0, 0.05  # of `noise_floor`


def require_memory(data: TrainingData, estimator: Any, context: FitContext) -> None:
    """Raise MemoryLimitError if the solve of all rows would not fit after learning."""
    if _prediction(data, estimator)[0] == "global":
        left = 0 if estimator.learner is None else COMPILER_BYTES
        budget, sizes = context.budget.keeping(left), (data.n_rows, int(estimator.n_samples), data.n_inputs)
        choose_solver(*sizes, budget, solver=estimator.solver, dtype=data.dtype)


def seconds_for_posterior(data: TrainingData, estimator: Any) -> float | None:
    """Return the seconds that learning leaves to the posterior; None = the usual share."""
    if _prediction(data, estimator)[0] == "global" and data.n_rows > SMALL:
        return None
    return min(LOCAL_SECONDS, deadline.left() / 2)


def kernel_posterior(
    gp: KernelGP, data: TrainingData, estimator: Any, context: FitContext, *, is_learned: bool
) -> tuple[AbstractPosterior, Solution | None]:
    """Return the posterior at the hyperparameters of `gp`, and its solution; None if local.

    If a solve of all rows would end too late, prediction is local.
    """
    prediction, why = _prediction(data, estimator)
    if prediction == "local":
        return _local_posterior(gp, data, context, why), None
    try:
        return _global_posterior(gp, data, estimator, context, why, is_learned)
    except TimeIsUpError as late:
        why = f"solving for all rows would have taken too long: {late}; prediction is local"
        context.end(RESULTS.time_limit, why)
        return _local_posterior(gp, data, context, "there was no time for a solve"), None


def _prediction(data: TrainingData, estimator: Any) -> tuple[str, str]:
    """Return "global" or "local", and the reason."""
    if estimator.prediction != "auto":
        return estimator.prediction, AS_ASKED
    return "local" if data.n_rows > LOCAL_ROWS else "global", f"global up to {LOCAL_ROWS} rows"


def _global_posterior(
    gp: KernelGP, data: TrainingData, estimator: Any, context: FitContext, why: str, is_learned: bool
) -> tuple[AbstractPosterior, Solution | None]:
    """Return posterior and solution. Raises TimeIsUpError or KeyboardInterrupt if cut early."""
    if data.n_rows > SMALL:
        deadline.require()
    n_samples, typical = int(estimator.n_samples), None
    choice = choose(gp, data, estimator.solver, n_samples, context)
    near = some_left_out(gp, data, context.budget)
    if near is not None:
        typical = None if isinstance(choice[0], Cholesky) else typical_error(near)
        if is_learned and estimator.noise_variance is None:
            raised, growth, reason = noise_floor(gp, data, near, choice[1])
            if growth > MAX_GROWTH and estimator.prediction == "auto":
                why = f"a solve of all rows needs a noise variance that makes those of predictions {1 + growth:.3g} times as large"
                return _local_posterior(gp, data, context, why), None
            if raised is not gp:
                context.record("noise_floor", float(raised.noise_variance), reason)
            gp = raised
    posterior, solution = solved(
        gp, data, choice, context, n_samples=n_samples, typical_error=typical, is_learned=is_learned
    )
    residual = float(solution.residual_norms[0])
    if residual > MAX_RESIDUAL and data.n_rows > SMALL:
        if solution.result is RESULTS.interrupted:
            raise KeyboardInterrupt
        if solution.result is RESULTS.time_limit:
            raise TimeIsUpError(f"it had come to a relative residual of {residual:.2g}")
    if is_learned:
        posterior = integrated(posterior, gp, data.rows.group is not None, context)
    context.record("prediction", "global", why)
    return posterior, solution


def noise_floor(
    gp: KernelGP, data: TrainingData, near: Conditional, dtype: str
) -> tuple[KernelGP, float, str]:
    """Return the model with a solvable σ², the growth of typical variances, and the reason.

    If the targets have no noise, the likelihood makes σ² as small as possible. The condition number of A = K + Σ is then large, and
    iterative solvers take more steps. σ² is therefore raised to the larger of two values:
    - 5 % of the median variance of f at some training rows, each predicted from its nearest other rows (`near`), which is the
      existing uncertainty: standard deviations of observations grow by at most about 2.5 %.
    - 3 times the rounding error of K, which is eps √N times the mean variance, less the variance of f that 95 % of these rows exceed
      given their neighbours: small eigenvalues of a rough kernel exceed rounding by that much.
    """
    learned = float(gp.noise_variance)
    variance = np.maximum(np.asarray(near.variance, np.float64) - learned, 0.0)
    usual, least_usual = np.quantile(variance, (0.5, NOISE_QUANTILE))
    some = data.X[:: max(1, len(data.y) // NOISE_ROWS)][:NOISE_ROWS]
    signal = mean_variance(gp.kernel, some)
    rounding = float(jnp.finfo(dtype).eps) * len(data.y) ** 0.5 * signal
    least = float(max(NOISE_SHARE * usual, NOISE_ROUNDINGS * rounding - least_usual))
    if learned >= least:
        return gp, 0.0, ""
    why = (
        f"{learned:.3g} was learned; raised so that it can be solved for, to the larger of {NOISE_SHARE:.0%} of the median variance "
        f"{usual:.3g} of left-out rows and {NOISE_ROUNDINGS:g} times the rounding error of K, {rounding:.3g}, less the variance {least_usual:.3g} of nearly all of them"
    )
    raised = frozen(np.asarray(least, gp.noise_variance.dtype))
    growth = (least - learned) / float(usual + learned)
    return eqx.tree_at(lambda g: g.noise.level, gp, raised), growth, why


def _local_posterior(gp: KernelGP, data: TrainingData, context: FitContext, why: str) -> LocalPosterior:
    """Return the posterior from neighbours, calibrated on fewer rows if time is short.

    Since test rows may be many, and 64 or 128 neighbours cost a twentieth and a quarter of 256, the smallest number that loses little is used.
    """
    N, D = data.n_rows, data.n_inputs
    need = local_search_bytes(gp.kernel, N, D, CALIBRATION_ROWS, NEIGHBOURS) + 8 * N * (D + 2)
    context.budget.require(need, f"local prediction from {N} rows")
    local = LocalPosterior(gp=gp, X=data.X, y=data.y, weight=data.rows.weights)
    is_late = deadline.left() <= LOCAL_SECONDS
    rows, counts = (FEW_CALIBRATION_ROWS, ()) if is_late else (CALIBRATION_ROWS, FEWER)
    try:
        with deadline.granted(LOCAL_SECONDS):
            local, lost = local.calibrated(rows, 0, data.rows.group, counts)
    except TimeIsUpError:
        rows, lost = 0, {}
    context.report["calibration_rows"] = rows  # left out to find the scale of the variances
    if lost:
        losses = ", ".join(f"{few} lose {nats:.4f}" for few, nats in lost.items())
        most = f"at most {LOST} nats per row left out, or {NEIGHBOURS}"
        context.record("neighbours", local.n_neighbours, f"the fewest of {FEWER} that lose {most}: {losses}")
    context.record("prediction", "local", why)
    context.record("variance", "near rows", "those that predictions come from")
    return local
