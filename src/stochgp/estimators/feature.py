"""The feature GP behind scikit-learn's door."""

import math
import os
import time
from typing import Any, no_type_check

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from threadpoolctl import threadpool_limits

from stochgp import features, learners
from stochgp.budget import Budget
from stochgp.data import Standardiser
from stochgp.data.streams import AbstractSource, DeviceRows, HostRows
from stochgp.estimators.base import DTYPES, PosteriorRegressor
from stochgp.estimators.defaults import feature_learner
from stochgp.estimators.fitted import Fitted
from stochgp.estimators.inputs import TrainingRows, read_training_rows
from stochgp.estimators.plan import Layout, Problem, describe, lay_out
from stochgp.estimators.scaling import in_target_units, standardisers
from stochgp.models import NOISE_FLOOR, FeatureGP
from stochgp.numerics.seeds import as_key
from stochgp.parameters import cast, positive
from stochgp.posteriors import FeaturePosterior
from stochgp.results import FitResult

START_NOISE = 0.1  # of targets with variance 1
SAMPLE_ROWS = 10_000  # from which landmarks are chosen
SCALE_ROWS = 1_000  # on which the starting variance is found
ONE_THREAD = 256  # features, up to which NumPy's small products and decompositions are fastest, and steady, on one thread


class FeatureGPRegressor(PosteriorRegressor):
    """Gaussian process regression with k(x, z) = variance · φ(x)·φ(z), φ finite-dimensional: `predict` is of the function without noise.

    features        "mlp", "attention", "rff", "orf", "nystrom", a feature map of `stochgp.features`, or a network (one row ↦ one axis)
    kernel          what rff, orf and nystrom approximate (None = "rbf"); on a network None = the linear kernel on its output, a
                    stationary kernel = random Fourier features of its output
    n_features      dimension of φ: None = 128 for networks, 1000 for Fourier features, 512 for Nyström
    learner         "scgd", "minimax", "bsgd", "full-batch", or a learner of `stochgp.learners`
    batch_size, epochs, learning_rate
                    None = the learner's own, or chosen for you; given here and in a learner: ValueError
    mean            prior mean in target units; None = the average of the targets, or 0 with standardize=False
    standardize     inputs and targets to mean 0 and standard deviation 1 by the (weighted) training rows
    memory_limit    "1GB", bytes or None (half of what is available) for the process during a call; what exceeds it is refused
    time_limit      seconds after which a fit ends with the best state so far
    dtype           "float32" or "float64" for rows and features; moments and posteriors are float64 in any case
    random_state    None, an integer, a NumPy RandomState or Generator
    verbose         1 shows progress on stderr
    missing         "refuse", or "impute": missing inputs become the median of their column, or a level of their own

    After `fit`, in units of the targets given (nlml = that of standardised targets + log s, variances times s²):
    `features_` φ on standardised inputs; `noise_variance_`; `nlml_` exact negative log marginal likelihood per datum of all rows;
    `n_iter_` steps; `converged_` as the learner's docstring says, False when a budget ended the run; `history_` a dict per visit;
    `plan_` choices and reasons; `fit_seconds_`; `n_features_in_`, and `feature_names_in_` for data frames; `target_name_`, the name of y if it has one.
    """

    @no_type_check  # scikit-learn wants any value taken here, and judged in `fit`
    def __init__(
        self,
        features: Any = "mlp",
        kernel: Any = None,
        n_features: int | None = None,
        learner: Any = "scgd",
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
        self.features = features
        self.kernel = kernel
        self.n_features = n_features
        self.learner = learner
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
    ) -> "FeatureGPRegressor":
        """Learn φ, its variance and the noise from rows X [N, D] (array or data frame) and targets y [N].

        A row of weight ρ counts as ρ rows: its noise variance is σ²/ρ. Text columns of a data frame are one-hot encoded. `checkpoint`
        names a file that is kept up to date; a killed fit, called again with the same data and settings, goes on from it to the same
        result. Ctrl-C ends the fit with the best state so far. Raises ValueError or TypeError, in one line, for data or settings that
        cannot be used, and for a fit that would exceed `memory_limit` (with both numbers).
        """
        begun = time.perf_counter()
        learner = self._checked_learner()
        key, budget = as_key(self.random_state), Budget.of(self.memory_limit)
        rows = read_training_rows(self, X, y, sample_weight, budget, self.missing)
        inputs, targets = standardisers(rows, bool(self.standardize), self.mean)
        feature_key, fit_key = jax.random.split(key)
        with jax.enable_x64(True):
            gp = self._start(rows, inputs, targets, feature_key)
            problem = Problem(len(rows.y), rows.X.shape[1], gp.n_features, DTYPES[self.dtype])
            layout = lay_out(problem, learner, budget)
            source = _source(rows, inputs, targets, layout, self.dtype)
            result = self._learn(layout, gp, source, targets, key=fit_key, checkpoint=checkpoint)
            if not math.isfinite(result.nlml):
                raise ValueError(
                    "the marginal likelihood is not a finite number from the start: are inputs or targets on a huge scale? "
                    "(standardize=True divides by it)"
                )
            found = result.gp
            posterior = FeaturePosterior.of(
                found.features, result.spectrum, float(found.variance), float(found.noise_variance)
            )
        self._fitted = Fitted(rows.encoder, inputs, targets, posterior, self.dtype)
        name = getattr(y, "name", None)
        self.target_name_ = name if isinstance(name, str) else None
        self._report(result, targets)
        self.plan_ = describe(problem, layout, self.get_params(deep=False), self.history_, budget)
        self.fit_seconds_ = time.perf_counter() - begun
        return self

    @property
    def features_(self) -> features.AbstractFeatureMap:
        """φ with its learned parameters, on the rows that the model sees (standardised when `standardize=True`)."""
        if "_fitted" not in vars(self):
            raise AttributeError("features_ is there after fit")
        return self._fitted.posterior.features

    def _checked_learner(self) -> learners.AbstractLearner:
        """The learner; ValueError for settings that contradict one another or make no sense."""
        self._check_shared()
        for name in ("n_features", "batch_size", "epochs"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1
            ):
                raise ValueError(f"{name} is {value!r}; it must be None or a whole number of at least 1")
        return feature_learner(
            self.learner, batch_size=self.batch_size, epochs=self.epochs, learning_rate=self.learning_rate
        )

    def _start(
        self, rows: TrainingRows, inputs: Standardiser, targets: Standardiser, key: PRNGKeyArray
    ) -> FeatureGP:
        """The GP before training: features for the rows, noise START_NOISE, and k(x, x) ≈ 1 on average, of unit-variance targets."""
        map_key, sample_key = jax.random.split(key)
        seed = [int(word) for word in np.ravel(jax.random.key_data(sample_key))]
        n = len(rows.y)
        chosen = np.random.default_rng(seed).permutation(n)[:SAMPLE_ROWS]
        sample = jnp.asarray(inputs.transform(rows.X[chosen], self.dtype))
        given = {"n_inputs": rows.X.shape[1], "X_sample": sample, "dtype": self.dtype}
        phi = features.resolve(self.features, self.kernel, self.n_features, key=map_key, **given)
        phi = cast(phi, self.dtype)
        size = float(_mean_square(phi, sample[:SCALE_ROWS]))
        spread = (
            1.0 if self.standardize else max(float(np.mean((rows.y - targets.mean) ** 2)), 10 * NOISE_FLOOR)
        )
        if not math.isfinite(size):
            raise ValueError(
                "the features of the inputs are not finite numbers: standardise the inputs, or check the feature map"
            )
        noise = positive(START_NOISE * spread, NOISE_FLOOR, self.dtype)
        return FeatureGP(phi, noise, positive(spread / min(max(size, 1e-6), 1e6), dtype=self.dtype))

    def _learn(
        self, layout: Layout, gp: FeatureGP, source: AbstractSource, targets: Standardiser, **settings: Any
    ) -> FitResult:
        def describe_entry(entry: dict[str, float]) -> str:
            return _progress_text(in_target_units(entry, float(targets.scale)))

        with threadpool_limits(1 if gp.n_features <= ONE_THREAD else None, user_api="blas"):
            return self._learned(learners.fit, layout.learner, gp, source, describe_entry, **settings)

    def _report(self, result: FitResult, targets: Standardiser) -> None:
        """The fitted attributes, in target units."""
        s = float(targets.scale)
        self.noise_variance_ = self._fitted.noise_variance * s**2
        self.nlml_ = result.nlml + math.log(s)
        self.n_iter_ = int(result.n_iter)
        self.converged_ = bool(result.converged)
        self.history_ = [in_target_units(entry, s) for entry in result.history]


def _source(
    rows: TrainingRows, inputs: Standardiser, targets: Standardiser, layout: Layout, dtype: str
) -> AbstractSource:
    if not layout.on_device:
        return HostRows(rows.X, rows.y, rows.weight, inputs=inputs, targets=targets, dtype=np.dtype(dtype))
    return DeviceRows(
        inputs.transform(rows.X, dtype), targets.transform(rows.y, dtype), rows.weight, dtype=dtype
    )


@eqx.filter_jit
def _mean_square(phi: features.AbstractFeatureMap, X: Array) -> Array:
    """The mean of φ(x)·φ(x) over rows."""
    return jnp.mean(jnp.sum(phi(X) ** 2, axis=1))


def _progress_text(entry: dict[str, float]) -> str:
    if "trial_rate" in entry:
        return f"trying learning rate {entry['trial_rate']:g}: {entry['criterion']:.4f} nats per row, {entry['seconds']:.0f} s"
    held_out = f", held-out NLPD {entry['held_out_nlpd']:.4f}" if "held_out_nlpd" in entry else ""
    return f"epoch {entry['epoch']:.1f}: NLML {entry['nlml']:.4f}{held_out}, {entry['seconds']:.0f} s"
