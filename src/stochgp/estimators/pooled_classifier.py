"""`GPClassifier`: sparse GP classifiers of a smooth and of a rough kernel, pooled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Shaped
from scipy.special import logsumexp
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import choice
from stochgp.data.rows import Rows
from stochgp.estimators.classifier import SparseGPClassifier
from stochgp.estimators.inputs import read_labels, read_training_rows, refuse_one_class
from stochgp.estimators.pool_division import HeldOut
from stochgp.estimators.pooled import Compared, Given, PooledEstimator
from stochgp.estimators.pooling import Predicted, alone, chosen
from stochgp.numerics.clustered import clusters

FEWEST_OF_A_CLASS = 10  # rows, below which none of a class is held out
INDUCING = 256

FAMILIES: dict[str, Callable[[], Any]] = {
    "smooth": partial(SparseGPClassifier, "rbf", INDUCING),
    "rough": partial(SparseGPClassifier, "matern12", INDUCING),
}


@dataclass(eq=False, repr=False)
class GPClassifier(ClassifierMixin, PooledEstimator):
    """Gaussian process classification for any table: classifiers of a smooth and of a rough kernel, mixed by how they predict rows they have not seen.

    A tenth of the rows is held out (whole groups, where there are groups; a quarter where the table says when its rows were taken, see `GPRegressor`). P(y = c | x) = Σ_k w_k P_k(y = c | x), where the weights have the highest mean
    of log P(y) over the held-out rows. A member stays where it pays, and learns again from all rows where there is time. Fewer than 1,000 rows have the
    smooth kernel alone.

    Parameters
    ----------
    ensemble : bool
        False: the one member that predicts held-out rows best.
    members
        "auto"; a list of names, "smooth" (RBF), "rough" (Matérn 1/2); or {name: estimator}.
    missing, new_rows, random_state, memory_limit, time_limit, dtype, verbose, plan, devices
        As of every estimator (`KernelGPRegressor`); `time_limit` is shared by the members.

    Attributes
    ----------
    classes_
        Sorted.
    scores_ : dict
        Of every member that was tried the mean of −log P(y) and the accuracy on held-out rows, and its seconds.
    estimators_, weights_, plan_, n_rows_, n_iter_, converged_, history_, fit_seconds_, n_features_in_, feature_names_in_, target_name_
        As of `GPRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import GPClassifier
    >>> X = np.random.default_rng(0).uniform(-1, 1, (60, 2))
    >>> label = np.where(X[:, 0] > 0, "right", "left")
    >>> model = GPClassifier(random_state=0).fit(X, label)
    >>> model.predict([[0.9, 0.0], [-0.9, 0.0]]).tolist()
    ['right', 'left']
    """

    _of_files: ClassVar[str] = "smooth"
    _alone_of_files: ClassVar[str] = "rows in files have one classifier, that of the smooth kernel"

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """P(y = c) of each row and class, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """The logarithms of the probabilities, accurate where these are small."""
        check_is_fitted(self)
        each = np.stack([self._of_all_classes(member, X) for member in self.estimators_.values()])
        with np.errstate(divide="ignore"):
            weights = np.log(self._pooling.weights(np.empty((0, 0))))
        return np.asarray(logsumexp(each + weights[:, None, None], axis=0))

    def predict(self, X: Any) -> Shaped[np.ndarray, " N"]:
        """The most probable class of each row."""
        found = self.predict_log_proba(X)
        return self.classes_[np.argmax(found, axis=1)]

    def _of_all_classes(self, member: Any, X: Any) -> Float[np.ndarray, "N C"]:
        """A member knows those classes alone of which it has seen rows."""
        known = member.predict_log_proba(X)
        found = np.full((len(known), len(self.classes_)), -np.inf)
        found[:, np.searchsorted(self.classes_, member.classes_)] = known
        return found

    def _read_rows(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, given: Given
    ) -> tuple[Rows, Any, dict[str, Any]]:
        classes, targets = read_labels(self, y)
        budget, place = Budget.of(self.memory_limit), self.new_rows
        rows, encoder, entries = read_training_rows(
            self, X, targets, sample_weight, budget, self.missing, groups, new_rows=place
        )
        refuse_one_class(classes, rows.y)
        self.classes_ = classes
        return rows, encoder, entries

    def _targets_of(self, rows: Rows) -> np.ndarray:
        return self.classes_[rows.y.astype(np.int64)]

    def _families(self) -> Mapping[str, Callable[[], Any]]:
        return FAMILIES

    def _allowed(self, rows: Rows, division: HeldOut) -> HeldOut:
        """Not those of rare classes: a member knows the classes that it has seen."""
        number = rows.y.astype(np.int64)
        left = np.bincount(number, ~division.all)[number]
        rare = (np.bincount(number)[number] < FEWEST_OF_A_CLASS) | (left == 0)
        return division.without(rare)

    def _compared(self, rows: Rows, division: HeldOut) -> Compared:
        new, names = rows.some(division.scored), list(self.estimators_)
        at = np.arange(len(new)), new.y.astype(np.int64)
        each = [self._of_all_classes(member, new.X) for member in self.estimators_.values()]
        logp = np.stack([found[at] for found in each], axis=1)
        for k, name in enumerate(names):
            right = np.argmax(each[k], axis=1) == at[1]
            self.scores_[name] |= {
                "log_loss": -float(np.average(logp[:, k], weights=new.weights)),
                "accuracy": float(np.average(right, weights=new.weights)),
            }
        if not self.ensemble:
            why = "ensemble=False: that of the best held-out probabilities"
            return Compared(alone(self._best_by("log_loss"), why))
        first = next(iter(self.estimators_.values()))._fitted
        cell = clusters(np.asarray(first.inputs.transform(new.X, np.float64)), new.group)
        nothing = np.zeros(len(new))  # no means to be right: log probabilities decide alone
        found = Predicted(logp, np.zeros_like(logp), nothing, new.weights.astype(np.float64), cell, nothing)
        return Compared(chosen(found, names, by_distance=False))

    def _closed(self, rows: Rows, division: HeldOut, compared: Compared) -> dict[str, Any]:
        """Members learn again, from all rows, where that takes no longer than what is left."""
        seconds = 1.5 * sum(self.scores_[name]["seconds"] for name in self.estimators_)
        if seconds > deadline.left():
            return {"refit": choice(False, "there was no time to learn again from all rows")}
        for name, member in self.estimators_.items():
            again: Any = clone(member)
            again.set_params(time_limit=None if self.time_limit is None else deadline.left())
            self.estimators_[name] = again.fit(rows.X, self._targets_of(rows), rows.weight, groups=rows.group)
        return {"refit": choice(True, "the members that stay learned again from all rows")}
