"""The feature GP as a scikit-learn estimator."""

import math
import typing
from dataclasses import dataclass, field
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.utils.validation import check_is_fitted

from stochgp import deadline, features, kernels
from stochgp.budget import release
from stochgp.choosing import choice
from stochgp.compiled import kept_on_disk
from stochgp.context import restored_on_error
from stochgp.data.streams import AbstractSource
from stochgp.deadline import TimeIsUpError, in_time
from stochgp.estimators.helps import BEFORE, caution_of_rows, drift, shift_of, warned, within_reach
from stochgp.estimators.regressor import FamilyRegressor
from stochgp.families.beyond import BEYOND, beyond_limits
from stochgp.families.streaming import Stream, added, begun, check_mergeable, moments_of, taken_in
from stochgp.features import AbstractFeatureMap
from stochgp.learners import AbstractLearner
from stochgp.learning.log import Report
from stochgp.likelihoods import AbstractLikelihood, Gaussian
from stochgp.models import FeatureGP
from stochgp.numerics import draws
from stochgp.numerics.arrays import filled_up, on_device
from stochgp.numerics.seeds import words_of
from stochgp.objectives import add_up, chunk_rows, nlml_of_spectrum, spectrum
from stochgp.objectives.moments import pass_rows, with_idle
from stochgp.observations import Dispersion
from stochgp.observations.error_distribution import GAUSSIAN, STUDENT
from stochgp.parameters import cast, positive
from stochgp.posteriors import AbstractPosterior, FeaturePosterior
from stochgp.posteriors.feature import BLOCK
from stochgp.results import RESULTS, FitResult, Solution
from stochgp.selection.choices import feature_learner
from stochgp.selection.closing import closed
from stochgp.selection.error_distribution import error_distribution
from stochgp.selection.likelihood import FEATURE, Asked, starting_noise
from stochgp.training_data.fingerprinted import (
    Inputs,
    inputs_with_smiles,
    is_packed,
    with_packing,
)
from stochgp.training_data.inputs import read_rows
from stochgp.training_data.run import Run
from stochgp.training_data.units import TREES, TrainingData

SAMPLE_ROWS = 10_000  # from which landmarks are chosen
SHARE_FOR_CLOSING = 0.9  # of the time that is left after learning
FARTHEST = 8.0  # standard deviations: a network knows nothing of a category of one row in thousands, 70 of them from the others
SCALE_ROWS = 1_000  # on which the starting variance is found


@dataclass(eq=False, repr=False)
class FeatureGPRegressor(FamilyRegressor):
    """Gaussian process regression with k(x, z) = variance · φ(x)·φ(z), φ finite-dimensional: `predict` is of the function without noise.

    Parameters
    ----------
    features
        "mlp", "attention", "linear", "rff", "orf", "nystrom", "tanimoto" (hashes of fingerprints), a feature map of `stochgp.features`, or a network (one row ↦ one
        axis).
    kernel
        What rff, orf and nystrom approximate (None = "rbf"); on a network None = the linear kernel on its output, a stationary kernel = random Fourier
        features of its output.
    n_features
        Dimension of φ: None = 128 for networks, 1000 for Fourier features, 512 for Nyström.
    learner
        "scgd", "minimax", "bsgd", "full-batch", or a learner of `stochgp.learners`.
    smiles
        The column of a table that holds molecules, or a `data.Morgan`: their Morgan counts are the inputs of the Tanimoto kernel, and `missing="skip"` leaves
        out those that cannot be read (predictions NaN).
    likelihood
        "gaussian": noise of one variance; "student-t": the Student-t of held-out errors, whose scale depends on the inputs; "auto": the first, unless
        the second clearly predicts held-out rows better (docs/methods/row_noise.md); `Gaussian(noise)` or `StudentT(df, noise)` of
        `stochgp.likelihoods`, whose noise is learned with the features; or
        `Warped(one of these, transform)`: the targets are transformed, and everything is said in their units.
    {shared}

    Attributes
    ----------
    features_
        φ on standardised inputs, of a network by name with `features.Beyond` beside it, which is 0 in the range of the rows.
    noise_variance_, nlml_
        In units of the targets given (nlml = that of standardised targets + log s, variances times s²): the exact negative log marginal likelihood per datum
        of all rows.
    converged_
        As the learner's docstring says, False when a budget ended the run.
    plan_
        Choices and reasons.
    history_, n_iter_, fit_seconds_
        A dict per evaluation (docs/methods/history.md); steps; seconds.
    n_features_in_, feature_names_in_, target_name_
        Of the rows; names where they come in data frames.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import FeatureGPRegressor
    >>> X = np.random.default_rng(0).uniform(0, 10, (500, 2))
    >>> model = FeatureGPRegressor("rff", n_features=100, epochs=20, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> model.predict(X[:3], return_std=True)[1].shape
    (3,)
    """

    features: Any = "mlp"
    kernel: Any = None
    n_features: int | None = None
    learner: Any = "scgd"
    smiles: Any = field(default=None, kw_only=True)
    _keeps_all_rows: ClassVar[bool] = False
    _means: ClassVar[tuple[str, ...]] = (TREES,)

    @property
    def features_(self) -> AbstractFeatureMap:
        """φ with its learned parameters, on the rows that the model sees (standardised when `standardize=True`)."""
        if "_fitted" not in vars(self):
            raise AttributeError("features_ is there after fit")
        return typing.cast(FeaturePosterior, self._fitted.posterior).features

    def _inputs(self) -> Inputs:
        kernel = getattr(self.features, "kernel", self.kernel)
        if isinstance(self.features, str) and self.features == "tanimoto" and kernel is None:
            kernel = "tanimoto"
        return inputs_with_smiles(kernel, self.smiles, self.missing)

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, forget: float = 1.0
    ) -> "FeatureGPRegressor":
        """Take in more rows exactly, in one pass over them: the posterior becomes that of all rows so far. The first call is `fit`.

        The features, both variances and what standardises rows stay those of `fit`. Sums over rows are all that the posterior needs, so
        rows in pieces give what they give together. `forget` multiplies the sums so far first: the posterior of rows that weigh forgetᵃ
        after `a` further calls; 0 drops all earlier rows. Afterwards `nlml_` and `n_rows_` are of all rows, and `drift_` holds mean and standard
        deviation of the new ones in standardised units: far from 0 and 1 it is time for another `fit`. Warns (ConvergenceWarning) of rows far from
        the first ones, and of rows that the model before predicts worse than a constant, or too surely.

        Raises ValueError for rows that cannot be used, and unless 0 ≤ forget ≤ 1.
        """
        if not 0 <= forget <= 1:
            raise ValueError(f"forget is {forget!r}; it must lie between 0 and 1")
        if "_fitted" not in vars(self):
            return typing.cast(FeatureGPRegressor, self.fit(X, y, sample_weight))
        with restored_on_error(self):
            stream, fitted = self._to_go_on(), self._fitted
            rows = read_rows(self._read(X, learns=True), y, sample_weight, joins=fitted.encoder)
            rows = within_reach(fitted, rows, stacklevel=2)
            with kept_on_disk():
                more = moments_of(fitted, rows)
            self.drift_ = drift(fitted, rows.X, rows.y)
            said = shift_of(fitted, rows.X, rows.y), caution_of_rows(fitted, rows, BEFORE)
            kept = self.plan_.without("caution")
            self.plan_ = kept | warned([text for text in said if text][:1], stacklevel=3)
            fitted = fitted.with_inputs(rows.X).with_slope(0.0, 0.0, forget)
            self._fitted = fitted.with_targets(rows.y, rows.weight)
            self._take_in(added(stream, more, forget), (self.n_rows_ if forget > 0 else 0) + len(rows))
        return self

    def merge(self, other: "FeatureGPRegressor") -> "FeatureGPRegressor":
        """Add the rows of another model to this one's: both must have come from one `fit`, with the same features and variances.

        Sums add up, so rows that both hold count twice: let copies of a model drop them by `partial_fit(…, forget=0)`, one of them keep
        them, and merge the copies into it. The order does not matter. Raises ValueError for a model of other features.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        check_mergeable(self._fitted, other._fitted)
        if (seen := other._fitted.seen) is not None:
            self._fitted = self._fitted.with_inputs(np.stack([seen.low, seen.high]))
        self._fitted = self._fitted.with_slope(other._fitted.log_slope, other._fitted.slope_rows)
        self._take_in(added(self._to_go_on(), other._to_go_on().moments), self.n_rows_ + other.n_rows_)
        return self

    def _to_go_on(self) -> Stream:
        if "_stream" not in vars(self):
            raise ValueError(
                "the model holds no sums of its rows, as a file of an earlier version does: fit it again"
            )
        return self._stream

    def _take_in(self, stream: Stream, n_rows: int) -> None:
        fitted, nlml = taken_in(self._fitted, stream)
        self._fitted, self._stream, self.n_rows_ = fitted, stream, n_rows
        self.nlml_ = nlml + fitted.log_unit

    def _choose_learner(self, data: TrainingData) -> tuple[AbstractLearner | None, str]:
        return feature_learner(
            self.learner, batch_size=self.batch_size, epochs=self.epochs, learning_rate=self.learning_rate
        )

    def _start(self, data: TrainingData, run: Run) -> tuple[FeatureGP, dict[str, Any]]:
        """Features for the rows, `starting_noise`, and k(x, x) ≈ 1 on average, times the targets' mean square."""
        asked = self._asked
        map_key, sample_key = draws.split(run.start_key)
        chosen = np.random.default_rng(words_of(sample_key)).permutation(data.n_rows)[:SAMPLE_ROWS]
        sample = np.asarray(data.inputs.transform(data.rows.X[chosen], self.dtype))
        given = {"n_inputs": data.n_inputs, "X_sample": on_device(sample), "dtype": self.dtype}
        if features.is_network(self.features):
            reach = FARTHEST if data.standardized else np.inf
            given["limits"] = np.clip(data.inputs.transform(data.limits, self.dtype), -reach, reach)
        phi = features.resolve(self.features, self._kernel_for(data), self.n_features, key=map_key, **given)
        phi = cast(phi, self.dtype)
        some = sample[:SCALE_ROWS]
        there = filled_up(np.ones(len(some), some.dtype), SCALE_ROWS, 0.0)
        size = float(_mean_square(phi, filled_up(some, SCALE_ROWS), there))
        if not math.isfinite(size):
            raise ValueError(
                "the features of the inputs are not finite numbers: standardise the inputs, or check the feature map"
            )
        spread = data.spread
        noise = starting_noise(FEATURE, spread, self.dtype) if asked.noise is None else asked.noise
        noise = cast(noise, self.dtype)
        variance = positive(spread / min(max(size, 1e-6), 1e6), dtype=self.dtype)
        return FeatureGP(features=phi, noise=noise, variance=variance), {}

    def _kernel_for(self, data: TrainingData) -> Any:
        """The setting `kernel`; of fingerprints a Tanimoto kernel that takes the rows as they are packed."""
        kernel = self.kernel
        if kernel is None and isinstance(self.features, str) and self.features == "tanimoto":
            kernel = "tanimoto"
        if kernel is None or not data.leaves_inputs:
            return kernel
        return with_packing(kernels.resolve(kernel, data.n_inputs, dtype=self.dtype), is_packed(data.encoder))

    def _refine(
        self,
        found: FitResult,
        gp: FeatureGP,
        learner: AbstractLearner,
        rows: AbstractSource,
        run: Run,
        report: Report,
    ) -> tuple[FitResult, dict[str, Any]]:
        """Few rows: from all of them."""
        return closed(found, gp, learner, rows, run)

    @property
    def _asked(self) -> Asked:
        return Asked.of(self._likelihood, FEATURE)

    def _likelihood_of(
        self, gp: FeatureGP, learned: FitResult | None, posterior: FeaturePosterior
    ) -> AbstractLikelihood:
        return Gaussian(posterior.noise)

    def _dispersion_of(
        self,
        gp: FeatureGP,
        learned: FitResult | None,
        posterior: AbstractPosterior,
        data: TrainingData,
        run: Run,
    ) -> tuple[Dispersion | None, dict[str, Any]]:
        """By the rows that learning held out; of linear features with constant noise by rows that are left out exactly."""
        asked = self._asked.as_chosen(self._chosen_likelihood)
        if isinstance(gp.features, features.Linear) and asked.noise is None:
            return error_distribution(asked, posterior, gp, data, run)
        held_out = None if learned is None or learned.evidence is None else learned.evidence.held_out
        if held_out is not None or asked.name == GAUSSIAN:
            return error_distribution(asked, posterior, gp, data, run, held_out)
        if asked.name == STUDENT:
            raise ValueError(
                "a Student-t is fitted to rows that learning holds out, and there are none: give the judge a validation_fraction, or more rows"
            )
        return None, {"likelihood": choice(GAUSSIAN, "no rows were held out")}

    def _posterior_of(
        self, gp: FeatureGP, learned: FitResult | None, data: TrainingData, run: Run
    ) -> tuple[FeaturePosterior, Solution | None, dict[str, Any]]:
        """Exact, from the moments of all rows."""
        if learned is None or learned.evidence is None:
            raise ValueError(
                "the learner's judge knows no moments of all rows, which a feature GP's posterior needs: ByEvidence"
            )
        if not math.isfinite(learned.nlml):
            raise ValueError(
                "the marginal likelihood is not a finite number from the start: are inputs or targets on a huge scale? "
                "(standardize=True divides by it)"
            )
        variances = float(gp.variance), float(gp.noise_variance)
        posterior = FeaturePosterior.of(gp.features, learned.spectrum, *variances, gp.noise)
        moments, entries = learned.evidence.moments, {}
        if features.is_network(self.features):
            beyond = beyond_limits(posterior, variances[0], data, key=draws.fold_in(run.start_key, 2))
            moments, entries = with_idle(moments, beyond.n_features), {"features_beyond": choice(*BEYOND)}
            both = features.Sum(gp.features, beyond)
            posterior = FeaturePosterior.of(both, spectrum(moments), *variances, gp.noise)
        self._stream = begun(gp, moments)
        return (
            posterior,
            None,
            entries
            | {
                "n_features": choice(gp.n_features, "the size of the feature map"),
                "variance": choice("exact", "the posterior of the features' weights is computed exactly"),
                "moment_rows": choice(
                    chunk_rows(gp.n_features), "rows per chunk of a pass over all data: 16 MB of features"
                ),
                "predict_rows": choice(
                    BLOCK, "rows per block of a prediction: always the same, so that no row depends on others"
                ),
            },
        )

    def _nlml(self, learned: FitResult | None) -> float | None:
        return None if learned is None else learned.nlml

    def _close(self, learned: FitResult, data: TrainingData, run: Run) -> tuple[FitResult, dict[str, Any]]:
        """With the moments of all rows of files in place of the sample's."""
        if data.everything is None or learned.evidence is None or not math.isfinite(learned.nlml):
            return learned, {}
        release()  # what learning has freed, before files are read again
        try:
            with deadline.within(SHARE_FOR_CLOSING * deadline.left()):
                chunks = data.everything.chunks(pass_rows(learned.gp.n_features, run.devices))
                moments = add_up(learned.gp, in_time(chunks), run.devices)
        except (TimeIsUpError, KeyboardInterrupt) as end:
            result = RESULTS.time_limit if isinstance(end, TimeIsUpError) else RESULTS.interrupted
            why = f"of {data.n_all}: there was no time for one pass over all, so the posterior is of a uniform sample"
            return learned._replace(result=result, converged=False), {
                "closing_rows": choice(data.n_rows, why)
            }
        found = spectrum(moments)
        nlml = nlml_of_spectrum(found, float(learned.gp.variance), float(learned.gp.noise_variance))[0]
        why = f"all rows, in one pass; θ was learned from a uniform sample of {data.n_rows}"
        closed = learned._replace(
            evidence=learned.evidence._replace(moments=moments, spectrum=found, nlml=nlml)
        )
        return closed, {"closing_rows": choice(data.n_all, why)}


@eqx.filter_jit
def _mean_square(phi: features.AbstractFeatureMap, X: Any, there: Any) -> Array:
    """The mean of φ(x)·φ(x) over the rows that are there."""
    return jnp.sum(there * jnp.sum(phi(X) ** 2, axis=1)) / jnp.sum(there)
