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
MEAN_FOR_EACH = 8  # default number of functions of the mean per function of the covariance
PASSES = 4  # default number of passes over the rows of `partial_fit`
WIDE_JITTER = 1e-8  # jitter of k(Z, Z) in float64


@dataclass(eq=False, repr=False)
class SparseGPRegressor(FamilyRegressor):
    """Gaussian process regression with few inducing points.

    `predict` returns the mean of the latent function, without noise. For counts, the latent function f is the
    logarithm of the mean count, and `predict` returns the mean of e^f. Counts are not standardised.

    Parameters
    ----------
    kernel : str or AbstractKernel
        A kernel of `stochgp.kernels`, including deep kernels, or a name: "rbf", "matern12", "matern32",
        "matern52", "rational-quadratic", "linear". With the learners "svdgp" and "ivsgpr", "auto" means
        "rbf", otherwise "matern32".
    learner : str or AbstractLearner
        "svgp" uses mini-batches. "sgpr" maximises the collapsed bound of all rows, for Gaussian noise. "vgp"
        maximises the bound of all rows, for any likelihood. "svdgp" has many inducing functions for the mean
        and few for the covariance. "ivsgpr" uses mirror ascent. "auto" means "sgpr" with Gaussian noise and
        at most 4,000 rows, "vgp" with other likelihoods and at most 1,000 rows, and otherwise "svgp". Only
        "svdgp" and "ivsgpr" learn from streams (`partial_fit`). You can also pass a learner of
        `stochgp.learners`.
    n_inducing : int
        Number of inducing points, but at most the number of rows.
    n_inducing_mean : int or None
        Number of inducing points of the mean. With "svgp" or "sgpr", and if the noise is Gaussian and
        constant, the mean has a closed form. This mean uses the `n_inducing` points and random rows
        (docs/methods/sparse.md). 0: the mean uses only the `n_inducing` points. None: 8 times `n_inducing`
        for "svdgp"; otherwise at most 4,096 (fewer for few rows or little memory).
    likelihood : str or AbstractLikelihood
        "auto": constant Gaussian noise, or another error distribution if it clearly predicts left-out rows
        better (docs/methods/row_noise.md). Other values are "gaussian", "student-t", "poisson" (for counts),
        "negative-binomial" (for counts) and objects of `stochgp.likelihoods`. Only "svgp" and "vgp" accept
        likelihoods other than Gaussian noise. `likelihoods.Warped(likelihood, transform)` transforms targets.
    {shared}

    Attributes
    ----------
    kernel_
        The learned kernel, for standardised inputs if `standardize=True`.
    likelihood_
        The learned likelihood of the standardised targets, or of the counts.
    noise_variance_
        The variance of Gaussian or Student-t noise, in squared target units.
    elbo_
        A lower bound of the log marginal likelihood per row, in target units.
    {fitted}

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import SparseGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (500, 1))
    >>> counts = rng.poisson(np.exp(np.sin(X[:, 0])))
    >>> model = SparseGPRegressor(likelihood="poisson", n_inducing=30, random_state=0)
    >>> float(model.fit(X, counts).predict_distribution([[1.5]]).cdf(-1)[0])
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

        Raises the same errors as `KernelGPRegressor.fit`.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            See `KernelGPRegressor.fit`. `fit` reads files in blocks, in constant memory.
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
        """Learn from the next rows of a stream, with "svdgp" or "ivsgpr"; the first call is `fit`.

        Each further call makes `epochs` passes over the new rows (4 if the learner has no `epochs`). The call
        continues with the functions, the optimiser and the learning rate of the previous call, and adds
        functions until there are `n_inducing`. Memory stays constant. `elbo_` is not available, because q(f)
        is not optimal. `n_rows_` counts all rows; `history_` contains only the steps of this call.

        Warns (ConvergenceWarning) if the new rows are far from the first rows, or if the previous model
        predicts the new rows badly. Raises the same errors as `fit`.
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
        """A lower bound of the log marginal likelihood per row, in target units."""
        return bound_of(self)

    @property
    def likelihood_(self) -> AbstractLikelihood:
        """The learned likelihood of the standardised targets, or of the counts."""
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
                f"n_inducing_mean is {self.n_inducing_mean!r}, but 'ivsgpr' uses the same functions for mean and covariance: set n_inducing_mean=None"
            )
        if self.n_inducing_mean == 0 and self._grows:
            raise ValueError("n_inducing_mean is 0, but 'svdgp' needs at least one function for the mean")
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
        """Return the error distribution. "auto" compares distributions of leave-one-out errors."""
        if self._likelihood != AUTO:
            return None
        if isinstance(posterior.process, DecoupledProcess):
            why = "there was no time to compute leave-one-out errors"
        elif data.rows.group is not None:
            why = "rows have groups, but leave-one-out errors leave out single rows"
        else:
            found = error_distribution(AUTO, posterior, gp, data, context)
            vars(posterior).pop("solved", None)
            return found
        context.record("likelihood", GAUSSIAN, why)
        return None


def _with_noise_of(posterior: VariationalPosterior, likelihood: Any) -> AbstractLikelihood:
    """Return the likelihood with the noise variance of the decoupled mean of the posterior."""
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
    """Return the prior with space for inducing functions, at most one per row."""
    dtype, N, D = np.dtype(estimator.dtype), data.n_rows, data.n_inputs
    kernel = resolve_kernel(estimator, "rbf", D, data.spread)
    n, asked = min(int(estimator.n_inducing), N), estimator.n_inducing_mean
    context.record("n_inducing", n, "maximum number of functions, which learning adds at training rows")
    if isinstance(learner, IVSGPR):
        q = Decoupled.of(n, None, D, dtype=dtype)
    else:
        n_mean = min(int(MEAN_FOR_EACH * estimator.n_inducing if asked is None else asked), N)
        why = AS_ASKED if asked is not None else f"{MEAN_FOR_EACH} per function of the covariance"
        context.record("n_inducing_mean", n_mean, f"{why}; at most one per row")
        q = Decoupled.of(n_mean, n, D, dtype=dtype)
    return cast(SparseGP(kernel, q, likelihood), dtype)


def _growing_posterior(gp: SparseGP, data: TrainingData, context: FitContext) -> VariationalPosterior:
    """Return the optimal q(f) for the learned functions, which become inducing points."""
    functions: Any = gp.approximation
    points = lambda part: np.asarray(part.points)[: int(part.used)]
    if int(functions.beta.used) == 0:
        context.record("q", LATE, "no step was taken, so q(f) is the prior")
        return VariationalPosterior.of(gp, data.n_inputs)
    shared = SparseGP(gp.kernel, InducingPoints.of(points(functions.beta)), gp.likelihood)
    posterior = variational_posterior(shared, data, context)
    if context.plan_["q"]["choice"] == LATE:
        return VariationalPosterior.of(gp, data.n_inputs)
    if functions.covariance_functions is None:
        return posterior
    return with_decoupled_mean(posterior, shared, None, data, context, points(functions.mean_functions))


def _state(learner: Any, learned: FitResult, data: TrainingData, context: FitContext) -> BatchState:
    """Return the learner's state for `partial_fit`. If no step was taken, return a new state."""
    if learned.state is not None:
        return learned.state
    source = data.source(False)
    problem = Problem(source, learner.plan(source.size, source.n_inputs, ByLoss()), None)
    return learner.init(learned.gp, problem, key=context.learn_key)


def _continue(estimator: Any, rows: Data, context: FitContext) -> None:
    """Take steps on the rows and set the fitted attributes."""
    before, (state, losses) = estimator._fitted.with_rows(rows), _learned(estimator, rows)
    context.record("q", "as learned", "earlier rows are not stored, so the optimum of all rows is unknown")
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
    """Return the state after passes over the rows, and the mean losses by step."""
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
