"""Steps that all fits share: reading, learning, observations, fitted attributes."""

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from stochgp import deadline
from stochgp.choosing import Decisions
from stochgp.compiled import one_blas_thread
from stochgp.context import PLANNED, FitContext
from stochgp.data.memory import MemorySource
from stochgp.data.reading import are_files, read_files, read_training_rows
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData, in_target_units
from stochgp.estimators.base import check_settings
from stochgp.estimators.diagnostics import Scores, Seen, caution_after_fit
from stochgp.estimators.fitted import Fitted
from stochgp.estimators.report import (
    learning_text,
    notes,
    record_learning,
)
from stochgp.families.targets import (
    standardised,
    target_transform,
    transformed,
    transformed_files,
)
from stochgp.learners import AbstractLearner
from stochgp.learning import fit
from stochgp.learning.fit import place, rows_in_time
from stochgp.learning.run import Report
from stochgp.likelihoods import AbstractLikelihood
from stochgp.models import AbstractGP
from stochgp.numerics.seeds import random_rows
from stochgp.observations import Dispersion, Observation
from stochgp.observations.observation import supported_by
from stochgp.posteriors import AbstractPosterior
from stochgp.results import RESULTS, FitResult, Solution
from stochgp.sharding import from_first, mesh_of, n_processes
from stochgp.tables.molecules import FingerprintEncoder, Inputs, is_packed
from stochgp.tables.targets import name_of_targets, refuse_no_counts
from stochgp.transforms import Log
from stochgp.warning import say, warn

logger = logging.getLogger("stochgp.estimators")

SHARE_FOR_POSTERIOR = 0.3  # learning leaves this share of the remaining time for the posterior
ROWS_FOR_NOISE = 1_000  # number of rows to estimate the variance around a fitted mean


@contextlib.contextmanager
def open_fit(
    estimator: Any, checkpoint: Any, callback: Callable | None, *, on_host: bool = False
) -> Iterator[FitContext]:
    """Open the context of a fit. Raises ValueError for invalid settings.

    `on_host`: the fit computes with NumPy in one process, and uses all threads of BLAS.
    """
    check_settings(estimator.get_params(deep=False))
    mesh = mesh_of(getattr(estimator, "devices", None))
    if n_processes(mesh) > 1 and on_host:
        raise ValueError(
            f"{type(estimator).__name__} can be fitted in one process only, but there are {n_processes(mesh)} processes"
        )
    threads = contextlib.nullcontext() if on_host else one_blas_thread()
    with FitContext.open(estimator, checkpoint, callback, mesh) as context, jax.enable_x64(True), threads:
        if mesh is not None:
            entry = {"count": mesh.size, "processes": n_processes(mesh)}
            context.record("devices", entry, "passes over rows and iterative solves run on all devices")
        yield context


def read_regression_data(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
    context: FitContext,
    *,
    inputs: Inputs = Inputs.NUMBERS,
    keeps_all: bool = True,
    counts: bool = False,
) -> TrainingData:
    """Read, transform and standardise the rows of a regressor, in memory or in files.

    `keeps_all`: keep all rows in memory. `counts`: the targets are counts, and remain untransformed.
    Raises ValueError or TypeError for data and settings that cannot be used.
    """
    mean = estimator.mean
    wanted = target_transform(estimator.likelihood)
    if counts and wanted is not None:
        raise ValueError("a likelihood of counts does not accept a transform; use the likelihood alone")
    refusals = {
        "needs rows in memory, not files; read the table first": are_files(X),
        "needs numeric inputs, not fingerprints": inputs is not Inputs.NUMBERS,
        "cannot be used with a likelihood of counts; set a number": counts,
    }
    for what, holds in refusals.items():
        if holds and isinstance(mean, str):
            raise ValueError(f"mean={mean!r} {what}")
    if are_files(X):
        if inputs is not Inputs.NUMBERS:
            raise ValueError("the Tanimoto kernel needs rows in memory, not files; read the table first")
        if wanted is not None and not isinstance(wanted, Log):
            raise ValueError(
                "for targets in files, only the transforms 'log' and 'count' are available; for other transforms, pass arrays or a table"
            )
        kind = "count" if counts or estimator._target == "count" else "real"
        others = {"sample_weight": sample_weight, "groups": groups}
        data, found = read_files(
            estimator, X, y, others, context, keeps_all=keeps_all, kind=kind, transform=wanted
        )
        return data if wanted is None else transformed_files(data, found, context)
    rows, encoder = read_training_rows(
        estimator, X, y, sample_weight, groups, context, inputs=inputs, time_order=estimator.time_order
    )
    leaves = inputs is not Inputs.NUMBERS
    if counts:
        refuse_no_counts(rows.y)
        data = TrainingData.of(rows, bool(estimator.standardize), None, estimator.dtype, leaves_targets=True)
    elif wanted is None:
        data = standardised(rows, mean, estimator, leaves, context)
    else:
        data = transformed(rows, wanted, estimator, leaves, context)
    if leaves:
        what = f"{encoder.described}, " if isinstance(encoder, FingerprintEncoder) and encoder.column else ""
        context.record("inputs", "as given", what + inputs.value)
    return dataclasses.replace(data, encoder=encoder)


def learn(
    learner: AbstractLearner,
    gp: AbstractGP,
    data: TrainingData,
    context: FitContext,
    *,
    keep_seconds: float | None = None,
    min_seconds: float = 0.0,
    prior: AbstractGP | None = None,
) -> tuple[FitResult, MemorySource]:
    """Return the result of learning, and the rows used for it.

    Learning leaves `keep_seconds` (None: 30 % of the remaining time) for the posterior, but always gets at
    least `min_seconds`. Raises MemoryLimitError if learning would exceed the memory limit.
    """
    left = deadline.left()
    kept = SHARE_FOR_POSTERIOR * left if keep_seconds is None else keep_seconds
    with deadline.within(left - kept if left < math.inf else None), deadline.granted(min_seconds):
        may_choose = context.checkpoint is None  # a resumed run must learn from the same rows
        N = rows_in_time(learner, gp, data.source(False)) if may_choose else data.n_rows
        itemsize = np.dtype(data.dtype).itemsize
        on_device, need = place(learner, gp, N, data.n_inputs, itemsize, context.budget, context.mesh)
        logger.info("learning from %d rows by %s", min(N, data.n_rows), type(learner).__name__)
        source = data.source(on_device, context.mesh)
        rows = source if data.n_rows <= N else source.some(random_rows(data.n_rows, N, context.seed("rows")))
        found = fit(
            learner, gp, rows, key=context.learn_key, progress=reporter(data, context),
            checkpoint=context.checkpoint, prior=prior,
        )  # fmt: skip
    if data.n_rows > N:
        context.end(
            RESULTS.time_limit, f"the time limit allowed learning from only {N} of {data.n_rows} rows"
        )
    if found.result in _ENDED:
        context.end(found.result, _ENDED[found.result])  # shortens later steps
    if found.result is RESULTS.diverged:
        warn(found.result.value, ConvergenceWarning, stacklevel=4)
    context.report |= {"rows_on_device": on_device, "peak_bytes": need}
    record_learning(learner, found, N, data, context)
    return found, rows


def reporter(data: TrainingData, context: FitContext) -> Report:
    """Return a function that shows entries of `history_` and calls the callback."""

    def report(entry: dict[str, float]) -> object:
        shown = in_target_units(entry, data.scale, data.log_unit)
        context.bar.show(learning_text(shown))
        if context.callback is None:
            return None
        return from_first(context.callback(shown) is True)

    return report


def observation_model(
    estimator: Any,
    likelihood: AbstractLikelihood,
    errors: Dispersion | None,
    posterior: AbstractPosterior,
    data: TrainingData,
    learns_noise: bool,
) -> Observation:
    """Return the model of an observation given f: likelihood, errors, transform, mean."""
    is_count = getattr(estimator, "_target", None) == "count"
    found = Observation(data.targets, likelihood, errors, data.transform, rounding=is_count)
    if data.transform is not None:
        found = dataclasses.replace(found, support=supported_by(data.given_targets(is_count)))
    if data.mean_function is None:
        return found
    some = data.source(False).some(random_rows(data.n_rows, ROWS_FOR_NOISE))
    _, variance = some.evaluated(posterior.mean_and_variance, posterior.block_rows)
    return found.around(data.mean_function, learns_noise, variance)


def fitted_model(
    data: TrainingData, posterior: AbstractPosterior, observation: Observation, stream: Any = None
) -> Fitted:
    """Return the fitted model; `partial_fit` uses `stream`."""
    seen = None if is_packed(data.encoder) else Seen(*data.limits)  # packed fingerprints have no ranges
    return Fitted(
        data.encoder, data.inputs, posterior, data.dtype if posterior.dtype is None else posterior.dtype,
        observation, seen, log_slope=data.log_slope, slope_rows=data.passes().count, stream=stream,
    )  # fmt: skip


def store(
    estimator: Any,
    y: Any,
    fitted: Fitted,
    data: TrainingData,
    learned: FitResult | None,
    context: FitContext,
    *,
    solution: Solution | None = None,
    nlml: float | None = None,
    score: Callable[[Fitted, Data], Scores] | None = None,
) -> None:
    """Set fitted attributes in target units. `nlml` is per row and for standardised targets."""
    parts = [part for part in (learned, solution) if part is not None]
    for part in parts:
        if part.result in _ENDED:
            context.end(part.result, _ENDED[part.result])
    if "ended" not in context.plan_:
        context.record("ended", PLANNED, "no limit and no interrupt ended the fit early")
    has_converged = all(part.converged for part in parts)
    is_optimal = context.report.get("gradients") == "exact" and has_converged
    if learned is not None and (
        caution := caution_after_fit(fitted, learned, data, score, is_optimal, context)
    ):
        context.record("caution", caution, "based on predictions of held-out or training rows")
        warn(caution, ConvergenceWarning, stacklevel=4)
    estimator._fitted, estimator.target_name_ = fitted, name_of_targets(y)
    if fitted.observation.has_noise:
        estimator.noise_variance_ = fitted.observation.noise_variance * data.scale**2
    estimator.n_iter_ = int(
        learned.n_iter if learned is not None else solution.n_steps if solution is not None else 0
    )
    estimator.converged_ = context.ended == PLANNED and has_converged and "caution" not in context.plan_
    unit = data.log_unit
    estimator.history_ = [
        in_target_units(entry, data.scale, unit) for part in parts for entry in part.history
    ]
    estimator.n_rows_ = data.n_all
    if nlml is not None:
        estimator.nlml_ = nlml + unit
    estimator.plan_, estimator.fit_report_ = Decisions(context.plan_), context.report
    for note in notes(estimator.plan_, data.n_rows):
        logger.info(note)
        say(context.verbose, note)


_ENDED = {
    RESULTS.interrupted: "Ctrl-C ended learning or solving",
    RESULTS.time_limit: "the time limit ended learning or solving",
    RESULTS.stopped: "the callback ended learning",
}
