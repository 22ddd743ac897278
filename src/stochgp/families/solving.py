"""From hyperparameters to the posterior of a kernel GP: a solver is chosen, and solves."""

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from sklearn.exceptions import ConvergenceWarning

from stochgp import deadline
from stochgp.budget import release
from stochgp.context import FitContext
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError
from stochgp.devices import on_one
from stochgp.kernels.dense import mean_variance
from stochgp.likelihoods.noise import noise_of_rows, with_level
from stochgp.models import KernelGP
from stochgp.numerics.arrays import on_device
from stochgp.objectives.kernel import SOME_ROWS
from stochgp.operators import KernelOperator, default_tile
from stochgp.parameters import cast, value_of
from stochgp.posteriors import (
    AbstractKernelPosterior,
    ExactKernelPosterior,
    KernelSystem,
    SampledKernelPosterior,
)
from stochgp.posteriors.calibration import CALIBRATION_SECONDS, ROWS, calibrated, with_information
from stochgp.posteriors.growing import sides
from stochgp.posteriors.kernel import EXACT_ROWS, NEAR, NoiseDraws
from stochgp.posteriors.local import NEIGHBOURS, local_search_bytes
from stochgp.priors import prior_functions
from stochgp.results import RESULTS, Solution
from stochgp.solvers import AbstractDirectSolver, AbstractSolver, Factor, solve
from stochgp.solvers.choice import Choice, choose_solver, kept_rows, name_of
from stochgp.solvers.cholesky import factorisation_seconds
from stochgp.solvers.sizes import SMALL, TERM_BYTES, n_terms, plannable
from stochgp.warning import warn

logger = logging.getLogger("stochgp.estimators")

TOLERANCE, POWER, TYPICAL_SHARE = 0.2, 0.75, 0.4  # see `tolerances`
ENOUGH_ROWS = 10_000
LEAST_TOLERANCE, LEAST_SAMPLES_TOLERANCE = 1e-5, 0.03
SAMPLES_TOLERANCE = 3.5  # times looser for samples, of which 64 estimate a variance to 18 % anyway
SMALLEST = float(np.finfo(np.float64).tiny)
MOST_TOLERANCE, MOST_SAMPLES_TOLERANCE = 0.1, 0.08


def choose(
    gp: KernelGP, data: TrainingData, solver: str | AbstractSolver, n_samples: int, context: FitContext
) -> Choice:
    """The solver of the system at these hyperparameters. Raises MemoryLimitError, with both numbers, if none fits."""
    kernel, X, noise_ratio = value_of(gp.kernel), data.X, 0.01
    if len(X) > SMALL:  # fewer rows are solved for in float64 whatever the noise
        noise = np.mean(noise_of_rows(_noise(gp), X, data.weight))
        noise_ratio = float(noise / mean_variance(kernel, X[:: len(X) // SOME_ROWS][:SOME_ROWS]))
    release()
    budget = context.budget.keeping(TERM_BYTES * (n_terms(kernel) - 1))
    return choose_solver(
        *(len(X), n_samples, X.shape[1], budget), solver=solver, dtype=data.dtype, noise_ratio=noise_ratio
    )


def solved(
    gp: KernelGP,
    data: TrainingData,
    choice: Choice,
    context: FitContext,
    *,
    n_samples: int = 0,
    typical_error: float | None = None,
    is_learned: bool = False,
) -> tuple[AbstractKernelPosterior, Solution]:
    """The posterior at the hyperparameters of `gp`, and how its system was solved.

    If these were learned, but not by the likelihood of all rows, variances are scaled by left-out rows.

    `typical_error` is that of left-out rows (`tolerances`); an iterative solver solves for `n_samples` functions too.

    Raises TimeIsUpError where a factorisation of more than 3,000 rows is expected to end after the deadline. An iterative solve times its first epochs.
    """
    solver, dtype, need, why = choice
    is_direct = isinstance(solver, AbstractDirectSolver)
    if is_direct and len(data.y) > SMALL and deadline.left() < math.inf:
        deadline.require(factorisation_seconds(len(data.y)))
    logger.info("solving by %s: %s", type(solver).__name__, why)
    kernel, X = cast((value_of(gp.kernel), on_device(data.X)), dtype)
    system = KernelSystem(kernel, X, data.weight, _noise(gp), min(default_tile(), len(X)))
    if is_direct:
        posterior, found = solved_directly(system, solver, data.y)
    else:
        posterior, found = _solved(system, solver, data.y, n_samples, need, typical_error, context)
    context.record("solver", name_of(solver), why)
    _record_mesh(solver, context)
    _record_variance(posterior, context)
    if is_learned and (data.n_rows > SMALL or data.rows.group is not None):
        posterior = _calibrated(posterior, data, context)
    # Relative, of the mean, measured on all rows; and 1.48 medians of errors of rows predicted from their neighbours.
    context.report |= {"residual": float(found.residual_norms[0]), "typical_error": typical_error}
    return posterior, found


def _noise(gp: KernelGP) -> Any:
    return with_level(gp.noise, float(gp.noise_variance))


def _record_mesh(solver: AbstractSolver, context: FitContext) -> None:
    """Record whether a mesh shares the solve."""
    if context.mesh is None:
        return
    solve, why = "one device", "one device"
    if context.mesh.size > 1 and isinstance(solver, AbstractDirectSolver):
        why = f"{solver.name} factorises on one device"
    elif context.mesh.size > 1:
        solve, why = "shared", "the devices share products with K"
    context.record("devices", {"count": context.mesh.size, "solve": solve}, why)


def _record_variance(posterior: AbstractKernelPosterior, context: FitContext) -> None:
    if isinstance(posterior, ExactKernelPosterior) and posterior.is_exact:
        context.record("variance", "exact", f"from the Cholesky factor, up to {EXACT_ROWS} rows")
    else:
        why = f"more than {EXACT_ROWS} rows, or no factor: given {NEAR} rows, whose information counts {posterior.information:.3g}-fold"
        context.record("variance", "near rows", why)


def _calibrated(posterior: Any, data: TrainingData, context: FitContext) -> Any:
    """The posterior, its variances scaled by rows predicted without themselves and their groups, as far as time and memory allow."""
    group, N, D = data.rows.group, data.n_rows, data.n_inputs
    need = local_search_bytes(posterior.system.kernel, N, D, ROWS, NEIGHBOURS)
    if need > context.budget.free():
        return posterior
    try:
        with deadline.granted(CALIBRATION_SECONDS):
            posterior, scale = calibrated(posterior, group)
    except TimeIsUpError:
        return posterior
    context.report["variance_scale"] = scale
    return posterior


def _solved(
    system: KernelSystem,
    solver: AbstractSolver,
    y: Float[np.ndarray, " N"],
    n_samples: int,
    need: int,
    typical_error: float | None,
    context: FitContext,
) -> tuple[AbstractKernelPosterior, Solution]:
    """By an iterative solver, which needs so many bytes; rows of K are kept in what it leaves."""
    X = system.X
    prior_key, sample_key, run_key = jax.random.split(context.solve_key, 3)
    prior, draws = None, NoiseDraws((len(y),), (sample_key,))
    if n_samples:
        prior = prior_functions(system.kernel, X.shape[1], n_samples, key=prior_key, dtype=X.dtype)
    b = sides(system.operator, X, y, prior, draws)
    mesh = context.mesh
    if mesh is not None and mesh.size > 1:
        operator = system.operator_on(mesh)
    else:
        keep = kept_rows(system.operator, plannable(context.budget) - need)
        operator = dataclasses.replace(system.operator, keep_rows=keep)
    known = float(system.noise.level), y, b.shape[1]
    tolerance = tolerances(*known, typical_error, solver.tolerance_share)
    enough = tolerances(*known, share=solver.tolerance_share)
    found = run_solver(solver, operator, b, tolerance, context.show, run_key, enough=enough)
    if operator.mesh is not None:  # the posterior is on one device
        value, left = on_one((found.value, found.residual))
        found = found._replace(value=value, residual=left)
    weights, samples = found.value[:, :1], None if prior is None else found.value[:, 1:]
    posterior = with_information(
        SampledKernelPosterior(
            system=system,
            weights=weights,
            explained=explained_by(y, weights),
            prior=prior,
            sample_weights=samples,
            solver=solver,
            tolerance=float(tolerance[0]),
            y=y,
            draws=None if prior is None else draws,
            left=found.residual,
        )
    )
    return posterior, found


def solved_directly(
    system: KernelSystem,
    solver: AbstractDirectSolver,
    y: Float[np.ndarray, " N"],
    factor: Factor | None = None,
    information: float | None = None,
) -> tuple[ExactKernelPosterior, Solution]:
    """The posterior by a factor; a `factor` of the system saves its factorisation, and τ (`information`) what finds it."""
    b, tolerance = y[:, None], tolerances(float(system.noise.level), y, 1)
    if factor is None and solver.takes_filled:
        dtype = system.X.dtype
        found, factor = solver.solve_filled(system.upper, system.product, b, tolerance, dtype)
    else:
        factor = solver.factorise(system.operator) if factor is None else factor
        found = solver.solve(system.operator, b, tolerance, factor)
    posterior = ExactKernelPosterior(
        system=system, weights=found.value, explained=explained_by(y, found.value), solver=solver, y=y
    )
    vars(posterior)["factor"] = factor  # what its property would compute again
    if information is None:
        return with_information(posterior), found
    return posterior.changed(information=information), found


def explained_by(y: Float[np.ndarray, " N"], weights: Any) -> float:
    """yᵀα."""
    return float(y @ np.asarray(weights, np.float64)[:, 0])


def tolerances(
    noise_variance: float,
    y: Float[np.ndarray, " N"],
    n_columns: int,
    typical_error: float | None = None,
    share: float = 1.0,
) -> Float[np.ndarray, " S"]:
    """Relative residuals ‖b − Aα‖/‖b‖ to reach, of the mean first and then of each sample.

        mean:     c t,  t = min(0.2 (σ / rms y)^¾, 0.1),  c = share · min(1, √(N/10,000))
        samples:  c · min(max(3.5 t, 0.03), 0.08)

    An empirical rule: on pol, elevators and bike, with noise standard deviations of 0.037, 0.31 and 0.006, the RMSE on test rows was within 1 %
    of the exact one at residuals of 0.022, 0.09 and 0.005, and the NLPD within 0.04 of that of exactly solved samples at 0.05. Smaller sets,
    where it costs little, are solved more exactly.

    The tolerance of the mean is also at most 0.4 `typical_error` / rms y, the typical error being that of left-out rows: a residual of no
    particular direction adds about its own size to the errors of predictions. Where tails are heavy most errors are far smaller than the noise.
    """
    size = max(math.sqrt(float(np.mean(np.square(y)))), SMALLEST)
    mean = min(TOLERANCE * (math.sqrt(noise_variance) / size) ** POWER, MOST_TOLERANCE)
    samples = min(max(SAMPLES_TOLERANCE * mean, LEAST_SAMPLES_TOLERANCE), MOST_SAMPLES_TOLERANCE)
    exactly = share * min(1.0, math.sqrt(len(y) / ENOUGH_ROWS))
    found = exactly * np.array([mean] + [samples] * (n_columns - 1))
    if typical_error is not None:
        found[0] = min(found[0], TYPICAL_SHARE * typical_error / size)
    return np.maximum(found, LEAST_TOLERANCE)


def run_solver(
    solver: AbstractSolver,
    operator: KernelOperator,
    b: Array,
    tolerance: Float[np.ndarray, " S"],
    show: Callable[[str], None],
    key: PRNGKeyArray,
    start: Array | None = None,
    enough: Float[np.ndarray, " S"] | None = None,
) -> Solution:
    """`solve` with progress, and a warning where it does not reach the tolerance, nor, as far as the precision allows, `enough`."""
    progress = lambda entry: show(_progress_text(entry))
    found = solve(operator, b, solver, key=key, start=start, progress=progress, tolerance=tolerance)
    if (
        found.result is RESULTS.precision_reached
        and enough is not None
        and np.all(found.residual_norms <= enough)
    ):
        return found._replace(result=RESULTS.tolerance_reached, converged=True)
    if not found.converged and found.result is not RESULTS.interrupted:
        worst = float(found.residual_norms[0])
        warn(
            f"the solver ended with a relative residual of {worst:.3g}: {found.result.value}",
            ConvergenceWarning,
            stacklevel=5,
        )
    return found


def _progress_text(entry: dict[str, float]) -> str:
    kind = "measured" if entry.get("measured") else "estimated"
    return f"epoch {entry['epoch']:.0f}: relative residual {entry['residual']:.4f} ({kind}), {entry['seconds']:.0f} s"
