"""The kernel GP behind scikit-learn's door."""

import math
import os
import time
import warnings
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.exceptions import ConvergenceWarning

from stochgp import kernels
from stochgp.budget import Budget
from stochgp.data.neighbours import search_bytes
from stochgp.data.streams import DeviceRows
from stochgp.estimators.base import PosteriorRegressor
from stochgp.estimators.inputs import TrainingRows, read_training_rows
from stochgp.estimators.kernel_defaults import LOCAL_ROWS, kernel_learner
from stochgp.estimators.kernel_fitted import KernelFitted
from stochgp.estimators.kernel_solve import KernelRows, Wanted, described, posterior_of
from stochgp.estimators.local_fitted import LocalFitted
from stochgp.estimators.progress import progress_line
from stochgp.estimators.scaling import in_target_units, standardisers
from stochgp.estimators.solvable_noise import solvable_noise
from stochgp.kernels.warped import is_deep
from stochgp.learners import AbstractKernelLearner, KernelFitResult, fit_kernel
from stochgp.models import KernelGP
from stochgp.names import lookup
from stochgp.numerics.seeds import as_key
from stochgp.objectives.slq import Estimate
from stochgp.parameters import cast
from stochgp.planning.solver import NAMES
from stochgp.posteriors import LocalPosterior
from stochgp.posteriors.local import NEIGHBOURS
from stochgp.results import RESULTS, Solution
from stochgp.solvers import AbstractSolver

START_NOISE = 0.1  # of targets with variance 1
CALIBRATION_ROWS = 500  # training rows that set the scale of local variances
LEARNER_COMPILER_BYTES = 150_000_000  # what compiling and running a learner leaves behind

_DTYPES = ("float32", "float64")


class KernelGPRegressor(PosteriorRegressor):
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

    After `fit`: `kernel_` on the data that the kernel sees; in units of the targets given `noise_variance_`, `nlml_` (exact, where the
    solver is direct), `nlml_estimate_` and `nlml_stderr_` (see there); `n_iter_`; `converged_`: the residual, measured on all rows, is within the tolerance of the plan; `history_`;
    `plan_` choices and reasons, `plan_["variance"]` says how standard deviations are computed and their expected relative error;
    `fit_seconds_`; `n_features_in_`, `feature_names_in_`; `target_name_`. A saved model holds the standardised training rows.
    """

    _fitted: KernelFitted | LocalFitted

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

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, checkpoint: str | os.PathLike | None = None
    ) -> "KernelGPRegressor":
        """Learn the hyperparameters, unless `learner` is None, and solve for the posterior given rows X [N, D] and targets y [N].

        A row of weight ρ counts as ρ rows: its noise variance is σ²/ρ. Text columns of a data frame are one-hot encoded. Ctrl-C and
        `time_limit` end the fit with the best state so far. Raises ValueError or TypeError, in one line, for data or settings that
        cannot be used, and for a fit that would exceed `memory_limit` (with both numbers).
        """
        begun = time.perf_counter()
        self._check_settings()
        key, budget = as_key(self.random_state), Budget.of(self.memory_limit)
        rows = read_training_rows(self, X, y, sample_weight, budget, self.missing)
        learner, why = kernel_learner(
            self.learner, len(rows.y), deep=is_deep(self.kernel),
            batch_size=self.batch_size, epochs=self.epochs, learning_rate=self.learning_rate,
        )  # fmt: skip
        learn_key, solve_key = jax.random.split(key)
        with jax.enable_x64(True):
            data = self._standardised(rows)
            gp, learned = self._start(data), None
            if learner is not None:
                learner = _within(learner, data, budget)
                learned = self._learn(learner, gp, data, learn_key, checkpoint)
                gp = learned.gp
            choices, solved = {"learner": {"choice": type(learner).__name__, "why": why}}, None
            if self._is_local(len(data.y)):
                self._predict_locally(data, gp, budget)
            else:
                if learner is not None:
                    gp, choices["noise_variance"] = solvable_noise(gp, data)
                left = None if self.time_limit is None else self.time_limit - (time.perf_counter() - begun)
                wanted = Wanted(self.solver, int(self.n_samples), left, self.dtype, self.verbose)
                self._fitted, chosen, solved = posterior_of(gp, data, wanted, budget, key=solve_key)
                choices |= described(chosen, solved)
        self._report(data, learned, solved, choices)
        name = getattr(y, "name", None)
        self.target_name_ = name if isinstance(name, str) else None
        self.fit_seconds_ = time.perf_counter() - begun
        return self

    @property
    def kernel_(self) -> kernels.AbstractKernel:
        """The kernel with its hyperparameters, on the rows that it sees (standardised when `standardize=True`)."""
        if "_fitted" not in vars(self):
            raise AttributeError("kernel_ is there after fit")
        return self._fitted.kernel

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
        fitted = vars(self).get("_fitted")
        if not isinstance(fitted, KernelFitted):
            raise AttributeError("nlml_estimate_ is there after a fit whose prediction is global")
        return fitted.nlml_estimate

    def _check_settings(self) -> None:
        """ValueError or TypeError for settings that make no sense."""
        lookup(self.dtype, dict.fromkeys(_DTYPES), "dtype")
        lookup(self.prediction, dict.fromkeys(("auto", "global", "local")), "prediction")
        if isinstance(self.solver, str):
            lookup(self.solver, dict.fromkeys(("auto", *NAMES)), "solver")
        elif not isinstance(self.solver, AbstractSolver):
            raise TypeError(f"solver must be a name or a solver of stochgp.solvers, not {self.solver!r}")
        if isinstance(self.n_samples, bool) or int(self.n_samples) != self.n_samples or self.n_samples < 0:
            raise ValueError(f"n_samples is {self.n_samples!r}; it must be a whole number of at least 0")
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError(f"time_limit is {self.time_limit!r}; it must be positive, in seconds, or None")
        if self.mean is not None and not math.isfinite(self.mean):
            raise ValueError(f"mean is {self.mean!r}; it must be None or a finite number")
        if self.noise_variance is not None and not 0 < self.noise_variance < math.inf:
            raise ValueError(f"noise_variance is {self.noise_variance!r}; it must be positive and finite")

    def _standardised(self, rows: TrainingRows) -> KernelRows:
        inputs, targets = standardisers(rows, bool(self.standardize), self.mean)
        X = jnp.asarray(inputs.transform(rows.X, self.dtype))
        return KernelRows(X, targets.transform(rows.y), rows.weight, inputs, targets, rows.encoder)

    def _start(self, data: KernelRows) -> KernelGP:
        """The model with the user's values, or starting values."""
        kernel = kernels.resolve(self.kernel, data.X.shape[1], dtype=jnp.dtype(self.dtype))
        noise = START_NOISE if self.noise_variance is None else self.noise_variance
        return cast(KernelGP(kernel, noise), self.dtype)

    def _learn(
        self,
        learner: AbstractKernelLearner,
        gp: KernelGP,
        data: KernelRows,
        key: PRNGKeyArray,
        checkpoint: Any,
    ) -> KernelFitResult:
        source = DeviceRows(np.asarray(data.X), data.y.astype(self.dtype), data.weight, dtype=self.dtype)
        with progress_line(self.verbose, _learning_text) as progress:
            result = fit_kernel(
                learner,
                gp,
                source,
                key=key,
                progress=progress,
                checkpoint=checkpoint,
                time_limit=self.time_limit,
            )
        if result.result is RESULTS.diverged:
            warnings.warn(result.result.value, ConvergenceWarning, stacklevel=3)
        return result

    def _is_local(self, n_rows: int) -> bool:
        return self.prediction == "local" or (self.prediction == "auto" and n_rows > LOCAL_ROWS)

    def _predict_locally(self, data: KernelRows, gp: KernelGP, budget: Budget) -> None:
        N, D = data.X.shape
        tree = search_bytes(N, D, CALIBRATION_ROWS, NEIGHBOURS)
        budget.require(tree + 8 * N * (D + 2), f"local prediction from {N} rows")
        posterior = LocalPosterior(gp, np.asarray(data.X), data.y, data.weights).calibrated(
            CALIBRATION_ROWS, 0
        )
        self._fitted = LocalFitted(
            data.encoder, data.inputs, data.targets, posterior, posterior.noise_variance, self.dtype
        )

    def _report(
        self,
        data: KernelRows,
        learned: KernelFitResult | None,
        solved: Solution | None,
        choices: dict[str, Any],
    ) -> None:
        """The fitted attributes, in target units."""
        s = float(data.targets.scale)
        parts = [part for part in (learned, solved) if part is not None]
        self.noise_variance_ = self._fitted.noise_variance * s**2
        steps = [learned.n_iter] if learned is not None else [solved.n_steps] if solved is not None else [0]
        self.n_iter_ = int(steps[0])
        self.converged_ = all(part.converged for part in parts)
        self.history_ = [in_target_units(entry, s) for part in parts for entry in part.history]
        prediction = "local" if isinstance(self._fitted, LocalFitted) else "global"
        why = "as asked" if self.prediction != "auto" else f"global up to {LOCAL_ROWS} rows"
        self.plan_ = {"prediction": {"choice": prediction, "why": why}} | choices
        if isinstance(self._fitted, KernelFitted) and self._fitted.exact:
            self.nlml_ = self._fitted.nlml() + math.log(s)


def _within(learner: AbstractKernelLearner, data: KernelRows, budget: Budget) -> AbstractKernelLearner:
    """The learner within the memory limit; ValueError, with both numbers, where it cannot be."""
    N, D = data.X.shape
    learner = learner.within(N, D, max(budget.free() - LEARNER_COMPILER_BYTES, 0))
    need = learner.need_bytes(N, D) + LEARNER_COMPILER_BYTES
    budget.require(need, f"learning from {N} rows by {type(learner).__name__}")
    return learner


def _learning_text(entry: dict[str, float]) -> str:
    loss = f": loss {entry['loss']:.4f}" if "loss" in entry else ""  # not at the start
    return f"learning, step {entry['step']:.0f}{loss}, {entry['seconds']:.0f} s"
