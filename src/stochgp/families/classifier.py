"""The sparse GP classifier as a scikit-learn estimator."""

import dataclasses
import os
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from stochgp import kernels
from stochgp.context import FitContext
from stochgp.data.reading import are_files, read_files, read_training_rows
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.distributions import Categorical
from stochgp.estimators.base import GPEstimator, PosteriorClassifier
from stochgp.estimators.diagnostics import Scores, warn_of_data
from stochgp.estimators.fitted import Fitted
from stochgp.families.common import fitted_model, learn, observation_model, open_fit, store
from stochgp.families.default_learners import (
    ALL_ROWS_OF_CLASSES,
    CLASSIFIER,
    EACH_ROW,
    named_learner,
    uses_all_rows,
)
from stochgp.families.variational import (
    bound_of,
    likelihood_of,
    refuse_fingerprints,
    start,
    variational_posterior,
)
from stochgp.likelihoods import Bernoulli, Softmax
from stochgp.parameters import cast
from stochgp.tables.targets import read_labels, refuse_one_class

START_VARIANCE = 4.0  # of the latent functions; with it, a typical probability of the likelier class is 98 %


@dataclass(eq=False, repr=False)
class SparseGPClassifier(PosteriorClassifier, GPEstimator):
    """Gaussian process classification with few inducing points.

    Two classes need one latent function f, and P(y = second class | f) = Φ(f), where Φ is the normal
    distribution function. With more classes, every class has its own latent function, and
    P(y = c | f) = softmax(f)_c. All latent functions share a kernel and inducing points. Predicted
    probabilities are averages over the approximate posterior q(f), and thus include the uncertainty of f.

    Parameters
    ----------
    kernel : str or AbstractKernel
        A kernel of `stochgp.kernels`, including deep kernels, or a name: "rbf", "matern12", "matern32",
        "matern52", "rational-quadratic", "linear".
    n_inducing : int
        Number of inducing points, but at most the number of rows.
    learner : str or AbstractLearner
        "svgp": each step uses a mini-batch. "vgp": each step uses all rows. "auto": "vgp" for two classes and
        at most 1,000 rows, else "svgp". A learner of `stochgp.learners` is also accepted.
    {shared}

    Attributes
    ----------
    classes_
        The sorted labels.
    kernel_
        The learned kernel, for standardised inputs if `standardize=True`.
    elbo_
        A lower bound of the log probability of the training labels, per row.
    {fitted}

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

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "SparseGPClassifier":
        """Learn q(u), inducing points and hyperparameters from rows X [N, D] and labels y [N].

        Raises the same errors as `KernelGPRegressor.fit`, and ValueError if there are fewer than two classes.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            See `KernelGPRegressor.fit`; y contains labels. `fit` reads files in blocks, in constant memory.
        """
        with open_fit(self, checkpoint, callback) as context:
            data = self._read_data(X, y, sample_weight, groups, context)
            n = len(self.classes_)
            auto = CLASSIFIER, "mini-batches work for any number of rows"
            if data.everything is None and uses_all_rows(self, data.n_rows, 1 if n == 2 else n):
                auto = ALL_ROWS_OF_CLASSES, EACH_ROW
            named = {"svgp": CLASSIFIER, "vgp": ALL_ROWS_OF_CLASSES}
            learner, why = named_learner(self.learner, named, auto)
            context.record("learner", type(learner).__name__, why)
            warn_of_data(data, learns=True)
            likelihood = Bernoulli() if n == 2 else Softmax(n)
            gp = start(self, data, likelihood, START_VARIANCE, context)
            learned, _ = learn(learner, gp, data, context)
            gp = learned.gp
            posterior = context.finish(lambda: variational_posterior(gp, data, context))
            observation = observation_model(self, likelihood_of(gp), None, posterior, data, False)
            fitted = fitted_model(data, posterior, observation)
            store(self, y, fitted, data, learned, context, score=_scores)
        return self

    @property
    def kernel_(self) -> kernels.AbstractKernel:
        """The learned kernel, for the model's inputs (standardised if `standardize=True`)."""
        check_is_fitted(self)
        return cast(self._fitted.posterior.kernel, self.dtype)

    @property
    def elbo_(self) -> float:
        """A lower bound of the log probability of the training labels, per row."""
        return bound_of(self)

    def _read_data(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, context: FitContext
    ) -> TrainingData:
        """Read the rows and set `classes_`. Raises ValueError for fewer than two classes."""
        if are_files(X):
            refuse_fingerprints(self)
            others = {"sample_weight": sample_weight, "groups": groups}
            data, found = read_files(self, X, y, others, context, keeps_all=False, kind="class")
            classes: Any = found.labels
            check_classification_targets(classes)
            refuse_one_class(classes, data.rows.y, repr(y))
            self.classes_ = classes
            return data
        classes, targets = read_labels(self, y)
        refuse_fingerprints(self)
        rows, encoder = read_training_rows(
            self, X, targets, sample_weight, groups, context, time_order=self.time_order
        )
        refuse_one_class(classes, rows.y)
        self.classes_ = classes
        data = TrainingData.of(rows, bool(self.standardize), None, self.dtype, leaves_targets=True)
        return dataclasses.replace(data, encoder=encoder)


def _scores(fitted: Fitted, rows: Data) -> Scores:
    """Return log probabilities of the labels: of the model, and of constant class frequencies."""
    c, n = rows.y.astype(np.int64), len(rows.y)
    log_probabilities = typing.cast(Categorical, fitted.distribution(rows.X)).log_probabilities
    frequent = np.bincount(c, rows.weights, minlength=log_probabilities.shape[1]) / rows.weights.sum()
    return log_probabilities[np.arange(n), c], np.log(frequent[c]), np.ones(n)
