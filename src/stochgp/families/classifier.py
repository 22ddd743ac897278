"""The sparse GP classifier as a scikit-learn estimator."""

import typing
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from stochgp import kernels
from stochgp.data import Standardiser
from stochgp.data.rows import Rows
from stochgp.distributions import Categorical
from stochgp.estimators.base import GPEstimator
from stochgp.estimators.helps import Scores
from stochgp.families.variational import (
    bound_of,
    closing_seconds,
    inputs_of,
    kernel_of,
    likelihood_of,
    posterior_of,
    start,
)
from stochgp.learners import AbstractLearner
from stochgp.likelihoods import AbstractLikelihood, Bernoulli, Softmax
from stochgp.models import SparseGP
from stochgp.posteriors import Request, VariationalPosterior
from stochgp.results import FitResult, Solution
from stochgp.selection.choices import classifier_learner
from stochgp.tables.targets import ClassTargets
from stochgp.training_data.files import are_files, read_files
from stochgp.training_data.fingerprinted import Inputs
from stochgp.training_data.inputs import read_labels, read_training_rows, refuse_one_class
from stochgp.training_data.run import Run
from stochgp.training_data.units import TrainingData

BOUND_SHARE = 0.1  # of a time limit, for the bound of all rows
START_VARIANCE = 4.0  # of the latent functions: a typical one says 98 % of the time which of two classes, with probit noise


@dataclass(eq=False, repr=False)
class SparseGPClassifier(ClassifierMixin, GPEstimator):
    """Gaussian process classification from a few inducing points, by mini-batches on the evidence lower bound.

    Two classes: a latent function f and P(y = second class | f) = Φ(f). More: a latent function for each, of one kernel and on one set of
    inducing points, and P(y = c | f) = softmax(f)_c. Probabilities are the average over q(f), so they know what is uncertain of f.

    Parameters
    ----------
    kernel
        "rbf", "matern12", "matern32", "matern52", "rational-quadratic", "linear", or a kernel of `stochgp.kernels`, deep ones included.
    n_inducing : int
        Inducing points; all rows where there are fewer.
    learner
        "auto" = "svgp", or a learner of `stochgp.learners`.
    {shared}

    Attributes
    ----------
    classes_
        Sorted.
    kernel_
        On the data that the kernel sees.
    elbo_
        A lower bound of the log probability of the training labels, per row.
    converged_, history_, plan_, n_iter_, fit_seconds_, n_features_in_, feature_names_in_, target_name_
        As of the regressors; `converged_` as the learner's docstring says.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import SparseGPClassifier
    >>> X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    >>> model = SparseGPClassifier(n_inducing=30, random_state=0).fit(X, X[:, 0] > 0)
    >>> model.predict_proba([[0.9, 0.0]]).shape
    (1, 2)
    """

    kernel: Any = "rbf"
    n_inducing: int = 512
    learner: Any = "auto"

    @property
    def kernel_(self) -> kernels.AbstractKernel:
        """The kernel with its learned parameters, on the data that it sees (standardised when `standardize=True`)."""
        return kernel_of(self)

    @property
    def elbo_(self) -> float:
        """A lower bound of the log probability of the training labels, per row."""
        return bound_of(self)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """P(y = c) of each row and class, in the order of `classes_`, averaged over q(f)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """The logarithms of the probabilities, accurate where these are small."""
        check_is_fitted(self)
        X = self._read(X)
        self._reserve(Request(len(X)), f"probabilities for {len(X)} rows", 32 * len(X) * len(self.classes_))
        return self._log_probabilities(X)

    def _log_probabilities(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N C"]:
        found = self._fitted.distribution(X)
        return typing.cast(Categorical, found).log_probabilities

    def _scores(self, rows: Rows) -> Scores:
        """Targets number the classes; the constant knows how frequent each is among these rows."""
        c, n = rows.y.astype(np.int64), len(rows.y)
        frequent = np.bincount(c, rows.weights, minlength=len(self.classes_)) / rows.weights.sum()
        found = self._log_probabilities(rows.X)[np.arange(n), c]
        return Scores(found, np.log(frequent[c]), np.ones(n))

    def predict(self, X: Any) -> Shaped[np.ndarray, " N"]:
        """The most probable class of each row."""
        found = self.predict_log_proba(X)
        return self.classes_[np.argmax(found, axis=1)]

    def _read_data(self, X: Any, y: Any, sample_weight: Any, groups: Any, run: Run) -> TrainingData:
        """Rows whose targets are numbers of classes; sets `classes_`: of files all labels in them. Raises ValueError for fewer than two."""
        if are_files(X):
            return self._read_classes_of_files(X, y, {"sample_weight": sample_weight, "groups": groups}, run)
        (classes, targets), inputs = read_labels(self, y), self._inputs()
        given = X, targets, sample_weight, run.budget, self.missing, groups, inputs, self.new_rows
        rows, encoder, entries = read_training_rows(self, *given)
        refuse_one_class(classes, rows.y)
        self.classes_ = classes
        unchanged = Standardiser.identity((rows.X.shape[1],))
        scales = Standardiser.fit(rows.X, rows.weight) if self.standardize else unchanged
        targets, more = Standardiser.identity(()), {"encoder": encoder, "entries": entries}
        return TrainingData(rows, scales, targets, self.dtype, False, **more)

    def _read_classes_of_files(self, X: Any, target: Any, others: dict[str, Any], run: Run) -> TrainingData:
        self._inputs()  # refuses kernels of fingerprints
        targets, budget, seed = ClassTargets(), run.budget, run.sample_seed
        data, found = read_files(self, X, target, others, budget, seed, keeps_all=False, targets=targets)
        classes = typing.cast(Any, found.rows.targets).levels
        check_classification_targets(classes)
        if len(np.unique(data.rows.y)) < 2:
            raise ValueError(
                f"{target!r} has one class only, {classes.tolist()[int(data.rows.y[0])]!r}, in {data.n_rows} rows: at least two are needed"
            )
        self.classes_ = classes
        return data

    def _inputs(self) -> Inputs:
        return inputs_of(self)

    def _choose_learner(self, data: TrainingData) -> tuple[AbstractLearner | None, str]:
        options = {"epochs": self.epochs, "batch_size": self.batch_size, "learning_rate": self.learning_rate}
        return classifier_learner(self.learner, **options)

    def _start(self, data: TrainingData, run: Run) -> tuple[SparseGP, dict[str, Any]]:
        n = len(self.classes_)
        likelihood = Bernoulli() if n == 2 else Softmax(n)
        return start(self, data, likelihood, START_VARIANCE, key=run.start_key)

    def _likelihood_of(
        self, gp: SparseGP, learned: FitResult | None, posterior: VariationalPosterior
    ) -> AbstractLikelihood:
        return likelihood_of(gp)

    def _seconds_after(self, data: TrainingData, run: Run) -> float:
        return closing_seconds(int(self.n_inducing), data.n_all, BOUND_SHARE)

    def _posterior_of(
        self, gp: SparseGP, learned: FitResult | None, data: TrainingData, run: Run
    ) -> tuple[VariationalPosterior, Solution | None, dict[str, Any]]:
        return posterior_of(gp, data, run)

    def _nlml(self, learned: FitResult | None) -> float | None:
        return None
