"""From hyperparameters to the posterior of a kernel GP: planned, solved, described."""

import dataclasses
import logging
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from sklearn.exceptions import ConvergenceWarning

from stochgp import deadline
from stochgp.budget import Budget, release
from stochgp.choosing import choice
from stochgp.deadline import TimeIsUpError
from stochgp.devices import ONE, Devices
from stochgp.kernels import AbstractKernel
from stochgp.likelihoods.noise import noise_of_rows, with_level
from stochgp.models import KernelGP
from stochgp.numerics.arrays import on_device
from stochgp.objectives.kernel import SOME_ROWS, mean_variance
from stochgp.operators import TILE, AbstractOperator
from stochgp.parameters import cast, value_of
from stochgp.planning.devices import WAYS, Team
from stochgp.planning.memory import plannable, workspace_of
from stochgp.planning.solve_plan import SolvePlan
from stochgp.planning.solver import choose
from stochgp.posteriors import ExactKernelPosterior, KernelSystem, SampledKernelPosterior
from stochgp.posteriors.calibration import ROWS_OF_GROUPS, calibrated, consistent
from stochgp.posteriors.growing import sides
from stochgp.posteriors.kernel import NoiseDraws
from stochgp.posteriors.local import NEIGHBOURS, local_search_bytes
from stochgp.posteriors.sampled import NEAREST, nearest_rows_bytes
from stochgp.priors import prior_functions
from stochgp.results import RESULTS, Solution
from stochgp.selection.left_out import typical_error
from stochgp.solvers import AbstractDirectSolver, AbstractSolver, Factor, SystemSize, solve
from stochgp.solvers.sizes import SMALL
from stochgp.training_data.progress import progress_line
from stochgp.training_data.units import TrainingData
from stochgp.warning import warn

logger = logging.getLogger("stochgp.estimators")

TOLERANCE, POWER, TYPICAL_SHARE = 0.2, 0.75, 0.4  # see `tolerances`
ENOUGH_ROWS = 10_000
LEAST_TOLERANCE, LEAST_SAMPLES_TOLERANCE = 1e-5, 0.03
SAMPLES_TOLERANCE = 3.5  # times looser for samples, of which 64 estimate a variance to 18 % anyway
SMALLEST = float(np.finfo(np.float64).tiny)
MOST_TOLERANCE, MOST_SAMPLES_TOLERANCE = 0.1, 0.08
CALIBRATION_SECONDS = 2.5  # that left-out rows with their groups take, compilation included


KernelPosterior = ExactKernelPosterior | SampledKernelPosterior


class Wanted(NamedTuple):
    """What the user asked of the solve."""

    solver: str | AbstractSolver
    n_samples: int
    dtype: str
    verbose: int
    calibrates: bool = False  # whether variances are scaled by what left-out rows say
    devices: Devices = ONE  # which may share the solve


def posterior_of(
    gp: KernelGP, data: TrainingData, wanted: Wanted, budget: Budget, *, key: PRNGKeyArray
) -> tuple[KernelPosterior, Solution, dict[str, Any]]:
    """(The posterior at the hyperparameters of `gp`, how it was solved for, what `plan_` says of that).

    Raises TimeIsUpError where a factorisation of more than 3,000 rows is expected to end after the deadline. An iterative solve times its first epochs.
    """
    noise = with_level(gp.noise, float(gp.noise_variance))
    system = KernelSystem(value_of(gp.kernel), on_device(data.X), data.weight, noise, TILE)
    typical = typical_error(gp, data, budget)
    chosen = _plan(system, data.y, wanted, typical, budget)
    if len(data.y) > SMALL and chosen.solver.exact_variances:
        deadline.require(chosen.seconds)
    logger.info("solving by %s: %s", type(chosen.solver).__name__, chosen.reason)
    posterior, found = _solved(system, chosen, data.y, wanted, typical, key)
    scaled: dict[str, Any] = {}
    if wanted.calibrates:
        posterior, scaled = _calibrated(posterior, data, budget)
    why = f"of the mean, relative, measured on all rows; {found.result.name}"
    more = {
        "residual": choice(float(found.residual_norms[0]), why),
        "typical_error": choice(
            typical,
            "1.48 medians, of rows predicted from their neighbours; the residual is small beside it",
        ),
    }
    return posterior, found, chosen.described() | more | scaled


def _calibrated(
    posterior: KernelPosterior, data: TrainingData, budget: Budget
) -> tuple[KernelPosterior, dict[str, Any]]:
    """(The posterior, its variances scaled by rows predicted without themselves and their groups; what `plan_` says of that)."""
    group, N, D = data.rows.group, data.n_rows, data.n_inputs
    if group is None:
        posterior, alone = _consistent(posterior)
        posterior, scale = calibrated(posterior)
        why = "of all variances, by the training rows predicted without themselves"
        return posterior, {"scale": choice(scale, why)} | alone
    if local_search_bytes(posterior.system.kernel, N, D, ROWS_OF_GROUPS, NEIGHBOURS) > budget.free():
        return posterior, {"scale": choice(1.0, "there was no memory to predict rows without their groups")}
    try:
        with deadline.granted(CALIBRATION_SECONDS):
            posterior, scale = calibrated(posterior, group)
    except TimeIsUpError:
        return posterior, {"scale": choice(1.0, "there was no time to predict rows without their groups")}
    return posterior, {
        "scale": choice(scale, "of all variances, by the training rows predicted without their groups")
    }


def _consistent(posterior: KernelPosterior) -> tuple[KernelPosterior, dict[str, Any]]:
    """(The posterior with variances that its factor will hold for, what `plan_` says of that where they are from samples alone)."""
    if not isinstance(posterior, SampledKernelPosterior) or posterior.n_neighbours == 0:
        return posterior, {}
    why = "left-out rows, which calibrate variances, have them from samples alone, and those differ by more than a fifth"
    try:
        with deadline.granted(CALIBRATION_SECONDS):
            posterior = consistent(posterior)
    except TimeIsUpError:
        posterior = dataclasses.replace(posterior, n_neighbours=0)
        why = "there was no time to compare them with those of left-out rows"
    return posterior, {} if posterior.n_neighbours else {"variance_neighbours": choice(0, why)}


def _solved(
    system: KernelSystem,
    chosen: SolvePlan,
    y: Float[np.ndarray, " N"],
    wanted: Wanted,
    typical_error: float | None,
    key: PRNGKeyArray,
) -> tuple[KernelPosterior, Solution]:
    solver, dtype = chosen.solver, chosen.dtype
    kernel, X = cast((system.kernel, system.X), dtype)
    system = KernelSystem(kernel, X, system.weight, system.noise, chosen.tile)
    if isinstance(solver, AbstractDirectSolver):
        return solved_directly(system, solver, y)
    prior_key, sample_key, run_key = jax.random.split(key, 3)
    operator = dataclasses.replace(system.operator, keep_rows=chosen.keep_rows)
    prior, draws = None, NoiseDraws((len(y),), (sample_key,))
    if chosen.n_samples:
        prior = prior_functions(kernel, X.shape[1], chosen.n_samples, key=prior_key, dtype=X.dtype)
    b = sides(operator, X, y, prior, draws)
    if chosen.way is not None:
        operator = system.spread_over(wanted.devices, WAYS[chosen.way]).operator
    tolerance = tolerances_of(solver, system, y, b.shape[1], typical_error)
    enough = tolerances_of(solver, system, y, b.shape[1])
    found = run_solver(solver, operator, b, tolerance, wanted, run_key, enough=enough)
    if chosen.way is not None:  # the posterior is on one device
        value, left = wanted.devices.local((found.value, found.residual))
        found = found._replace(value=value, residual=left)
    weights, samples = found.value[:, :1], None if prior is None else found.value[:, 1:]
    posterior = SampledKernelPosterior(
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
        n_neighbours=chosen.n_neighbours,
    )
    return posterior, found


def solved_directly(
    system: KernelSystem,
    solver: AbstractDirectSolver,
    y: Float[np.ndarray, " N"],
    factor: Factor | None = None,
) -> tuple[ExactKernelPosterior, Solution]:
    """The exact posterior; a `factor` of the system saves its factorisation."""
    b, tolerance = y[:, None], tolerances(float(system.noise.level), y, 1)
    if factor is None and system.fits_host(solver):
        found, factor = solver.solve_filled(system.upper, b, tolerance, system.X.dtype)
    else:
        factor = solver.factorise(system.operator) if factor is None else factor
        found = solver.solve(system.operator, b, tolerance, factor)
    posterior = ExactKernelPosterior(
        system=system, weights=found.value, explained=explained_by(y, found.value), solver=solver, y=y
    )
    vars(posterior)["factor"] = factor  # what its property would compute again
    return posterior, found


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


def tolerances_of(
    solver: AbstractSolver,
    system: KernelSystem,
    y: Float[np.ndarray, " N"],
    n_columns: int,
    typical_error: float | None = None,
) -> Float[np.ndarray, " S"]:
    """`tolerances`, of which the solver takes its share."""
    return tolerances(float(system.noise.level), y, n_columns, typical_error, solver.tolerance_share)


def _plan(
    system: KernelSystem,
    y: Float[np.ndarray, " N"],
    wanted: Wanted,
    typical_error: float | None,
    budget: Budget,
) -> SolvePlan:
    """Solver, tiles and samples."""
    X = np.asarray(system.X)
    noise = float(np.mean(noise_of_rows(system.noise, X, system.weight)))
    tolerance = float(tolerances(noise, y, 1, typical_error)[0])
    if len(X) <= SMALL:
        (N, D), itemsize = X.shape, X.dtype.itemsize
        size = SystemSize(N, D, wanted.n_samples, itemsize * (D + 2), itemsize)
    else:
        ratio = noise / float(mean_variance(system.kernel, X[:: len(X) // SOME_ROWS][:SOME_ROWS]))
        size = SystemSize.of(system.operator, X.shape[1], wanted.n_samples, ratio)
    release()
    team = None if wanted.devices.mesh is None else Team.of(wanted.devices)
    aim = {"tolerance": tolerance, "team": team, "workspace": workspace_of(system.kernel)}
    chosen = choose(size, budget, solver=wanted.solver, **aim)
    if chosen.variance == "samples":
        chosen = chosen._replace(n_neighbours=_neighbours_of(system.kernel, size, budget))
    return chosen


def _neighbours_of(kernel: AbstractKernel, size: SystemSize, budget: Budget) -> int:
    """Rows that variances from samples begin with: as many as pay, where trees find them and there is memory for them beside solutions and residuals."""
    held = 2 * size.itemsize * size.n_rows * size.n_columns
    fits = held + nearest_rows_bytes(kernel, size, NEAREST) <= plannable(budget)
    return min(NEAREST, size.n_rows) if kernel.has_places and fits else 0


def run_solver(
    solver: AbstractSolver,
    operator: AbstractOperator,
    b: Array,
    tolerance: Float[np.ndarray, " S"],
    wanted: Wanted,
    key: PRNGKeyArray,
    start: Array | None = None,
    enough: Float[np.ndarray, " S"] | None = None,
) -> Solution:
    """`solve` with progress, and a warning where it does not reach the tolerance, nor, as far as the precision allows, `enough`."""
    with progress_line(wanted.verbose, _progress_text) as progress:
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
