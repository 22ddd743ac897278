"""The posterior of a kernel GP: global, averaged over hyperparameters, or local."""

import contextlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stochgp import deadline
from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError
from stochgp.families.default_learners import LOCAL_ROWS
from stochgp.families.left_out import some_left_out, typical_error
from stochgp.families.solving import choose, solved
from stochgp.kernels import dense
from stochgp.kernels.dense import diagonal
from stochgp.learning.fit import COMPILER_BYTES
from stochgp.models import KernelGP
from stochgp.numerics.arrays import packed, unpacked_alike
from stochgp.objectives.conditionals import Conditional
from stochgp.objectives.kernel import nlml_and_gradient
from stochgp.parameters import Frozen, cast, frozen, in_parameters, value_of
from stochgp.posteriors import AbstractPosterior, ExactKernelPosterior, LocalPosterior, MixturePosterior
from stochgp.posteriors.exact import exact_at
from stochgp.posteriors.local import FEWEST, GAIN, NEIGHBOURS, local_search_bytes
from stochgp.results import RESULTS, Solution
from stochgp.solvers import Cholesky
from stochgp.solvers.base import SMALL
from stochgp.solvers.choice import choose_solver

CALIBRATION_ROWS = 2000  # training rows for the scale of local variances
FEW_CALIBRATION_ROWS = 64  # the number if time is short
LOCAL_SECONDS = 2.5  # minimum for preparing local predictions, compilation included
MAX_GROWTH = 0.25  # if a noise floor increases variances by a larger share, predictions are local
MAX_RESIDUAL = 0.5  # if the residual at the time limit is larger, predictions are local
NOISE_ROWS, NOISE_SHARE, NOISE_ROUNDINGS, NOISE_QUANTILE = 500, 0.05, 3.0, 0.05  # see `noise_floor`

FEWEST_ROWS, MOST_PARAMETERS, DRAWS = 3, 64, 32
# θ is drawn if there are at most 200 rows, or 400 with fewer than FEW_ROWS rows per parameter.
MOST_ROWS, MOST_ROWS_OF_MANY, FEW_ROWS = 200, 400, 20
QUANTILE, LEAST_SHARE = 0.9, 1e-3  # upper bound of weights, as a quantile; smallest share of the mean weight
STEP = 1e-5  # of finite differences, in unconstrained parameters


def require_memory(data: TrainingData, estimator: Any, context: FitContext) -> None:
    """Raise MemoryLimitError if the solve of all rows would not fit after learning."""
    if _prediction(data, estimator)[0] == "global":
        left = 0 if estimator.learner is None else COMPILER_BYTES
        budget, sizes = context.budget.keeping(left), (data.n_rows, 0, data.n_inputs)
        choose_solver(*sizes, budget, solver=estimator.solver, dtype=data.dtype)


def seconds_for_posterior(data: TrainingData, estimator: Any) -> float | None:
    """Return the seconds that learning leaves for the posterior (None: the default share)."""
    if _prediction(data, estimator)[0] == "global" and data.n_rows > SMALL:
        return None
    return min(LOCAL_SECONDS, deadline.left() / 2)


def kernel_posterior(
    gp: KernelGP, data: TrainingData, estimator: Any, context: FitContext, *, is_learned: bool
) -> tuple[AbstractPosterior, Solution | None]:
    """Return the posterior at these hyperparameters, and its solution (None if local)."""
    prediction, why = _prediction(data, estimator)
    if prediction == "local":
        return _local_posterior(gp, data, estimator, context, why), None
    try:
        return _global_posterior(gp, data, estimator, context, why, is_learned)
    except TimeIsUpError as late:
        why = f"a solve with all rows would take too long, so predictions use nearby rows: {late}"
        context.end(RESULTS.time_limit, why)
        return _local_posterior(
            gp, data, estimator, context, "there was no time for a solve with all rows"
        ), None


def _prediction(data: TrainingData, estimator: Any) -> tuple[str, str]:
    """Return "global" or "local", and the reason."""
    if estimator.solver == "auto":
        return (
            "local" if data.n_rows > LOCAL_ROWS else "global",
            f"with at most {LOCAL_ROWS:,} training rows, predictions use all rows; with more, nearby rows",
        )
    return "local" if estimator.solver == "local" else "global", AS_ASKED


def _global_posterior(
    gp: KernelGP, data: TrainingData, estimator: Any, context: FitContext, why: str, is_learned: bool
) -> tuple[AbstractPosterior, Solution | None]:
    """Return posterior and solution. Raises TimeIsUpError or KeyboardInterrupt."""
    if data.n_rows > SMALL:
        deadline.require()
    typical = None
    choice = choose(gp, data, estimator.solver, context)
    near = some_left_out(gp, data, context.budget)
    if near is not None:
        typical = None if isinstance(choice[0], Cholesky) else typical_error(near)
        if is_learned and not isinstance(gp.noise.level, Frozen):
            raised, growth, reason = noise_floor(gp, data, near, choice[1])
            if growth > MAX_GROWTH and estimator.solver == "auto":
                why = f"a solve with all rows needs a larger noise variance, which would multiply predicted variances by {1 + growth:.3g}"
                return _local_posterior(gp, data, estimator, context, why), None
            if raised is not gp:
                context.record("noise_floor", float(raised.noise_variance), reason)
            gp = raised
    posterior, solution = solved(gp, data, choice, context, typical_error=typical, is_learned=is_learned)
    residual = float(solution.residual_norms[0])
    if residual > MAX_RESIDUAL and data.n_rows > SMALL:
        if solution.result is RESULTS.interrupted:
            raise KeyboardInterrupt
        if solution.result is RESULTS.time_limit:
            raise TimeIsUpError(f"the relative residual was {residual:.2g}")
    if is_learned:
        posterior = integrated(posterior, gp, data.rows.group is not None, context)
    context.record("prediction", "global", why)
    return posterior, solution


def noise_floor(
    gp: KernelGP, data: TrainingData, near: Conditional, dtype: str
) -> tuple[KernelGP, float, str]:
    """Return the model with a large enough σ², the growth of typical variances, and the reason.

    Without noise in the targets, learning makes σ² tiny, and A = K + Σ becomes ill-conditioned. Therefore σ²
    gets two lower limits. The first is 5 % of the median variance of f at a training row given its nearest
    rows (`near`). The second is 3 times the rounding error of K, minus the 5 % quantile of these variances.
    The rounding error is eps √N times the mean of k(x, x).
    """
    learned = float(gp.noise_variance)
    variance = np.maximum(np.asarray(near.variance, np.float64) - learned, 0.0)
    usual, least_usual = np.quantile(variance, (0.5, NOISE_QUANTILE))
    some = data.X[:: max(1, len(data.y) // NOISE_ROWS)][:NOISE_ROWS]
    signal = diagonal(gp.kernel, some).mean()
    rounding = float(jnp.finfo(dtype).eps) * len(data.y) ** 0.5 * signal
    least = float(max(NOISE_SHARE * usual, NOISE_ROUNDINGS * rounding - least_usual))
    if learned >= least:
        return gp, 0.0, ""
    why = (
        f"raised from the learned {learned:.3g} so that a solver converges. The lower limit is the larger of two numbers: {NOISE_SHARE:.0%} of "
        f"{usual:.3g}, the median variance of f at left-out rows, and {NOISE_ROUNDINGS:g} times {rounding:.3g}, the rounding error of K, minus {least_usual:.3g}, the {NOISE_QUANTILE:.0%} quantile of these variances"
    )
    raised = frozen(np.asarray(least, gp.noise_variance.dtype))
    growth = (least - learned) / float(usual + learned)
    return eqx.tree_at(lambda g: g.noise.level, gp, raised), growth, why


def _local_posterior(
    gp: KernelGP, data: TrainingData, estimator: Any, context: FitContext, why: str
) -> LocalPosterior:
    """Return the calibrated local posterior, with fewer neighbours if little accuracy is lost."""
    N, D = data.n_rows, data.n_inputs
    need = local_search_bytes(gp.kernel, N, D, CALIBRATION_ROWS, NEIGHBOURS) + 8 * N * (D + 2)
    context.budget.require(need, f"local prediction from {N} rows")
    n = estimator._earlier and getattr(estimator._earlier._fitted.posterior, "n_neighbours", None)
    local = LocalPosterior(gp=gp, X=data.X, y=data.y, weight=data.rows.weights, n_neighbours=n or NEIGHBOURS)
    is_late, gains = deadline.left() <= LOCAL_SECONDS, dict[int, float]()
    rows = FEW_CALIBRATION_ROWS if is_late else CALIBRATION_ROWS
    try:
        with deadline.granted(LOCAL_SECONDS):
            local, gains = local.calibrated(rows, 0, data.rows.group, None if is_late or n else FEWEST)
    except TimeIsUpError:
        rows = 0
    context.report["calibration_rows"] = rows  # left-out rows for the scale of variances
    if gains:
        listed = ", ".join(f"{more}: {nats:.4f}" for more, nats in gains.items())
        context.record(
            "neighbours",
            local.n_neighbours,
            f"the number starts at {FEWEST}. It is doubled if this improves the log density of left-out rows by {GAIN} nats per row or more. Improvements: {listed}",
        )
    context.record("prediction", "local", why)
    context.record("variance", "near rows", "the variance is computed from the same nearby rows as the mean")
    return local


At = Callable[[Float[np.ndarray, " P"]], tuple[Any, float]]


def numbers_of(gp: KernelGP) -> tuple[Float[np.ndarray, " P"], At]:
    """Return the vector of trainable parameters, and a function from it to kernel and noise."""
    parts = cast((gp.kernel, gp.noise.level), np.float64)
    theta, rest = eqx.partition(parts, in_parameters(parts))

    def at(x: Float[np.ndarray, " P"]) -> tuple[Any, float]:
        kernel, level = eqx.combine(unpacked_alike(x, theta), rest)
        return value_of(kernel), float(level)

    return packed(theta), at


def integrated(posterior: Any, gp: KernelGP, grouped: bool, context: FitContext) -> Any:
    """Return a mixture of posteriors with hyperparameters near θ̂, or `posterior` if refused.

    θ are the unconstrained parameters of kernel and noise level, with a normal prior of standard deviation 1.
    The penalised negative log likelihood is l(θ) = L(θ) − gᵀ(θ − θ̂) + ½‖θ − θ̂‖² with g = ∇L(θ̂), so
    θ̂ minimises l. Let H = F + I, where F is the Fisher information of L. Then
        θ_s = θ̂ + H^(−½)ξ_s,   w_s ∝ exp(−l(θ_s) + ½‖ξ_s‖²),   ξ_s ~ N(0, I) in antithetic pairs,
    and weights w_s above their 90 % quantile are reduced to this quantile. If the noise is learned, all
    variances are multiplied by (n + 1)/(n − 1), because standardisation estimates a mean and a variance.
    """
    n_rows, n, (x, at), found = (
        len(posterior.weights),
        float(posterior.system.weight.sum()),
        numbers_of(gp),
        posterior,
    )
    most = MOST_ROWS_OF_MANY if n_rows < FEW_ROWS * len(x) else MOST_ROWS
    is_drawn = isinstance(posterior, ExactKernelPosterior) and not grouped and 0 < len(x) <= MOST_PARAMETERS
    is_drawn = is_drawn and min(n_rows, n) >= FEWEST_ROWS and n_rows <= most
    why = (
        f"averages over hyperparameters need {FEWEST_ROWS} to {MOST_ROWS} rows (up to {MOST_ROWS_OF_MANY} with fewer than {FEW_ROWS} rows "
        f"per parameter), at most {MOST_PARAMETERS} parameters, an exact posterior, and no groups"
    )
    refusal = context.refusal(None if is_drawn else why, 8 * n_rows**2 * (DRAWS + len(x)))
    if refusal is None:
        found = _mixture(posterior, gp, x, at)
        refusal = "the Cholesky factorisation fails for nearly all draws" if found is posterior else None
    why = f"predictions are averages over draws of hyperparameters, because {n:g} rows leave {len(x)} parameters uncertain"
    n_draws = 1 if refusal else len(found.parts)
    context.record("hyperparameters", n_draws, f"the learned values: {refusal}" if refusal else why)
    return found


def _mixture(posterior: ExactKernelPosterior, gp: KernelGP, x: Float[np.ndarray, " P"], at: At) -> Any:
    """Return the mixture over θ_s, or `posterior` if A has a factor for hardly any θ_s."""
    n = float(posterior.system.weight.sum())
    xi = np.random.default_rng(0).normal(size=(DRAWS // 2, len(x)))
    xi = np.concatenate([xi, -xi])
    values, vectors = np.linalg.eigh(information(posterior, x, at) + np.eye(len(x)))
    away = xi @ (
        vectors / np.sqrt(values) @ vectors.T
    )  # the symmetric root does not depend on the signs of `vectors`
    c = 1.0 if isinstance(gp.noise.level, Frozen) else (n + 1) / (n - 1)
    parts = [_scaled(posterior, *at(x + step), c) for step in away]
    # The term with c removes the factor c from the likelihood of the parts.
    loss = [np.nan if part is None else n * part.nlml() + (c - 1) / 2 * part.explained for part in parts]
    loss = loss + (np.square(away) - np.square(xi)).sum(axis=1) / 2 - away @ slope(posterior, gp)
    loss = np.where(np.isfinite(loss), loss, np.inf)
    least = np.quantile(loss, 1 - QUANTILE, method="higher")
    if least == np.inf:
        return posterior
    share = np.exp(least - np.maximum(loss, least))
    kept = np.flatnonzero(share > LEAST_SHARE * share.mean())
    shares = share[kept] / share[kept].sum()
    return MixturePosterior(posterior, tuple(part for s in kept if (part := parts[s]) is not None), shares)


def slope(posterior: ExactKernelPosterior, gp: KernelGP) -> Float[np.ndarray, " P"]:
    """Return ∇L of the posterior's rows at the θ of `gp`."""
    system = posterior.system
    rows = Data(*map(np.asarray, (system.X, posterior.y, system.weight)))
    by = nlml_and_gradient(cast(gp, np.float64), rows).gradient
    mask = in_parameters((gp.kernel, gp.noise.level))
    return packed(eqx.filter((by.kernel, by.noise.level), mask)) * float(system.weight.sum())


def information(
    posterior: ExactKernelPosterior, x: Float[np.ndarray, " P"], at: At
) -> Float[np.ndarray, "P P"]:
    """Return F_ij = ½ tr(A⁻¹ ∂_iA A⁻¹ ∂_jA) + ½ Σ(ρ − 1) ∂_i log σ² ∂_j log σ²."""
    system = posterior.system
    X, noise, level = np.asarray(system.X, np.float64), system.row_noise, at(x)[1]
    upper = lambda kernel: np.triu(dense.upper(kernel, X, np.float64))
    K, half = upper(system.kernel), posterior.factor.half
    W, by_level = np.empty((len(x), len(X) ** 2)), np.empty(len(x))
    for j, step in enumerate(STEP * np.eye(len(x))):
        kernel, other = at(x + step)
        by_level[j] = (other / level - 1) / STEP
        D = (upper(kernel) - K) / STEP
        D = D + np.triu(D, 1).T + np.diag(noise * by_level[j])
        W[j] = half(half(D).T.copy()).ravel()
    repeated = float(np.sum(system.weight - 1))
    return (W @ W.T + repeated * np.outer(by_level, by_level)) / 2


def _scaled(
    posterior: ExactKernelPosterior, kernel: Any, level: float, c: float
) -> ExactKernelPosterior | None:
    """Return the posterior for c k and c σ², or None if A has no factor."""
    with contextlib.suppress(ValueError):
        return exact_at(posterior, kernel.times(c), c * level)
