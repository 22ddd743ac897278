"""The feature GP as a scikit-learn estimator."""

import math
import os
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from stochgp import deadline, features, kernels
from stochgp.budget import release
from stochgp.context import FitContext
from stochgp.data.training import TrainingData
from stochgp.deadline import TimeIsUpError, in_time
from stochgp.estimators.base import FamilyRegressor
from stochgp.estimators.diagnostics import drift, further_rows, warn_of_data
from stochgp.families.common import (
    fitted_model,
    learn,
    observation_model,
    open_fit,
    read_regression_data,
    reporter,
    store,
)
from stochgp.families.default_learners import FEATURE_LEARNERS, named_learner
from stochgp.families.feature_posterior import (
    beyond_limits,
    learned_variances,
    moments_of,
    refit_on_all_rows,
    stream_of,
    with_rows,
)
from stochgp.families.left_out import error_distribution
from stochgp.families.starts import (
    AUTO,
    FEATURE,
    inputs_of,
    name_of,
    resolve_likelihood,
    start_noise,
    with_packing,
)
from stochgp.features import AbstractFeatureMap
from stochgp.likelihoods import Gaussian
from stochgp.models import FeatureGP
from stochgp.numerics.arrays import on_device
from stochgp.numerics.seeds import fold_in, split_key, words_of
from stochgp.objectives import nlml_of_spectrum, spectrum
from stochgp.objectives.moments import Moments, add_up, chunk_rows
from stochgp.observations import LINEAR_MEAN, Dispersion
from stochgp.observations.error_distribution import GAUSSIAN, STUDENT
from stochgp.parameters import cast, positive
from stochgp.posteriors import FeaturePosterior
from stochgp.results import RESULTS, FitResult
from stochgp.tables.molecules import is_packed

SAMPLE_ROWS = 10_000  # rows from which landmarks are chosen
SHARE_FOR_CLOSING = 0.9  # after learning, share of the remaining time for a pass over all rows
MIN_HELD_OUT = 500  # minimum number of held-out rows to choose an error distribution
FARTHEST = 8.0  # largest input of a network, in standard deviations
SCALE_ROWS = 1_000  # rows to estimate the initial variance


@dataclass(eq=False, repr=False)
class FeatureGPRegressor(FamilyRegressor):
    """Gaussian process regression with features φ and the kernel k(x, z) = v φ(x)·φ(z).

    Here v is the variance. `predict` returns the mean of the latent function, without noise.

    Parameters
    ----------
    features : str or AbstractFeatureMap
        A feature map of `stochgp.features`, a network that maps a row [D] to a vector, or a name: "mlp",
        "attention", "linear", "rff", "orf", "nystrom", "tanimoto" (for fingerprints or a SMILES column).
    kernel : str, AbstractKernel or None
        The kernel that "rff", "orf" and "nystrom" approximate (None: "rbf"). With a network, None means the
        linear kernel of the network's output. With another kernel, φ contains Fourier features of the
        network's output, which approximate this kernel.
    n_features : int or None
        Length of φ. None: 128 for "mlp", 32 for "attention", 1000 for random features, 512 for "nystrom".
    learner : str or AbstractLearner
        "scgd", "minimax", "bsgd", "full-batch", or a learner of `stochgp.learners`.
    likelihood : str or AbstractLikelihood
        "gaussian": noise of constant variance. "student-t": a Student-t distribution of errors, which is
        fitted to held-out rows; its scale depends on the inputs. "auto": "student-t" if it predicts held-out
        rows clearly better, else "gaussian" (docs/methods/row_noise.md). You can also pass `Gaussian(noise)`,
        `StudentT(df, noise)`, or `Warped(likelihood, transform)` for transformed targets.
    {shared}

    Attributes
    ----------
    features_
        The feature map φ, for standardised inputs. For "mlp" and "attention", φ also contains the features
        `features.Extrapolation`.
    noise_variance_
        The noise variance in squared target units.
    nlml_
        The exact negative log marginal likelihood per row, in target units.
    {fitted}

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import FeatureGPRegressor
    >>> X = np.random.default_rng(0).uniform(0, 10, (500, 2))
    >>> model = FeatureGPRegressor("linear", random_state=0).fit(X, np.sin(X[:, 0]))
    >>> model.predict(X[:3], return_std=True)[1].shape
    (3,)
    """

    features: Any = "mlp"
    kernel: Any = None
    n_features: int | None = None
    learner: Any = "scgd"

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "FeatureGPRegressor":
        """Learn features and variances from rows X [N, D] and targets y [N].

        Raises the same errors as `KernelGPRegressor.fit`.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            See `KernelGPRegressor.fit`. `fit` reads files in blocks, in constant memory.
        """
        with open_fit(self, checkpoint, callback) as context:
            if self.mean == LINEAR_MEAN:
                raise ValueError(
                    "a feature GP does not accept mean='linear'; use features='linear' for a linear model"
                )
            likelihood, inputs = (
                resolve_likelihood(self._likelihood, FEATURE),
                inputs_of(getattr(self.features, "kernel", self._kernel)),
            )
            data = read_regression_data(
                self, X, y, sample_weight, groups, context, inputs=inputs, keeps_all=False
            )
            learner, why = named_learner(self.learner, FEATURE_LEARNERS)
            warn_of_data(data, learns=True)
            start = self._start(likelihood, data, context)
            if (
                isinstance(start.features, features.Linear)
                and self.learner == "scgd"
                and data.everything is None
            ):
                why = "linear features have no parameters, so learning only chooses the noise variance and the output variance"
                context.record("learner", None, why)
                learned = learned_variances(start, data, context)
                reporter(data, context)(learned.history[0])
            else:
                context.record("learner", type(learner).__name__, why)
                learned, source = learn(learner, start, data, context, keep_seconds=0.0)
                learned = refit_on_all_rows(learned, start, learner, source, context)
            learned = _with_moments_of_all(learned, data, context)
            posterior, moments = context.finish(lambda: self._posterior(learned, data, context))
            errors = context.finish(
                lambda: self._error_distribution(likelihood, learned, posterior, data, context)
            )
            observation = observation_model(self, Gaussian(posterior.noise), errors, posterior, data, True)
            stream = stream_of(learned.gp, moments)
            fitted = fitted_model(data, posterior, observation, stream)
            store(self, y, fitted, data, learned, context, nlml=learned.nlml)
        return self

    @property
    def features_(self) -> AbstractFeatureMap:
        """The feature map φ with learned parameters, for standardised inputs."""
        check_is_fitted(self)
        return typing.cast(FeaturePosterior, self._fitted.posterior).features

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, forget: float = 1.0
    ) -> "FeatureGPRegressor":
        """Add rows exactly, in one pass over the new rows; the first call is `fit`.

        Features, variances and standardisation remain those of `fit`. The result does not depend on how rows
        are divided between calls. Each call multiplies the weight of earlier rows by `forget`; 0 drops them.
        `nlml_` and `n_rows_` then describe all rows. `drift_` contains means and standard deviations of the
        new rows in standardised units. If means are far from 0 or deviations from 1, call `fit` on all rows.

        Warns (ConvergenceWarning) if the new rows are far from the first rows, or if the previous model
        predicts the new rows badly. Raises ValueError for unusable rows, and unless 0 ≤ forget ≤ 1.
        """
        if not 0 <= forget <= 1:
            raise ValueError(f"forget must be between 0 and 1, but is {forget!r}")
        if "_fitted" not in vars(self):
            return self.fit(X, y, sample_weight)
        with open_fit(self, None, None) as context:
            fitted = self._fitted
            rows = further_rows(self, X, y, sample_weight, context)
            more = moments_of(fitted, rows)
            self.drift_, self.plan_ = drift(fitted, rows), context.plan_
            fitted = fitted.with_rows(rows, forget)
            self._fitted, nlml = with_rows(fitted, more, forget)
            self.nlml_ = nlml + self._fitted.log_unit
            self.n_rows_ = (self.n_rows_ if forget > 0 else 0) + len(rows)
        return self

    @property
    def _kernel(self) -> Any:
        """The setting `kernel`; "tanimoto" if features="tanimoto" and `kernel` is None."""
        is_tanimoto = isinstance(self.features, str) and self.features == "tanimoto"
        return "tanimoto" if is_tanimoto and self.kernel is None else self.kernel

    def _start(self, likelihood: Any, data: TrainingData, context: FitContext) -> FeatureGP:
        """Return initial features, noise and variance, such that k(x, x) and y² have equal means."""
        map_key, sample_key = split_key(context.start_key)
        chosen = np.random.default_rng(words_of(sample_key)).permutation(data.n_rows)[:SAMPLE_ROWS]
        sample = np.asarray(data.inputs.transform(data.rows.X[chosen], self.dtype))
        given = dict[str, Any](n_inputs=data.n_inputs, X_sample=on_device(sample), dtype=self.dtype)
        if features.is_network(self.features):
            reach = FARTHEST if data.standardized else np.inf
            given["limits"] = np.clip(data.inputs.transform(data.limits, self.dtype), -reach, reach)
        kernel = self._kernel
        if kernel is not None and data.leaves_inputs:  # fingerprints
            kernel = kernels.resolve(kernel, data.n_inputs, dtype=self.dtype)
            kernel = with_packing(kernel, is_packed(data.encoder))
        phi = features.resolve(self.features, kernel, self.n_features, key=map_key, **given)
        phi = cast(phi, self.dtype)
        size = float(np.mean(np.sum(features.on_host(phi, sample[:SCALE_ROWS]) ** 2, axis=1)))
        if not math.isfinite(size):
            raise ValueError(
                "the features are not finite numbers; standardise the inputs or check the feature map"
            )
        spread = data.spread
        noise = cast(start_noise(likelihood, FEATURE, spread, self.dtype), self.dtype)
        variance = positive(spread / min(max(size, 1e-6), 1e6), dtype=self.dtype)
        return FeatureGP(features=phi, noise=noise, variance=variance)

    def _posterior(
        self, learned: FitResult, data: TrainingData, context: FitContext
    ) -> tuple[FeaturePosterior, Moments]:
        """Return the exact posterior and moments of all rows. Named networks get `Extrapolation`."""
        if learned.evidence is None:
            raise ValueError(
                "the evaluator of the learner must be ByEvidence, because the posterior of a feature GP needs moments of all rows"
            )
        if not math.isfinite(learned.nlml):
            raise ValueError(
                "the marginal likelihood is not finite at the start of learning; are inputs or targets huge numbers? "
                "(standardize=True scales inputs and targets)"
            )
        gp, moments = learned.gp, learned.evidence.moments
        variances = float(gp.variance), float(gp.noise_variance)
        posterior = FeaturePosterior.of(gp.features, learned.spectrum, *variances, gp.noise)
        if features.is_network(self.features):
            beyond = beyond_limits(posterior, variances[0], data, key=fold_in(context.start_key, 2))
            both, idle = features.Sum(gp.features, beyond), (0, beyond.n_features)  # 0 at all training rows
            gram, cross = (
                on_device(np.pad(np.asarray(part), idle)) for part in (moments.gram, moments.cross)
            )
            moments = moments._replace(gram=gram, cross=cross)
            posterior = FeaturePosterior.of(both, spectrum(moments), *variances, gp.noise)
        context.record("n_features", gp.n_features, "the length of the vector of features")
        context.record("variance", "exact", "the posterior of the features' weights is computed exactly")
        return posterior, moments

    def _error_distribution(
        self,
        likelihood: Any,
        learned: FitResult,
        posterior: FeaturePosterior,
        data: TrainingData,
        context: FitContext,
    ) -> Dispersion | None:
        """Return the error distribution of held-out rows; for linear features, of left-out rows."""
        name, held_out = name_of(likelihood), getattr(learned.evidence, "held_out", None)
        is_line = isinstance(learned.gp.features, features.Linear) and isinstance(likelihood, str)
        few = held_out is not None and name == AUTO and len(held_out) < MIN_HELD_OUT
        if is_line or name == GAUSSIAN or (held_out is not None and not few):
            rows = None if is_line else held_out
            return error_distribution(likelihood, posterior, learned.gp, data, context, rows)
        if name == STUDENT:
            raise ValueError(
                "likelihood='student-t' is fitted to held-out rows, but no rows were held out; set validation_fraction of the evaluator, or use more rows"
            )
        why = (
            f"fewer than {MIN_HELD_OUT} held-out rows are too few to compare distributions"
            if few
            else "no rows were held out"
        )
        context.record("likelihood", GAUSSIAN, why)
        return None


def _with_moments_of_all(learned: FitResult, data: TrainingData, context: FitContext) -> FitResult:
    """Replace the moments of a sample of rows in files by the moments of all rows."""
    if data.everything is None or learned.evidence is None or not math.isfinite(learned.nlml):
        return learned
    release()  # free the memory of learning before files are read again
    try:
        with deadline.within(SHARE_FOR_CLOSING * deadline.left()):
            chunks = data.passes(context.mesh).blocks(chunk_rows(learned.gp.n_features))
            moments = add_up(learned.gp, in_time(chunks))
    except (TimeIsUpError, KeyboardInterrupt) as end:
        result = RESULTS.time_limit if isinstance(end, TimeIsUpError) else RESULTS.interrupted
        why = f"of {data.n_all} rows; there was no time for a pass over all rows, so the posterior uses a uniform sample"
        context.record("closing_rows", data.n_rows, why)
        context.end(result, "the posterior uses a uniform sample of the rows")
        return learned._replace(result=result, converged=False)
    found = spectrum(moments)
    nlml = nlml_of_spectrum(found, float(learned.gp.variance), float(learned.gp.noise_variance))[0]
    why = f"the posterior uses all rows; hyperparameters were learned from a uniform sample of {data.n_rows} rows"
    context.record("closing_rows", data.n_all, why)
    return learned._replace(evidence=learned.evidence._replace(moments=moments, spectrum=found, nlml=nlml))
