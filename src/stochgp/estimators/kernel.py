"""The kernel GP behind scikit-learn's door."""

import math
import typing
from typing import Any, no_type_check

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from stochgp import kernels
from stochgp.budget import Budget
from stochgp.data.neighbours import search_bytes
from stochgp.estimators.base import GPRegressor, Run
from stochgp.estimators.choices import LOCAL_ROWS, kernel_learner
from stochgp.estimators.raised_noise import raised_for_solving
from stochgp.estimators.report import choice
from stochgp.estimators.solving import KernelPosterior, Wanted, posterior_of
from stochgp.estimators.units import TrainingData
from stochgp.kernels.warped import is_deep
from stochgp.learners import AbstractLearner
from stochgp.models import KernelGP
from stochgp.objectives.slq import Estimate
from stochgp.parameters import cast
from stochgp.planning.solve_plan import SolvePlan
from stochgp.posteriors import AbstractPosterior, ExactKernelPosterior, LocalPosterior, SampledKernelPosterior
from stochgp.posteriors.local import NEIGHBOURS
from stochgp.results import FitResult, Solution
from stochgp.solvers import AbstractSolver

START_NOISE = 0.1  # of targets with variance 1
CALIBRATION_ROWS = 500  # training rows that set the scale of local variances


class KernelGPRegressor(GPRegressor):
    """Gaussian process regression with any kernel and any number of rows: `predict` is of the function without noise.

    kernel          "rbf", "matern12", "matern32", "matern52", "linear", … or a kernel of `stochgp.kernels`
    learner         "auto", "bsgd", "full-batch", "iterative", or a learner of `stochgp.learners`; None = keep the hyperparameters given
    noise_variance  σ², in the units of what the kernel sees (standardised targets when `standardize`); None = learned, or 0.1
    solver          "auto", "cholesky", "cg", "sgd", "sdd", or a solver of `stochgp.solvers`
    prediction      "auto", "global" or "local"
    n_samples       function samples solved with the mean, for variances where exact ones do not fit; 0 = none
    batch_size, epochs, learning_rate
                    of the learner: None = its own
    mean            prior mean in target units; None = the average of the targets, or 0 with standardize=False
    standardize     inputs and targets to mean 0 and standard deviation 1 by the (weighted) training rows
    memory_limit    "1GB", bytes or None (half of what is available) for the process during a call; what exceeds it is refused
    time_limit      seconds after which a fit ends with the best state so far
    dtype           "float32" or "float64" for rows and kernel
    random_state    None, an integer, a NumPy RandomState or Generator
    verbose         1 shows progress on stderr
    missing         "refuse", or "impute": missing inputs become the median of their column, or a level of their own
    plan            `plan_` of another fit, whose choices are taken over: nothing is timed again, so that the same rows and seed give the same bits

    After `fit`: `kernel_` on the data that the kernel sees; in units of the targets given `noise_variance_`, `nlml_` (exact, where the
    solver is direct), `nlml_estimate_` and `nlml_stderr_` (see there); `n_iter_`; `converged_`: the residual, measured on all rows, is within the tolerance of the plan; `history_` (docs/methods/history.md);
    `plan_` choices and reasons, `plan_["variance"]` says how standard deviations are computed and their expected relative error;
    `fit_seconds_`; `n_features_in_`, `feature_names_in_`; `target_name_`. A saved model holds the standardised training rows.
    """

    @no_type_check  # scikit-learn wants any value taken here, and judged in `fit`
    def __init__(
        self,
        kernel: Any = "matern32",
        learner: Any = "auto",
        noise_variance: float | None = None,
        solver: Any = "auto",
        prediction: str = "auto",
        n_samples: int = 64,
        batch_size: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        mean: float | None = None,
        standardize: bool = True,
        memory_limit: str | int | float | None = None,
        time_limit: float | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: int = 0,
        missing: str = "refuse",
        plan: dict[str, Any] | None = None,
    ):
        self.kernel = kernel
        self.learner = learner
        self.noise_variance = noise_variance
        self.solver = solver
        self.prediction = prediction
        self.n_samples = n_samples
        self.batch_size = batch_size
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.mean = mean
        self.standardize = standardize
        self.memory_limit = memory_limit
        self.time_limit = time_limit
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.missing = missing
        self.plan = plan

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
        """
        return self._estimate().value + math.log(self._fitted.target_scale)

    @property
    def nlml_stderr_(self) -> float:
        """The standard error of `nlml_estimate_`; 0 where that is exact."""
        return self._estimate().stderr

    def _estimate(self) -> Estimate:
        posterior = self._fitted.posterior if "_fitted" in vars(self) else None
        if not isinstance(posterior, ExactKernelPosterior | SampledKernelPosterior):
            raise AttributeError("nlml_estimate_ is there after a fit whose prediction is global")
        return posterior.nlml_estimate

    def _choose_learner(self, data: TrainingData) -> tuple[AbstractLearner | None, str]:
        return kernel_learner(
            self.learner, data.n_rows, deep=is_deep(self.kernel),
            batch_size=self.batch_size, epochs=self.epochs, learning_rate=self.learning_rate,
        )  # fmt: skip

    def _start(self, data: TrainingData, key: PRNGKeyArray) -> KernelGP:
        kernel = kernels.resolve(self.kernel, data.n_inputs, dtype=jnp.dtype(self.dtype))
        noise = START_NOISE if self.noise_variance is None else self.noise_variance
        return cast(KernelGP(kernel=kernel, noise=noise), self.dtype)

    def _posterior_of(
        self, gp: KernelGP, learned: FitResult | None, data: TrainingData, run: Run
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        """By a solve of all rows, or from the rows nearest to each point."""
        prediction = run.planned("prediction") or self.prediction
        why = "as asked" if self.prediction != "auto" else f"global up to {LOCAL_ROWS} rows"
        if prediction == "local" or (prediction == "auto" and data.n_rows > LOCAL_ROWS):
            return _local(data, gp, run.budget), None, {"prediction": choice("local", why)}
        choices = {"prediction": choice("global", why)}
        if learned is not None:
            learned_noise = float(gp.noise_variance)
            solvable, choices["noise_variance"] = raised_for_solving(gp, data)
            if solvable is not gp:
                choices["learned_noise_variance"] = choice(learned_noise, "before it was raised")
            gp = solvable
        wanted = Wanted(
            self.solver,
            int(self.n_samples),
            run.left(),
            self.dtype,
            self.verbose,
            self._given_plan(run),
            run.checkpoint,
        )
        posterior, solved, more = posterior_of(gp, data, wanted, run.budget, key=run.solve_key)
        return posterior, solved, choices | more

    def _given_plan(self, run: Run) -> SolvePlan | None:
        if run.plan is None:
            return None
        return SolvePlan.of(run.plan, solver=self.solver if isinstance(self.solver, AbstractSolver) else None)

    def _nlml(self, learned: FitResult | None) -> float | None:
        posterior = self._fitted.posterior
        return posterior.nlml() if isinstance(posterior, ExactKernelPosterior) else None


def _local(data: TrainingData, gp: KernelGP, budget: Budget) -> LocalPosterior:
    """Prediction from neighbours, calibrated."""
    N, D = data.n_rows, data.n_inputs
    tree = search_bytes(N, D, CALIBRATION_ROWS, NEIGHBOURS)
    budget.require(tree + 8 * N * (D + 2), f"local prediction from {N} rows")
    local = LocalPosterior(gp=gp, X=data.X, y=data.y, weight=data.count)
    return local.calibrated(CALIBRATION_ROWS, 0)
