"""The sparse GP as a scikit-learn estimator."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from stochgp import kernels
from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext, restored_on_error
from stochgp.data.training import TrainingData
from stochgp.estimators.base import FamilyRegressor
from stochgp.families import growing
from stochgp.families.common import (
    fitted_model,
    learn,
    observation_model,
    open_fit,
    read_regression_data,
    store,
    warn_of_data,
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
    start,
    variational_posterior,
    with_decoupled_mean,
)
from stochgp.learners import IVSGPR, SGPR, AbstractLearner
from stochgp.learners.decoupled import AbstractGrowing
from stochgp.likelihoods import AbstractLikelihood, Shifted
from stochgp.models import SparseGP, revalued
from stochgp.observations import Dispersion
from stochgp.observations.error_distribution import GAUSSIAN
from stochgp.parameters import cast
from stochgp.posteriors import VariationalPosterior
from stochgp.variational.decoupled import DecoupledProcess

GROWING = ("ivsgpr", "svdgp")
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
            warn_of_data(self, data, learns=True)
            gp = self._start(learner, data, context)
            learned, _ = learn(learner, gp, data, context)
            gp = learned.gp
            posterior = context.finish(lambda: self._posterior(gp, data, context))
            errors = context.finish(lambda: self._error_distribution(posterior, gp, data, context))
            likelihood = _with_noise_of(posterior, likelihood_of(gp))
            observation = observation_model(self, likelihood, errors, posterior, data, True)
            stream = growing.stream_of(self, gp, learned, data, context) if self._grows else None
            fitted = fitted_model(self, data, posterior, observation, context, stream)
            store(self, y, fitted, data, learned, context)
        return self

    @available_if(lambda self: self._grows)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SparseGPRegressor":
        """Learn from the next rows of a stream: "svdgp" and "ivsgpr" only.

        After a `fit` it continues with its functions, its optimiser's state and its learning rate, with all rows so far as the N of the bound. Otherwise the
        first call standardises inputs and targets and sets the size of the batches: `batch_size`, or the number of rows if smaller, but at least 64. Functions
        grow from the rows while there is room, hyperparameters keep adapting, and memory stays constant. Rows wait until a batch is full; then `epochs` steps
        are taken on it (None = 40 up to 2,048 in all and 4 later, at a rate of 0.05; after a `fit` 1). So the model depends on the rows and their order, not
        on the portions after the first call, and a saved and loaded model continues with the same bits. Predictions use q after the steps, not the
        optimum of a `fit`. Afterwards `n_rows_` counts the rows learned from, `history_` covers this call, and there is no `elbo_`, as earlier rows are gone.

        Warns (ConvergenceWarning) about rows that are on average far from the first ones, rows that are predicted worse than by a constant, and
        intervals that are too narrow. Raises ValueError or TypeError as `fit`, and ValueError with a calibration, which needs rows that are set aside.
        """
        with restored_on_error(self):
            growing.partial_fit(self, X, y, sample_weight)
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
            return growing.start(self, learner, data, likelihood, data.n_rows, context)
        given = self._likelihood
        if given != AUTO:
            context.record("likelihood", given if isinstance(given, str) else type(given).__name__, AS_ASKED)
        jitter = WIDE_JITTER if isinstance(learner, SGPR) else None
        return start(self, data, likelihood, variance, context, jitter=jitter)

    def _posterior(self, gp: SparseGP, data: TrainingData, context: FitContext) -> VariationalPosterior:
        """Return q(f) with the optimal q(u) of all rows, if there is time for a pass."""
        if self._grows:
            return growing.growing_posterior(gp, data, context)
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
