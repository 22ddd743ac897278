"""The posterior of a kernel GP: from all rows by a solve, for few rows averaged over hyperparameters, or from the nearest rows."""

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

FEWEST_ROWS, MOST_PARAMETERS, DRAWS = 3, 64, 32
# Rows up to which θ is drawn, and up to which it is drawn with fewer than FEW_ROWS rows per parameter (300 rows of 20 inputs: 95 % intervals held 92.8 %).
MOST_ROWS, MOST_ROWS_OF_MANY, FEW_ROWS = 200, 400, 20
QUANTILE, LEAST_SHARE = 0.9, 1e-3  # of weights, cut above it; of the mean, dropped below it
STEP = 1e-5  # of finite differences of unconstrained parameters


def require_memory(data: TrainingData, estimator: Any, context: FitContext) -> None:
    """Raise MemoryLimitError if the solve of all rows would not fit after learning."""
    if _prediction(data, estimator)[0] == "global":
        left = 0 if estimator.learner is None else COMPILER_BYTES
        budget, sizes = context.budget.keeping(left), (data.n_rows, 0, data.n_inputs)
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
    if estimator.solver == "auto":
        return "local" if data.n_rows > LOCAL_ROWS else "global", f"global up to {LOCAL_ROWS} rows"
    return "local" if estimator.solver == "local" else "global", AS_ASKED


def _global_posterior(
    gp: KernelGP, data: TrainingData, estimator: Any, context: FitContext, why: str, is_learned: bool
) -> tuple[AbstractPosterior, Solution | None]:
    """Return posterior and solution. Raises TimeIsUpError or KeyboardInterrupt if cut early."""
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
                why = f"a solve of all rows needs a noise variance that makes those of predictions {1 + growth:.3g} times as large"
                return _local_posterior(gp, data, context, why), None
            if raised is not gp:
                context.record("noise_floor", float(raised.noise_variance), reason)
            gp = raised
    posterior, solution = solved(gp, data, choice, context, typical_error=typical, is_learned=is_learned)
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
    signal = diagonal(gp.kernel, some).mean()
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


At = Callable[[Float[np.ndarray, " P"]], tuple[Any, float]]


def numbers_of(gp: KernelGP) -> tuple[Float[np.ndarray, " P"], At]:
    """Return the trainable parameters of kernel and noise level as a vector, and the function back to both."""
    parts = cast((gp.kernel, gp.noise.level), np.float64)
    theta, rest = eqx.partition(parts, in_parameters(parts))

    def at(x: Float[np.ndarray, " P"]) -> tuple[Any, float]:
        kernel, level = eqx.combine(unpacked_alike(x, theta), rest)
        return value_of(kernel), float(level)

    return packed(theta), at


def integrated(posterior: Any, gp: KernelGP, grouped: bool, context: FitContext) -> Any:
    """Return a mixture over hyperparameters around the θ̂ of `gp`, or the posterior; record the decision.

    With the learner's normal prior, of standard deviation 1 for unconstrained numbers, the penalised negative log likelihood of Σρ rows is
    l(θ) = L(θ) − gᵀ(θ − θ̂) + ½‖θ − θ̂‖², g = ∇L(θ̂), up to a constant: θ̂ minimises it. Let H = F + I, F the Fisher information of L. Then
        θ_s = θ̂ + H^(−½)ξ_s,   w_s ∝ exp(−l(θ_s) + ½‖ξ_s‖²),   ξ_s ~ N(0, I) in antithetic pairs,
    w_s at most their 90 % quantile. As H ≥ I, a direction without information moves by 1. θ contains the kernel's trainable parameters and the noise level.

    Targets are standardised by their own mean and variance. A new target of n + 1 equally distributed ones has on average (n + 1)/(n − 1) times the
    squared distance from that mean, in units of that variance. All variances are multiplied by that factor, unless the noise was given.
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
        f"others are drawn for an exact posterior without groups, of {FEWEST_ROWS} to {MOST_ROWS} rows, up to {MOST_ROWS_OF_MANY} if they are "
        f"fewer than {FEW_ROWS} for each number, and for up to {MOST_PARAMETERS} numbers"
    )
    refusal = context.refusal(None if is_drawn else why, 8 * n_rows**2 * (DRAWS + len(x)))
    if refusal is None:
        found = _mixture(posterior, gp, x, at)
        refusal = (
            "hardly any other has a factor, or the kernel has no variance" if found is posterior else None
        )
    why = f"draws predict together, {n:g} rows leave {len(x)} numbers uncertain"
    n_draws = 1 if refusal else len(found.parts)
    context.record("hyperparameters", n_draws, f"the learned values: {refusal}" if refusal else why)
    return found


def _mixture(posterior: ExactKernelPosterior, gp: KernelGP, x: Float[np.ndarray, " P"], at: At) -> Any:
    """Return the mixture over θ_s; the posterior if hardly any θ_s has a factor."""
    n = float(posterior.system.weight.sum())
    xi = np.random.default_rng(0).normal(size=(DRAWS // 2, len(x)))
    xi = np.concatenate([xi, -xi])
    values, vectors = np.linalg.eigh(information(posterior, x, at) + np.eye(len(x)))
    away = xi @ (vectors / np.sqrt(values) @ vectors.T)  # the symmetric root: signs of vectors do not matter
    c = 1.0 if isinstance(gp.noise.level, Frozen) else (n + 1) / (n - 1)
    parts = [_scaled(posterior, *at(x + step), c) for step in away]
    # The likelihood without c is the likelihood of these parts plus (c − 1)/2 times their explained sum.
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
    """Return the posterior for c k and c σ²; None if A has no factor."""
    with contextlib.suppress(ValueError):
        return exact_at(posterior, kernel.times(c), c * level)
