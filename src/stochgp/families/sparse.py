"""The sparse GP as a scikit-learn estimator."""

import dataclasses
import os
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from stochgp import kernels
from stochgp.choosing import AS_ASKED, Decisions
from stochgp.context import PLANNED, FitContext
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.deadline import Pace
from stochgp.estimators.base import FamilyRegressor
from stochgp.estimators.diagnostics import further_rows, warn_of_data
from stochgp.families.common import (
    fitted_model,
    learn,
    observation_model,
    open_fit,
    read_regression_data,
    store,
)
from stochgp.families.default_learners import sparse_learner
from stochgp.families.left_out import error_distribution
from stochgp.families.starts import (
    AUTO,
    SPARSE,
    is_of_counts,
    name_of,
    resolve_likelihood,
    started_sparse,
)
from stochgp.families.variational import (
    LATE,
    bound_of,
    likelihood_of,
    refuse_fingerprints,
    resolve_kernel,
    start,
    variational_posterior,
    with_decoupled_mean,
)
from stochgp.learners import IVSGPR, SGPR, AbstractLearner, ByLoss, Problem
from stochgp.learners.base import BatchState
from stochgp.learners.decoupled import AbstractGrowing
from stochgp.learning.run import take_stretch
from stochgp.likelihoods import AbstractLikelihood, Shifted
from stochgp.models import SparseGP, revalued
from stochgp.numerics.arrays import on_device
from stochgp.observations import Dispersion
from stochgp.observations.error_distribution import GAUSSIAN
from stochgp.parameters import cast
from stochgp.posteriors import VariationalPosterior
from stochgp.results import FitResult
from stochgp.variational import Decoupled, InducingPoints
from stochgp.variational.decoupled import DecoupledProcess

GROWING = ("ivsgpr", "svdgp")
MEAN_FOR_EACH = 8  # functions of the mean per function of the covariance, by default
PASSES = 4  # over the rows of a further call of `partial_fit`
WIDE_JITTER = 1e-8  # of k(Z, Z) if all numbers are in float64


@dataclass(eq=False, repr=False)
class SparseGPRegressor(FamilyRegressor):
    """Gaussian process regression with few inducing points.

    `predict` returns the mean of the latent function, without noise. Counts are not standardised. Their latent function is the logarithm of their mean:
    `predict` returns the mean e^f, `kernel` is for f, and `mean` is the prior mean count, 1 with standardize=False.

    Parameters
    ----------
    kernel
        "auto" (Matérn 3/2; RBF for functions that grow), "rbf", "matern12", "matern32", "matern52", "rational-quadratic", "linear", or a kernel of
        `stochgp.kernels`, including deep kernels.
    learner
        "auto": "svgp", for up to 1,000 rows "sgpr" with Gaussian noise and "vgp" with another likelihood; "svgp": mini-batches; "sgpr": the collapsed bound of
        all rows by L-BFGS; "vgp": the bound of any likelihood at the best q(f) of all rows, by L-BFGS;
        "svdgp": many functions for the mean, few for the covariance; "ivsgpr": mirror ascent; or a learner of `stochgp.learners`. Functions of the last two names
        grow from the rows, so that they can learn from a stream. With Gaussian noise each `fit` ends with the optimal q(f).
    n_inducing : int
        Inducing points; all rows if there are fewer.
    n_inducing_mean
        Points of the mean. For "svgp" and "sgpr" with constant Gaussian noise: None = 4,096, 2,048 or 1,024, as time and memory allow, first the inducing
        points and then random rows; a number = that many; 0 = the inducing points. The mean is then solved in closed form, with the covariance of the inducing
        points (docs/methods/sparse.md). For "svdgp": functions of the mean; None = 8 per function of the covariance.
    likelihood
        "auto" (constant Gaussian noise, unless leave-one-out errors clearly favour another distribution: see docs/methods/row_noise.md), "gaussian",
        "student-t"; for counts "poisson" and "negative-binomial"; or an object of
        `stochgp.likelihoods` of one of these kinds. All but "auto" and Gaussian noise need "svgp" or "vgp". `likelihoods.Warped(likelihood, transform)`: the real
        targets are transformed, and results are in their original units.
    {shared}

    Attributes
    ----------
    kernel_, likelihood_
        The learned kernel, for the model's inputs, and the learned likelihood.
    noise_variance_, elbo_
        In units of the original targets: Gaussian or Student-t noise; a lower bound of the log marginal likelihood per datum.
    {fitted}

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import SparseGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (500, 1))
    >>> counts = rng.poisson(np.exp(np.sin(X[:, 0])))
    >>> model = SparseGPRegressor(likelihood="poisson", n_inducing=30, random_state=0).fit(X, counts)
    >>> float(model.predict_distribution([[1.5]]).cdf(-1)[0])
    0.0
    """

    kernel: Any = "auto"
    learner: Any = "auto"
    n_inducing: int = 512
    n_inducing_mean: int | None = None
    likelihood: Any = field(default="auto", kw_only=True)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "SparseGPRegressor":
        """Learn q(u), inducing points and hyperparameters from rows X [N, D] and targets y [N].

        Raises as `KernelGPRegressor.fit`, which describes the parameters.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            See `KernelGPRegressor.fit`. Files are read block by block, so that memory does not grow with the rows.
        """
        with open_fit(self, checkpoint, callback) as context:
            given = resolve_likelihood(self._likelihood, SPARSE)
            refuse_fingerprints(self)
            data = read_regression_data(
                self, X, y, sample_weight, groups, context, keeps_all=False, counts=is_of_counts(given)
            )
            learner = self._learner(name_of(given), data, context)
            warn_of_data(data, learns=True)
            gp = self._start(learner, data, context)
            learned, _ = learn(learner, gp, data, context)
            gp = learned.gp
            posterior = context.finish(lambda: self._posterior(gp, data, context))
            errors = context.finish(lambda: self._error_distribution(posterior, gp, data, context))
            likelihood = _with_noise_of(posterior, likelihood_of(gp))
            observation = observation_model(self, likelihood, errors, posterior, data, True)
            stream = _state(learner, learned, data, context) if self._grows else None
            fitted = fitted_model(data, posterior, observation, stream)
            store(self, y, fitted, data, learned, context)
        return self

    @available_if(lambda self: self._grows)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SparseGPRegressor":
        """Learn from the next rows of a stream, "svdgp" and "ivsgpr" only; the first call is `fit`.

        Each further call takes the `epochs` of the learner over its rows (None = 4) with the functions, the optimiser's state and the learning rate so far, and with all
        rows so far as the N of the bound. Functions grow from the rows while there is room, hyperparameters keep adapting, and memory stays constant.
        Predictions then use q after the steps, not the optimum of a `fit`, and there is no `elbo_`, as earlier rows are gone. `n_rows_` counts all rows, and
        `history_` covers this call.

        Warns (ConvergenceWarning) about rows that are on average far from the first ones, and about rows that the previous model predicts worse than a
        constant, or with too small a variance. Raises ValueError or TypeError as `fit`.
        """
        if "_fitted" not in vars(self):
            return self.fit(X, y, sample_weight)
        with open_fit(self, None, None) as context:
            _continue(self, further_rows(self, X, y, sample_weight, context), context)
        return self

    @property
    def kernel_(self) -> kernels.AbstractKernel:
        """The learned kernel, for the model's inputs (standardised if `standardize=True`)."""
        check_is_fitted(self)
        return cast(self._fitted.posterior.kernel, self.dtype)

    @property
    def elbo_(self) -> float:
        """A lower bound of the log marginal likelihood per datum, in target units."""
        return bound_of(self)

    @property
    def likelihood_(self) -> AbstractLikelihood:
        """The learned likelihood of the standardised targets, or of counts as they are."""
        check_is_fitted(self)
        found = self._fitted.observation.likelihood
        return found.likelihood if isinstance(found, Shifted) else found

    @property
    def _grows(self) -> bool:
        return (
            self.learner in GROWING
            if isinstance(self.learner, str)
            else isinstance(self.learner, AbstractGrowing)
        )

    def _learner(self, likelihood: str, data: TrainingData, context: FitContext) -> AbstractLearner:
        n_latent = getattr(self._likelihood, "n_latent", 1)
        learner, why = sparse_learner(self, data.n_all, likelihood in (AUTO, GAUSSIAN), n_latent)
        if self.n_inducing_mean is not None and isinstance(learner, IVSGPR):
            raise ValueError(
                f"n_inducing_mean is {self.n_inducing_mean!r}, but 'ivsgpr' has one set of functions: leave it None"
            )
        if self.n_inducing_mean == 0 and self._grows:
            raise ValueError("n_inducing_mean is 0, but the mean of 'svdgp' needs functions of its own")
        context.record("learner", type(learner).__name__, why)
        return learner

    def _start(self, learner: AbstractLearner, data: TrainingData, context: FitContext) -> SparseGP:
        likelihood, variance = started_sparse(self, learner, data)
        if self._grows:
            return _growing(self, learner, data, likelihood, context)
        given = self._likelihood
        if given != AUTO:
            context.record("likelihood", given if isinstance(given, str) else type(given).__name__, AS_ASKED)
        jitter = WIDE_JITTER if isinstance(learner, SGPR) else None
        return start(self, data, likelihood, variance, context, jitter=jitter)

    def _posterior(self, gp: SparseGP, data: TrainingData, context: FitContext) -> VariationalPosterior:
        """Return q(f) with the optimal q(u) of all rows, if there is time for a pass."""
        if self._grows:
            return _growing_posterior(gp, data, context)
        posterior = variational_posterior(gp, data, context)
        if context.plan_["q"]["choice"] == LATE:
            return posterior
        return with_decoupled_mean(posterior, gp, self.n_inducing_mean, data, context)

    def _error_distribution(
        self,
        posterior: VariationalPosterior,
        gp: SparseGP,
        data: TrainingData,
        context: FitContext,
    ) -> Dispersion | None:
        """Return the error distribution; "auto" compares on leave-one-out errors."""
        if self._likelihood != AUTO:
            return None
        if isinstance(posterior.process, DecoupledProcess):
            why = "there was no time for functions whose optimum says how rows are predicted without them"
        elif data.rows.group is not None:
            why = "whole groups do not say how rows are predicted without them"
        else:
            found = error_distribution(AUTO, posterior, gp, data, context)
            vars(posterior).pop("solved", None)
            return found
        context.record("likelihood", GAUSSIAN, why)
        return None


def _with_noise_of(posterior: VariationalPosterior, likelihood: Any) -> AbstractLikelihood:
    """Return the likelihood with the noise of a decoupled mean."""
    if posterior.noise is None:
        return likelihood
    level = revalued(likelihood.noise.level, posterior.noise)
    return eqx.tree_at(lambda likelihood: likelihood.noise.level, likelihood, level)


def _growing(
    estimator: SparseGPRegressor,
    learner: AbstractLearner,
    data: TrainingData,
    likelihood: AbstractLikelihood,
    context: FitContext,
) -> SparseGP:
    """Return the prior with room for functions, no more than rows."""
    dtype, N, D = np.dtype(estimator.dtype), data.n_rows, data.n_inputs
    kernel = resolve_kernel(estimator, "rbf", D, data.spread)
    n, asked = min(int(estimator.n_inducing), N), estimator.n_inducing_mean
    context.record("n_inducing", n, "functions that grow from the rows, until there are so many")
    if isinstance(learner, IVSGPR):
        q = Decoupled.of(n, None, D, dtype=dtype)
    else:
        n_mean = min(int(MEAN_FOR_EACH * estimator.n_inducing if asked is None else asked), N)
        why = AS_ASKED if asked is not None else f"{MEAN_FOR_EACH} for each of the covariance"
        context.record("n_inducing_mean", n_mean, f"{why}; no more than rows")
        q = Decoupled.of(n_mean, n, D, dtype=dtype)
    return cast(SparseGP(kernel, q, likelihood), dtype)


def _growing_posterior(gp: SparseGP, data: TrainingData, context: FitContext) -> VariationalPosterior:
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


def _state(learner: Any, learned: FitResult, data: TrainingData, context: FitContext) -> BatchState:
    """Return the learner's state, with which `partial_fit` continues; a new one if no step was taken."""
    if learned.state is not None:
        return learned.state
    source = data.source(False)
    problem = Problem(source, learner.plan(source.size, source.n_inputs, ByLoss()), None)
    return learner.init(learned.gp, problem, key=context.learn_key)


def _continue(estimator: Any, rows: Data, context: FitContext) -> None:
    """Take steps on the rows and set the fitted attributes."""
    before, (state, losses) = estimator._fitted.with_rows(rows), _learned(estimator, rows)
    context.record("q", "as learned", "a stream keeps no rows whose optimum could be found")
    context.record("ended", PLANNED, "a stream has no planned end")
    observation = dataclasses.replace(before.observation, likelihood=likelihood_of(state.gp), inflation=None)
    posterior, s = VariationalPosterior.of(state.gp, rows.X.shape[1]), before.target_scale
    estimator._fitted = dataclasses.replace(
        before, posterior=posterior, observation=observation, stream=state
    )
    first = estimator.n_iter_ + 1
    estimator.history_ = [{"step": first + k, "loss": loss + float(np.log(s))} for k, loss in losses]
    estimator.noise_variance_ = observation.noise_variance * s**2
    estimator.n_rows_, estimator.n_iter_ = estimator.n_rows_ + len(rows), estimator.history_[-1]["step"]
    estimator.plan_, estimator.converged_ = Decisions(context.plan_), False
    estimator.fit_report_ = {k: v for k, v in estimator.fit_report_.items() if k != "elbo"}


def _learned(estimator: Any, rows: Data) -> tuple[BatchState, list[tuple[int, float]]]:
    """Return the learner's state after passes over the rows, and the mean losses after numbers of steps."""
    fitted, learner = estimator._fitted, typing.cast(AbstractGrowing, sparse_learner(estimator, 0, False)[0])
    learner = dataclasses.replace(learner, epochs=PASSES if learner.epochs is None else learner.epochs)
    units = {"inputs": fitted.inputs, "targets": fitted.targets, "dtype": np.dtype(fitted.dtype)}
    y = fitted.observation.centred(rows.X, rows.y)
    source = MemorySource(rows.X, y, rows.weight, **units, on_device=False)
    plan = learner.plan(source.size, source.n_inputs, ByLoss())
    seed, step, losses = (estimator.n_iter_, estimator.n_rows_), 0, []
    state = learner.decaying(fitted.stream, None)
    problem = Problem(source, plan, learner.prepare(state.gp, source, plan, seed))
    dtype = np.dtype(state.n_rows.dtype)
    sizes = on_device(state.n_rows + source.size, dtype), on_device(state.count + source.count, dtype)
    state = eqx.tree_at(lambda s: (s.n_rows, s.count), state, sizes)
    while step < plan.total_steps:
        state, taken, numbers = take_stretch(learner, state, problem, step, seed, pieces=Pace())
        step += taken
        losses.append((step - 1, numbers["loss"]))
    return state, losses
