"""Sparse regressors with inducing functions that grow from the rows, also from streams."""

import dataclasses
import typing
from typing import Any

import numpy as np

from stochgp.choosing import AS_ASKED, Decisions
from stochgp.context import PLANNED, FitContext
from stochgp.data.reading import read_inputs_at_fit, read_rows
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.estimators.diagnostics import BEFORE, Seen, caution_of_rows, shift_of, warned, within_reach
from stochgp.estimators.fitted import Fitted
from stochgp.families.common import open_fit, warn_of_data
from stochgp.families.default_learners import sparse_learner
from stochgp.families.starts import started_sparse
from stochgp.families.targets import standardised, target_transform
from stochgp.families.variational import (
    LATE,
    likelihood_of,
    refuse_fingerprints,
    resolve_kernel,
    variational_posterior,
    with_decoupled_mean,
)
from stochgp.learners import IVSGPR, AbstractLearner
from stochgp.learners.decoupled import AbstractGrowing
from stochgp.learning import Stream, begin_stream, feed
from stochgp.likelihoods import AbstractLikelihood
from stochgp.models import SparseGP
from stochgp.numerics.seeds import as_key
from stochgp.observations import Observation
from stochgp.parameters import cast
from stochgp.posteriors import VariationalPosterior
from stochgp.results import FitResult
from stochgp.tables.targets import refuse_no_targets
from stochgp.variational import Decoupled, InducingPoints

MEAN_FOR_EACH = 8  # functions of the mean per function of the covariance, by default
# For a stream that did not begin with a fit: steps on each batch until a fit's steps are reached, and afterwards; their rate; and rows of
# the smallest batch. One step per batch at 0.01 learned nothing from 1,000 rows in ten parts.
EARLY_STEPS, LATER_STEPS, STREAM_RATE, FEWEST_IN_BATCH = 40, 4, 0.05, 64


def start(
    estimator: Any,
    learner: AbstractLearner,
    data: TrainingData,
    likelihood: AbstractLikelihood,
    most: int | None,
    context: FitContext,
) -> SparseGP:
    """Return the prior with room for at most `most` functions."""
    dtype, room = np.dtype(estimator.dtype), lambda n: int(n if most is None else min(n, most))
    kernel = resolve_kernel(estimator, "rbf", data.n_inputs, data.spread)
    n, asked = room(estimator.n_inducing), estimator.n_inducing_mean
    context.record("n_inducing", n, "functions that grow from the rows, until there are so many")
    if isinstance(learner, IVSGPR):
        q = Decoupled.of(n, None, data.n_inputs, dtype=dtype)
    else:
        n_mean = room(MEAN_FOR_EACH * estimator.n_inducing if asked is None else asked)
        why = AS_ASKED if asked is not None else f"{MEAN_FOR_EACH} for each of the covariance"
        context.record("n_inducing_mean", n_mean, f"{why}; no more than rows")
        q = Decoupled.of(n_mean, n, data.n_inputs, dtype=dtype)
    return cast(SparseGP(kernel, q, likelihood), dtype)


def growing_posterior(gp: SparseGP, data: TrainingData, context: FitContext) -> VariationalPosterior:
    """Return the optimal q(f) of the learned functions, by a pass over all rows.

    They become inducing points of the covariance, and of the mean if that has its own. Without time for the pass, q(f) stays as learned.
    """
    functions: Any = gp.approximation
    points = lambda part: np.asarray(part.points)[: int(part.used)]
    if int(functions.beta.used) == 0:
        context.record("q", LATE, "no step was taken: it is the prior")
        return VariationalPosterior.of(gp, data.n_inputs)
    shared = SparseGP(gp.kernel, InducingPoints.of(points(functions.beta)), gp.likelihood)
    posterior = variational_posterior(shared, data, context)
    if context.plan_["q"]["choice"] == LATE:
        return VariationalPosterior.of(gp, data.n_inputs)
    if functions.covariance_functions is None:
        return posterior
    return with_decoupled_mean(posterior, shared, None, data, context, points(functions.mean_functions))


def partial_fit(estimator: Any, X: Any, y: Any, sample_weight: Any) -> None:
    """Implement `SparseGPRegressor.partial_fit`."""
    if target_transform(estimator.likelihood, estimator.target) is not None:
        raise ValueError("a stream's targets are not transformed: give transformed targets, or use fit")
    if estimator.calibration is not None:
        raise ValueError("a stream sets no rows aside for a calibration: leave it None, or use fit")
    refuse_fingerprints(estimator)
    before = vars(estimator).get("_fitted")
    if before is not None and before.stream is None:
        raise ValueError("the model was not fitted as one that learns from a stream: fit it again")
    with open_fit(estimator, None, None) as context:
        refuse_no_targets(estimator, y)
        encoder = None
        if before is None:
            encoder, X = read_inputs_at_fit(estimator, X, context.budget, estimator.missing)
        else:
            X = estimator._read(X, learns=True)
        rows = read_rows(X, y, sample_weight, may_weigh_nothing=True)  # neither sorted nor merged
        if before is None:
            data = standardised(rows, estimator.mean, estimator, False, context)
            data = dataclasses.replace(data, encoder=encoder)
            warn_of_data(estimator, data, learns=True)
            before = _begun(estimator, data, context)
            estimator.n_rows_, estimator.fit_report_ = 0, {}
        else:
            rows = within_reach(before, rows, stacklevel=4)
            context.plan_ = estimator.plan_.without("caution")
        found, losses = _fed(estimator, before, rows)
        warned(_cautions(before, found, rows, bool(losses)), context, stacklevel=5)
        _store(estimator, before, found, losses, context)


def _store(estimator: Any, before: Fitted, found: Fitted, losses: list[float], context: FitContext) -> None:
    """Set the fitted attributes after a portion of a stream."""
    context.record("q", "as learned", "a stream keeps no rows whose optimum could be found")
    context.record("ended", PLANNED, "a stream has no planned end")
    estimator._fitted, estimator.plan_, s = found, Decisions(context.plan_), found.target_scale
    estimator.fit_report_ = estimator.fit_report_ | context.report
    estimator.fit_report_.pop("elbo", None)
    estimator.noise_variance_ = found.observation.noise_variance * s**2
    estimator.n_rows_ += found.stream.n_rows - before.stream.n_rows
    estimator.n_iter_ = int(found.stream.n_steps)
    numbered = enumerate(losses, estimator.n_iter_ - len(losses) + 1)
    estimator.history_ = [{"step": step, "loss": loss + float(np.log(s))} for step, loss in numbered]
    estimator.converged_, estimator.target_name_ = False, getattr(estimator, "target_name_", None)


def _begun(estimator: Any, data: TrainingData, context: FitContext) -> Fitted:
    """Return the model before the first row, with batches of at most the first call's rows."""
    learner, why = _learner(estimator, data.n_rows)
    likelihood, _ = started_sparse(estimator, learner, data)
    gp = start(estimator, learner, data, likelihood, None, context)
    dtype = np.dtype(estimator.dtype)
    stream = begin_stream(learner, gp, data.n_inputs, key=as_key(estimator.random_state), dtype=dtype)
    context.record("learner", type(learner).__name__, why)
    context.report |= {"batch_size": learner.batch_size, "gradients": learner.gradients}
    posterior = VariationalPosterior.of(gp, data.n_inputs)
    observation = Observation(data.targets, likelihood_of(gp))
    return Fitted(
        data.encoder, data.inputs, posterior, estimator.dtype, observation, Seen.of(data), stream=stream
    )


def stream_of(
    estimator: Any, gp: SparseGP, learned: FitResult, data: TrainingData, context: FitContext
) -> Stream:
    """Return the state that a `fit` leaves for a stream; the model alone if no step was taken."""
    learner, _ = _learner(estimator, data.n_rows)
    key, dtype = context.learn_key, np.dtype(estimator.dtype)
    begin: Any = gp if learned.n_iter == 0 or learned.state is None else learned.state
    n_steps = 0 if begin is gp else learned.n_iter
    return begin_stream(learner, begin, data.n_inputs, n_steps=n_steps, key=key, dtype=dtype)


def _fed(estimator: Any, before: Fitted, rows: Data) -> tuple[Fitted, list[float]]:
    """Return the model after steps on the batches that the rows fill, and their losses."""
    learner, _ = _learner(estimator, len(before.stream.waiting.y))
    new = rows.standardised(before.inputs, before.targets, estimator.dtype)
    of_stream = lambda n_steps: EARLY_STEPS if n_steps < AbstractGrowing.steps else LATER_STEPS
    passes = estimator.epochs or (1 if "result" in estimator.fit_report_ else of_stream)
    stream, losses = feed(learner, before.stream, new.X, new.y, new.weight, passes=passes)
    found = dataclasses.replace(before.with_inputs(rows.X), stream=stream)
    if not losses:
        return found, losses
    observation = dataclasses.replace(before.observation, likelihood=likelihood_of(stream.gp), inflation=None)
    posterior = VariationalPosterior.of(stream.gp, new.X.shape[1])
    return dataclasses.replace(found, posterior=posterior, observation=observation), losses


def _cautions(before: Fitted, found: Fitted, rows: Data, has_learned: bool) -> list[str]:
    """Return warnings of a shift, and of predictions of the last batch or of the new rows."""
    goes_on = before.stream.n_steps > 0
    said = [shift_of(before, rows.X, rows.y)] if goes_on else []
    if has_learned:
        last = found.stream.waiting
        X, y = found.inputs.inverse(np.asarray(last.X)), found.targets.inverse(np.asarray(last.y))
        said.append(caution_of_rows(found, Data(X, y, np.asarray(last.weight, np.float64)), "the last rows"))
    if not any(said) and goes_on:
        said.append(caution_of_rows(before, rows, BEFORE))
    return [text for text in said if text]


def _learner(estimator: Any, most: int) -> tuple[AbstractGrowing, str]:
    """Return the learner of a stream, with small batches."""
    found, why = sparse_learner(estimator, 0, False)
    learner = typing.cast(AbstractGrowing, found)
    size = min(learner.batch_size, max(most, FEWEST_IN_BATCH))
    rate = STREAM_RATE if learner.learning_rate is None else learner.learning_rate
    return dataclasses.replace(learner, batch_size=size, learning_rate=rate), why
