"""The kernel GP as a scikit-learn estimator."""

import typing
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from sklearn.utils.validation import check_is_fitted

from stochgp import deadline, kernels
from stochgp.budget import Budget
from stochgp.choosing import choice, too_few
from stochgp.data.streams import AbstractSource
from stochgp.estimators.helps import within_reach
from stochgp.estimators.regressor import FamilyRegressor
from stochgp.families.kernel_posterior import WantedPosterior
from stochgp.families.solving import KernelPosterior, Wanted
from stochgp.families.updating import updated
from stochgp.kernels.warped import is_deep
from stochgp.learners import AbstractLearner
from stochgp.learning.log import Report
from stochgp.learning.placing import COMPILER_BYTES
from stochgp.likelihoods import AbstractLikelihood, Gaussian
from stochgp.models import AbstractGP, KernelGP
from stochgp.numerics.seeds import as_key
from stochgp.observations import Dispersion
from stochgp.observations.error_distribution import GAUSSIAN
from stochgp.parameters import cast
from stochgp.posteriors import (
    AbstractPosterior,
    ExactKernelPosterior,
    LocalPosterior,
    MixturePosterior,
    SampledKernelPosterior,
)
from stochgp.posteriors.base import Request
from stochgp.results import RESULTS, Estimate, FitResult, Solution
from stochgp.selection.choices import HURRIED, kernel_learner
from stochgp.selection.error_distribution import error_distribution
from stochgp.selection.kernel_choice import USUAL, best_kernel, kernel_called, near_in_time, short_days
from stochgp.selection.likelihood import AUTO, KERNEL, Asked, start_noise
from stochgp.selection.metric import COMPARE, with_metric
from stochgp.training_data.fingerprinted import (
    Inputs,
    inputs_with_smiles,
    is_packed,
    with_level,
    with_packing,
)
from stochgp.training_data.inputs import read_inputs, read_rows
from stochgp.training_data.run import Run
from stochgp.training_data.units import TrainingData, in_target_units

LEAST_SECONDS = 2.0  # of learning, compilation included
UPDATE_SEED = 0  # of the noise drawn for new rows, with the number of rows before them


@dataclass(eq=False, repr=False)
class KernelGPRegressor(FamilyRegressor):
    """Gaussian process regression with any kernel and any number of rows: `predict` is of the function without noise.

    Parameters
    ----------
    kernel
        "auto" (compared on held-out rows: Matérn 1/2, 3/2, 5/2, RBF, a broad plus a short term), "rbf", "matern12", "matern32", "matern52", "linear", … or a
        kernel of `stochgp.kernels`; "tanimoto" for fingerprints: `kernels.Tanimoto() + kernels.Constant()` (docs/methods/molecules.md says why).
    learner
        "auto" (docs/methods/kernel_gp.md: what is learned by default), "loo", "vecchia", "bsgd", "full-batch", "iterative", or a learner of
        `stochgp.learners`; None = keep the hyperparameters given.
    noise_variance
        σ², in the units of what the kernel sees (standardised targets when `standardize`): a value is kept, while the kernel is learned; None = learned, from
        a tenth of the targets' mean square, which `learner=None` keeps.
    solver
        "auto", "cholesky", "cg", "sgd", "sdd", "adasap", or a solver of `stochgp.solvers`.
    prediction : "auto", "global" or "local"
        From all rows, or from the nearest ones of each new row.
    n_samples : int
        Function samples solved with the mean, for variances where exact ones do not fit; 0 = none.
    metric : "auto", "compare" or "inputs"
        Whether lengthscales are along the inputs, or along directions that the rows choose where left-out rows gain by it (docs/methods/metric.md): "compare"
        tries that with any stationary kernel of one lengthscale for each input, which `kernel_` then has behind a linear map; "auto" with a kernel given by
        its name; "inputs" never.
    smiles
        The column of a table that holds molecules, or a `data.Morgan`: their Morgan counts are the inputs of the Tanimoto kernel, and `missing="skip"` leaves
        out those that cannot be read (predictions NaN).
    likelihood
        "auto" (constant Gaussian noise, unless held-out rows say clearly otherwise: see docs/methods/row_noise.md), "gaussian", "student-t", or
        `Gaussian(noise)` or `StudentT(df, noise)` of `stochgp.likelihoods`, whose noise is learned with the kernel; or
        `Warped(one of these, transform)`: the targets are transformed, and everything is said in their units.
    {shared}

    Attributes
    ----------
    kernel_
        With its hyperparameters, on the data that the kernel sees.
    noise_variance_, nlml_
        In units of the targets given; the first is a mean over hyperparameters for 3 to 400 rows (`plan_["hyperparameters"]`). The NLML per row is exact, where the solver is direct. `nlml_estimate_` and `nlml_stderr_`: see there.
    converged_
        The residual, measured on all rows, is within the tolerance of the plan.
    plan_
        Choices and reasons; `plan_["variance"]` says how standard deviations are computed and their expected relative error.
    history_, n_iter_, fit_seconds_
        What learning and solving met (docs/methods/history.md); steps; seconds.
    n_features_in_, feature_names_in_, target_name_
        Of the rows. A saved model holds the standardised training rows and targets.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import KernelGPRegressor, kernels
    >>> X = np.linspace(0, 10, 200)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> model = KernelGPRegressor(kernels.RBF(1.0), random_state=0, new_rows="between").fit(X, y)
    >>> mean, std = model.predict([[5.0], [50.0]], return_std=True)
    >>> bool(std[0] < std[1])
    True
    """

    kernel: Any = "matern32"
    learner: Any = "auto"
    noise_variance: float | None = None
    solver: Any = "auto"
    prediction: str = "auto"
    n_samples: int = 64
    metric: str = field(default="auto", kw_only=True)
    smiles: Any = field(default=None, kw_only=True)
    _shares_learning: ClassVar[bool] = False

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelGPRegressor":
        """Take in more rows: the posterior becomes that of all rows, by a solve that begins where the last one ended.

        Hyperparameters, solver, tiles, the functions held for standard deviations, and what standardises inputs and targets stay those of
        `fit`. So the result is the posterior that a fit of all rows at these hyperparameters would have, to the tolerance of its solve.
        New columns' values are read as `predict` reads them. `n_rows_`, `converged_`, `nlml_` and `plan_["residual"]` are of all rows, and
        `history_` gains what the solve met. The time that it takes is bounded by `time_limit`.

        Raises ValueError or TypeError, in one line, for rows that cannot be used and for what would exceed `memory_limit`.
        """
        check_is_fitted(self)
        budget = Budget.of(self.memory_limit)
        encoder = self._fitted.encoder
        X = read_inputs(self, encoder, X, budget).astype(float, copy=False)
        rows = read_rows(X, y, sample_weight, joins=encoder, may_weigh_nothing=True).counted()
        rows = within_reach(self._fitted, rows, stacklevel=2)
        if len(rows) == 0:
            return self
        n_updates = self.plan_.get("updates", {"choice": 0})["choice"] + 1
        key = jax.random.fold_in(as_key(UPDATE_SEED), self.n_rows_)
        with deadline.within(self.time_limit):
            fitted, solved = updated(self._fitted, rows, self._wanted_solve(), budget, key=key)
        if (
            solved is not None and solved.result is RESULTS.interrupted
        ):  # the model stays that of the earlier rows
            raise KeyboardInterrupt
        self._fitted = fitted
        self.n_rows_ += len(rows)
        self.plan_ = self.plan_ | {"updates": choice(n_updates, "calls that took in more rows after the fit")}
        if solved is not None:
            self._report_solved(solved)
        return self

    def _report_solved(self, solved: Solution) -> None:
        """Attributes that an update changes, in target units."""
        why = f"of the mean, relative, measured on all rows; {solved.result.name}"
        self.plan_ = self.plan_ | {"residual": choice(float(solved.residual_norms[0]), why)}
        self.converged_ = bool(solved.converged)
        s, unit = self._fitted.target_scale, self._fitted.log_unit
        self.history_ = self.history_ + [in_target_units(entry, s, 1.0, unit) for entry in solved.history]
        if isinstance(posterior := self._at_learned, ExactKernelPosterior):
            self.nlml_ = posterior.nlml() + unit

    @property
    def kernel_(self) -> kernels.AbstractKernel:
        """The kernel with its hyperparameters, on the rows that it sees (standardised when `standardize=True`)."""
        if "_fitted" not in vars(self):
            raise AttributeError("kernel_ is there after fit")
        posterior = self._fitted.posterior
        if isinstance(posterior, LocalPosterior):
            return posterior.gp.kernel
        return typing.cast(KernelPosterior, posterior).system.kernel

    @property
    def nlml_estimate_(self) -> float:
        """The NLML per datum, in target units; where no factor gives it exactly, estimated from 250 products with K when first asked for.

        Stochastic Lanczos quadrature with 10 probes, of standard error `nlml_stderr_`. The quadratic term is that of the solution found.
        Raises ValueError, with both numbers, where it would exceed `memory_limit`.
        """
        return self._estimate().value + self._fitted.log_unit

    @property
    def nlml_stderr_(self) -> float:
        """The standard error of `nlml_estimate_`; 0 where that is exact."""
        return self._estimate().stderr

    def _estimate(self) -> Estimate:
        posterior = self._at_learned if "_fitted" in vars(self) else None
        if not isinstance(posterior, ExactKernelPosterior | SampledKernelPosterior):
            raise AttributeError("nlml_estimate_ is there after a fit whose prediction is global")
        if "nlml_estimate" not in vars(posterior):
            self._reserve(Request(likelihood=True), "the estimate of the marginal likelihood")
        return posterior.nlml_estimate

    def _choose_learner(self, data: TrainingData) -> tuple[AbstractLearner | None, str]:
        return kernel_learner(
            self.learner, data.n_rows, deep=is_deep(self.kernel), hurried=self._is_hurried(),
            grouped=data.rows.group is not None,
            batch_size=self.batch_size, epochs=self.epochs, learning_rate=self.learning_rate,
        )  # fmt: skip

    def _inputs(self) -> Inputs:
        return inputs_with_smiles(self.kernel, self.smiles, self.missing)

    def _is_hurried(self) -> bool:
        """Whether there is no time to search neighbours."""
        return deadline.left() < HURRIED

    def _start(self, data: TrainingData, run: Run) -> tuple[KernelGP, dict[str, Any]]:
        """The kernel given, or of that name; the noise given, which nothing trains, or `starting_noise`.

        Raises MemoryLimitError, before anything is learned, if the solve that follows will not fit.
        """
        self._wanted_posterior().require(data, run, 0 if self.learner is None else COMPILER_BYTES)
        dtype, spread = jnp.dtype(self.dtype), data.spread
        noise = start_noise(self._asked, self.noise_variance, spread, self.dtype)

        def with_kernel(kernel: kernels.AbstractKernel) -> KernelGP:
            return cast(KernelGP(kernel=kernel, noise=noise), self.dtype)

        named = self.kernel if isinstance(self.kernel, str) else None
        days = [] if named is None else short_days(data.encoder, data.n_rows, data.rows.group)

        def start(name: str) -> KernelGP:
            kernel = kernel_called(name, data.n_inputs, variance=spread, dtype=dtype)
            return with_kernel(near_in_time(kernel, days))

        if named != "auto":
            kernel = kernels.resolve(self.kernel, data.n_inputs, variance=spread, dtype=dtype)
            if named == "tanimoto":
                kernel = with_level(kernel, spread, dtype)
            kernel = with_packing(kernel, is_packed(data.encoder))
            return with_kernel(near_in_time(kernel, days)), {}
        late = "there was no time to compare kernels" if self._is_hurried() else None
        if refusal := late or too_few(data.n_rows, data.rows.group):
            name, why = USUAL, refusal
        else:
            name, why = best_kernel(start, data.source(False), key=run.start_key)
        return start(name), {"kernel": choice(name, why)}

    def _likelihood_of(
        self,
        gp: KernelGP,
        learned: FitResult | None,
        posterior: KernelPosterior | LocalPosterior | MixturePosterior,
    ) -> AbstractLikelihood:
        """The noise of the posterior, raised or scaled with it."""
        return Gaussian(posterior.noise)

    def _dispersion_of(
        self,
        gp: AbstractGP,
        learned: FitResult | None,
        posterior: AbstractPosterior,
        data: TrainingData,
        run: Run,
    ) -> tuple[Dispersion | None, dict[str, Any]]:
        """How errors are distributed: "auto" compares only where the noise was learned."""
        asked, kept = (
            self._asked.as_chosen(self._chosen_likelihood),
            self.learner is None or self.noise_variance is not None,
        )
        if asked.name == AUTO and kept:
            return None, {"likelihood": choice(GAUSSIAN, "the noise was not learned")}
        return error_distribution(asked, posterior, gp, data, run)

    @property
    def _asked(self) -> Asked:
        return Asked.of(self._likelihood, KERNEL)

    def _refine(
        self,
        found: FitResult,
        gp: KernelGP,
        learner: AbstractLearner,
        rows: AbstractSource,
        run: Run,
        report: Report,
    ) -> tuple[FitResult, dict[str, Any]]:
        """Rotate the inputs if this improves the log density of left-out rows."""
        asked = COMPARE if self.metric == "auto" and isinstance(self.kernel, str) else self.metric
        return with_metric(asked, found, learner, rows, run, report)

    def _least_seconds(self) -> float:
        """The hyperparameters at the start are those of no data: predictions with them would be too certain or not certain enough."""
        return LEAST_SECONDS if self._learns_automatically else 0.0

    @property
    def _learns_automatically(self) -> bool:
        return isinstance(self.learner, str) and self.learner == "auto"

    def _seconds_after(self, data: TrainingData, run: Run) -> float:
        return self._wanted_posterior().seconds(data, run)

    def _posterior_of(
        self, gp: KernelGP, learned: FitResult | None, data: TrainingData, run: Run
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        return self._wanted_posterior().of(gp, learned, data, run)

    def _wanted_posterior(self) -> WantedPosterior:
        return WantedPosterior(self.prediction, self._wanted_solve(), self.noise_variance is not None)

    def _wanted_solve(self) -> Wanted:
        return Wanted(self.solver, int(self.n_samples), self.dtype, self.verbose)

    def _nlml(self, learned: FitResult | None) -> float | None:
        posterior = self._at_learned
        return posterior.nlml() if isinstance(posterior, ExactKernelPosterior) else None

    @property
    def _at_learned(self) -> AbstractPosterior:
        """The posterior at the learned hyperparameters."""
        posterior = self._fitted.posterior
        return posterior.base if isinstance(posterior, MixturePosterior) else posterior
