"""The kernel GP as a scikit-learn estimator."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from stochgp import deadline, kernels
from stochgp.budget import Budget
from stochgp.context import FitContext
from stochgp.data.memory import MemorySource
from stochgp.data.reading import read_inputs, read_rows
from stochgp.data.training import TrainingData, in_target_units
from stochgp.estimators.base import FamilyRegressor
from stochgp.estimators.diagnostics import warn_of_data, within_reach
from stochgp.families.common import (
    fitted_model,
    learn,
    observation_model,
    open_fit,
    read_regression_data,
    reporter,
    store,
)
from stochgp.families.default_learners import HURRIED, OF_SUBSET, SPREAD, kernel_learner
from stochgp.families.kernel_posterior import kernel_posterior, require_memory, seconds_for_posterior
from stochgp.families.left_out import error_distribution
from stochgp.families.rotation import rotate_inputs
from stochgp.families.solving import updated
from stochgp.families.starts import (
    AUTO,
    KERNEL,
    inputs_of,
    near_in_time,
    resolve_likelihood,
    start_noise,
    with_packing,
)
from stochgp.kernels.warped import is_deep, networks_held
from stochgp.learners import AbstractLearner, FullBatch
from stochgp.learners.conditionals import AbstractConditionals
from stochgp.learning.fit import DONE, continued
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.models import KernelGP
from stochgp.numerics.seeds import as_key
from stochgp.observations import Dispersion
from stochgp.observations.error_distribution import GAUSSIAN
from stochgp.parameters import Frozen, cast, positive
from stochgp.posteriors import (
    AbstractPosterior,
    ExactKernelPosterior,
    LocalPosterior,
)
from stochgp.results import RESULTS, FitResult
from stochgp.tables.molecules import is_packed
from stochgp.warning import progress_bar

MIN_SECONDS = 2.0  # minimum for learning with compilation, even if the time limit is shorter
START_ROWS, MIN_START_ROWS = 1_000, 200
START = FullBatch(spread=SPREAD, tolerance=1e-2)
UPDATE_SEED = 0  # `update` combines it with the number of earlier rows to a seed of the solver


@dataclass(eq=False, repr=False)
class KernelGPRegressor(FamilyRegressor):
    """Gaussian process regression with any kernel and any number of rows.

    `predict` returns the mean of the latent function, without noise. Saved models contain the training rows.

    Parameters
    ----------
    kernel : str or AbstractKernel
        A kernel of `stochgp.kernels`, or a name: "rbf", "matern12", "matern32", "matern52", "linear", … The
        inputs of a named kernel may be rotated (docs/methods/rotation.md). "tanimoto" is `kernels.Tanimoto()
        + kernels.Constant()`, for fingerprints or for a table that consists of a column of SMILES.
    likelihood : str or AbstractLikelihood
        "auto": constant Gaussian noise, or another error distribution if it clearly predicts left-out rows
        better (docs/methods/row_noise.md). Other values are "gaussian", "student-t" and objects of
        `stochgp.likelihoods`. In `Gaussian(σ²)` and `StudentT(df, σ²)`, σ² is the initial noise variance, in
        squared units of standardised targets. `Gaussian(parameters.frozen(σ²))` keeps σ².
        `Warped(likelihood, transform)` also transforms the targets.
    learner : str, AbstractLearner or None
        "auto" (docs/methods/kernel_gp.md), "loo", "vecchia", "bsgd", "full-batch", or a learner of
        `stochgp.learners`. None keeps the given hyperparameters.
    solver : str or AbstractSolver
        "cholesky", "cg", "sdd" or a solver of `stochgp.solvers`: the posterior uses all rows. "local":
        predictions use the training rows nearest to each new row. "auto": "local" for more than 100,000 rows.
    {shared}

    Attributes
    ----------
    kernel_
        The kernel with its hyperparameters, for standardised inputs if `standardize=True`.
    noise_variance_
        The noise variance in squared target units; with few rows, an average over hyperparameters.
    nlml_
        The negative log marginal likelihood per row, in target units; only with a Cholesky solver.
    fit_report_
        Measured numbers of learning and solving, such as the relative residual of the solve.
    {fitted}

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import KernelGPRegressor, kernels
    >>> X = np.linspace(0, 10, 200)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> model = KernelGPRegressor(kernels.RBF(1.0), random_state=0, time_order="interpolate")
    >>> mean, std = model.fit(X, y).predict([[5.0], [50.0]], return_std=True)
    >>> bool(std[0] < std[1])
    True
    """

    kernel: Any = "matern32"
    learner: Any = "auto"
    _earlier: ClassVar[Any] = None  # for refits of pools: the estimator with the known noise variance
    solver: Any = "auto"
    _rotates: ClassVar[bool] = True  # False for members of pools whose rows have groups

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "KernelGPRegressor":
        """Learn hyperparameters from rows X [N, D] and targets y [N], and compute the posterior.

        Raises ValueError or TypeError for invalid data or settings, and MemoryLimitError if the fit would
        exceed `memory_limit`. After an error, the estimator is unchanged.

        Parameters
        ----------
        X, y : array or table, array
            Arrays or a data frame, whose text and dates `fit` encodes as numbers. For files, X is the path of
            a table or of a folder of tables, or a `data.FileSource`; y is the name of a column.
        sample_weight : array [N] or None
            Frequency weights ρ: a row with the weight ρ has the noise variance σ²/ρ.
        groups : array [N] or None
            The group of each row, such as a day or a patient. Validation holds out whole groups.
        checkpoint : path or None
            A file for the state of the fit. After a crash, `fit` with the same data continues from the file.
        callback : callable or None
            A function that `fit` calls with each new entry of `history_`. If the function returns True, or
            after Ctrl-C, learning ends with the best state so far.
        """
        with open_fit(self, checkpoint, callback, on_host=True) as context:
            inputs = inputs_of(self.kernel)
            data = read_regression_data(self, X, y, sample_weight, groups, context, inputs=inputs)
            learner, why = kernel_learner(
                self.learner, data.n_rows, deep=is_deep(self.kernel), hurried=deadline.left() < HURRIED,
                grouped=data.rows.group is not None,
            )  # fmt: skip
            context.record("learner", None if learner is None else type(learner).__name__, why)
            warn_of_data(data, learns=learner is not None)
            require_memory(data, self, context)
            gp, learned = initial_kernel_gp(self, data), None
            if learner is not None:
                learned = learned_kernel_gp(self, learner, gp, data, context)
                gp = learned.gp
            is_learned = learned is not None
            posterior: Any
            posterior, solution = context.finish(
                lambda: kernel_posterior(gp, data, self, context, is_learned=is_learned)
            )
            errors = context.finish(lambda: self._error_distribution(posterior, gp, data, context))
            likelihood = Gaussian(posterior.noise)
            learns_noise = is_learned and not isinstance(gp.noise.level, Frozen)
            observation = observation_model(self, likelihood, errors, posterior, data, learns_noise)
            exact = getattr(posterior, "base", posterior)  # the posterior at the learned hyperparameters
            nlml = exact.nlml() if isinstance(exact, ExactKernelPosterior) else None
            fitted = fitted_model(data, posterior, observation)
            store(self, y, fitted, data, learned, context, solution=solution, nlml=nlml)
            self._errors = errors
        return self

    def _error_distribution(
        self, posterior: AbstractPosterior, gp: KernelGP, data: TrainingData, context: FitContext
    ) -> Dispersion | None:
        """Return the error distribution. "auto" compares distributions only for learned noise."""
        if self._earlier is not None and isinstance(posterior, LocalPosterior):
            return self._earlier._errors
        likelihood = resolve_likelihood(self._likelihood, KERNEL)
        if likelihood == AUTO and self.learner is None:
            context.record("likelihood", GAUSSIAN, "the noise was not learned")
            return None
        return error_distribution(likelihood, posterior, gp, data, context)

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelGPRegressor":
        """Add rows to the posterior. Hyperparameters and standardisation remain those of `fit`.

        The result is the posterior of all rows, up to the tolerance of the solver. An iterative solver starts
        at its last solution. `n_rows_`, `converged_`, `nlml_` and `fit_report_["residual"]` then describe all
        rows, and `history_` also contains the steps of the update. `time_limit` limits the update.

        Raises ValueError or TypeError for invalid rows, and MemoryLimitError above `memory_limit`.
        """
        check_is_fitted(self)
        budget = Budget.of(self.memory_limit)
        encoder = self._fitted.encoder
        X = read_inputs(self, encoder, X).astype(float, copy=False)
        rows = read_rows(X, y, sample_weight, joins=encoder, may_weigh_nothing=True).counted()
        rows = within_reach(self._fitted, rows, stacklevel=2)
        if len(rows) == 0:
            return self
        n_updates = self.fit_report_.get("updates", 0) + 1
        key = jax.random.fold_in(as_key(UPDATE_SEED), self.n_rows_)
        with deadline.within(self.time_limit), progress_bar(self.verbose) as bar:
            fitted, solved = updated(self._fitted, rows, bar.show, budget, key=key)
        if solved is not None and solved.result is RESULTS.interrupted:
            raise KeyboardInterrupt  # the earlier model is unchanged
        self._fitted = fitted
        self.n_rows_ += len(rows)
        self.fit_report_ = self.fit_report_ | {"updates": n_updates}
        if solved is None:
            return self
        self.fit_report_ = self.fit_report_ | {"residual": float(solved.residual_norms[0])}
        self.converged_ = bool(solved.converged)
        s, unit = fitted.target_scale, fitted.log_unit
        self.history_ = self.history_ + [in_target_units(entry, s, unit) for entry in solved.history]
        if isinstance(posterior := getattr(fitted.posterior, "base", fitted.posterior), ExactKernelPosterior):
            self.nlml_ = posterior.nlml() + unit
        return self

    @property
    def kernel_(self) -> kernels.AbstractKernel:
        """The kernel with its hyperparameters, for standardised inputs if `standardize=True`."""
        check_is_fitted(self)
        return model_of(self._fitted.posterior).kernel


def model_of(posterior: Any) -> Any:
    """Return the learned kernel and noise. The noise excludes factors of the variances of predictions."""
    return posterior.gp if isinstance(posterior, LocalPosterior) else posterior.system


def learned_kernel_gp(
    estimator: KernelGPRegressor, learner: AbstractLearner, gp: KernelGP, data: TrainingData,
    context: FitContext,
) -> FitResult:  # fmt: skip
    """Learn hyperparameters. Then rotate inputs, or learn the kernel on a network again."""
    is_auto, deep, start = estimator.learner == "auto", is_deep(gp.kernel), gp
    if not deep and (is_auto or isinstance(learner, AbstractConditionals)):
        start = optimum_of_few(gp, data.source(False), context)
    learned, source = learn(
        learner, start, data, context, keep_seconds=seconds_for_posterior(data, estimator),
        min_seconds=MIN_SECONDS if is_auto else 0.0, prior=gp,
    )  # fmt: skip
    if deep:
        is_default = is_auto or estimator.learner == "bsgd"
        again = networks_held(learned.gp) if is_default and learned.result in DONE else None
        refit = OF_SUBSET
    else:
        again, hessian = rotate_inputs(estimator, learned, learner, source, context)
        refit = learner.refitting(hessian)
    if again is None:
        return learned
    return continued(
        learned, again, refit, source, key=context.learn_key, progress=reporter(data, context),
        checkpoint=context.checkpoint_of("refit"),
    )  # fmt: skip


def optimum_of_few(gp: KernelGP, source: MemorySource, context: FitContext) -> KernelGP:
    """Return the optimal model of at most 1,000 random rows. With few rows, return `gp`."""
    order = np.random.default_rng(context.seed("start")).permutation(source.size)
    size = min(START_ROWS, source.size // 4)
    start = gp
    for n in (size // 4, size):
        if n >= MIN_START_ROWS:
            start = START.optimum(start, gp, source.some(np.sort(order[:n])))
    return start


def initial_kernel_gp(estimator: KernelGPRegressor, data: TrainingData) -> KernelGP:
    """Return the initial kernel and noise."""
    dtype, spread, given = jnp.dtype(estimator.dtype), data.spread, estimator.kernel
    likelihood = resolve_likelihood(estimator._likelihood, KERNEL)
    if estimator._earlier is None:
        noise = start_noise(likelihood, KERNEL, spread, estimator.dtype)
    else:
        noise = known_noise(float(model_of(estimator._earlier._fitted.posterior).noise.level))
    kernel = kernels.resolve(given, data.n_inputs, variance=spread, dtype=dtype)
    if isinstance(given, str):
        encoder = vars(estimator).get("_encoder_of_pool", data.encoder)
        kernel = near_in_time(kernel, encoder, data.n_rows, data.rows.group)
    if isinstance(given, str) and given == "tanimoto":  # the constant models the mean of f
        kernel = kernel + kernels.Constant(positive(spread, dtype=dtype))
    return cast(KernelGP(kernel=with_packing(kernel, is_packed(data.encoder)), noise=noise), estimator.dtype)
