"""`GPClassifier`, a pool of sparse GPs with a smooth, a rough and a linear kernel."""

import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from stochgp import deadline
from stochgp.budget import MemoryLimitError
from stochgp.context import FitContext
from stochgp.data.reading import are_files
from stochgp.data.rows import Data
from stochgp.distributions import Categorical, TemperatureScaling
from stochgp.estimators.base import PosteriorClassifier, check_settings
from stochgp.families.classifier import SparseGPClassifier
from stochgp.families.default_learners import CLASSIFIER
from stochgp.learners import VGP
from stochgp.parameters import Frozen
from stochgp.pools.division import (
    LEARNED,
    MAX_FEW_ROWS,
    MIN_ROWS_HELD_OUT,
    N_FOLDS,
    SINGLE,
    UNSCORED,
    Roles,
    divide_classes,
    of_known_classes,
)
from stochgp.pools.members import (
    CLASSIFIERS,
    N_PARTS_AFTER,
    fit_members,
    learned_again,
    named_members,
)
from stochgp.pools.pool import Pool, PoolEstimator
from stochgp.pools.weights import (
    SECONDS_IN_HASTE,
    HeldOutPredictions,
    alone,
    calibrated,
    record_scores,
    weigh,
)
from stochgp.tables.targets import read_labels, refuse_one_class

# Shorter refits: 1/4 of the steps with more than MAX_FEW_ROWS rows, 1/2 of the steps on another fold.
SHORTER, SHORTER_FOLDS = 4, 2


@dataclass(eq=False, repr=False)
class GPClassifier(PosteriorClassifier, PoolEstimator):
    """Gaussian process classification for any table, with a mixture of several models.

    The pool has three members: classifiers with a smooth, a rough and a linear kernel. With at most
    5,000 rows, `fit` holds out a fifth of the rows. With fewer than 1,000 rows, `fit` holds out each fifth in
    turn. With more than 5,000 rows, `fit` holds out rows as `GPRegressor` does. The probability P(y = c | x)
    is proportional to (Σ_k w_k P_k(y = c | x))^(1/T). With T = 1, the weights w_k maximise the mean of log
    P(y) over held-out rows. Then T maximises this mean (`distributions.TemperatureScaling`). Members with
    weights below 10 % are dropped. If the time limit allows, the other members then learn again from all
    rows. With fewer than 100 rows, the only member has the smooth kernel.

    Parameters
    ----------
    ensemble : bool
        False: use only the member that predicts held-out rows best.
    members : "auto", sequence of str or mapping
        "auto", a list of names, or {name: estimator}. Names are "smooth" (RBF), "rough" (Matérn 1/2) and
        "linear" (Bayesian regression on the inputs and a constant).
    missing, time_order, random_state, memory_limit, time_limit, dtype, verbose, devices
        See `KernelGPRegressor`. The members share `time_limit`.

    Attributes
    ----------
    classes_
        The sorted labels.
    scores_ : dict
        Log loss and accuracy of each member on held-out rows, and the seconds of each fit.
    estimators_, weights_, plan_, fit_report_, n_rows_, n_iter_, converged_, history_, fit_seconds_
        See `GPRegressor`.
    n_features_in_, feature_names_in_, target_name_
        See `GPRegressor`.

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

    @property
    def _fitted(self) -> Pool:
        parts = tuple(member._fitted for member in self.estimators_.values())
        return Pool(parts, self._pooling, len(self.classes_))

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "GPClassifier":
        """Fit the members and their weights, like `GPRegressor.fit`.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            See `GPRegressor.fit`; y contains class labels.
        """
        check_settings(self.get_params(deep=False))
        with FitContext.open(self, checkpoint, callback) as context:
            classes, numbers = (None, y) if are_files(X) else read_labels(self, y)
            given = X, numbers, sample_weight, groups
            rows, encoder, labels = self._read_training(
                SparseGPClassifier(), *given, context, self.time_order, kind="class"
            )
            classes = typing.cast(np.ndarray, labels if classes is None else classes)
            refuse_one_class(classes, rows.y)
            present, number = np.unique(rows.y.astype(np.int64), return_inverse=True)
            self.classes_, rows = classes[present], replace(rows, y=number.astype(np.float64))
            in_time, n_rows, rows = rows.group is not None and groups is None, len(rows), rows.apart()
            role, fold = divide_classes(rows, in_time, context)
            candidates = named_members(
                self.members, list(CLASSIFIERS), CLASSIFIERS, rows, self.memory_limit, ClassifierMixin
            )
            if not role.any():
                candidates = dict(list(candidates.items())[:1])
            seen = self._labelled(rows.take(role == LEARNED))
            members = fit_members(self, candidates, seen, encoder, context)
            scores = {name: {"seconds": member.fit_seconds_} for name, member in members.items()}
            weights = alone(next(iter(members)), f"{len(rows):,} rows are too few to compare members")
            if role.any():
                context.bar.part("comparing the members", len(members), len(members) + N_PARTS_AFTER)
                with deadline.within(SECONDS_IN_HASTE if context.is_interrupted else None):
                    predictions = self._predict_held_out(members, rows, role, fold)
                context.report["held_out_rows"] = len(predictions.y)
                record_scores(predictions, scores)
                weights = calibrated(
                    weigh(predictions, self.ensemble), predictions, TemperatureScaling, context
                )
                context.bar.part("learning from all rows", len(scores) + 1, len(scores) + N_PARTS_AFTER)
                members = self._refit({name: members[name] for name in weights.names}, rows, scores, context)
            return self._store(members, weights, scores, n_rows, y, encoder, context)

    def _labelled(self, rows: Data) -> Data:
        """Return the rows with labels in place of class numbers."""
        return replace(rows, y=self.classes_[rows.y.astype(np.int64)])

    def _predict_held_out(
        self, members: dict[str, Any], rows: Data, role: Roles, fold: Roles | None
    ) -> HeldOutPredictions:
        """Return predictions of held-out rows; with few rows, of all folds if time allows."""
        where = [np.flatnonzero((role != LEARNED) & (role != UNSCORED))]
        predicted = lambda members, i: [
            member._fitted.distribution(rows.X[i]).log_probabilities for member in members
        ]
        log_p = [predicted(members.values(), where[0])]
        seconds = sum(member.fit_seconds_ for member in members.values())
        for k in range(1, N_FOLDS if len(rows) < MIN_ROWS_HELD_OUT and fold is not None else 0):
            part = of_known_classes(rows, SINGLE * (fold == k))  # pyrefly: ignore[bad-argument-type]
            if 2.5 * seconds > deadline.left():
                break
            if part.any():
                seen = self._labelled(rows.take(part == LEARNED))
                settings = lambda member: self._settings_again(member, SHORTER_FOLDS)
                again = [learned_again(member, seen, **settings(member)) for member in members.values()]
                where.append(np.flatnonzero(part))
                log_p.append(predicted(again, where[-1]))
        held = rows.take(np.concatenate(where))
        distributions = [Categorical(logs) for logs in np.concatenate(log_p, axis=1)]
        log_density = np.stack([found.logpdf(held.y) for found in distributions], axis=1)
        means = np.zeros_like(log_density)  # classes have no means; only log probabilities matter
        weight = held.weights.astype(np.float64)
        return HeldOutPredictions(list(members), held, distributions, means, log_density, weight)

    def _settings_again(
        self, member: SparseGPClassifier, share: int, goes_on: bool = False
    ) -> dict[str, Any]:
        """Return the settings of a refit: {} for members that the user passed.

        Learning with mini-batches takes 1/`share` of the steps at the same learning rate, and starts at the
        learned kernel if `goes_on`. Learning from all rows keeps the learned kernel fixed.
        """
        if isinstance(self.members, Mapping):
            return {}
        learner = CLASSIFIER if isinstance(member.learner, str) else member.learner
        if isinstance(learner, VGP):
            return {"kernel": Frozen(member.kernel_)}
        rate = member.fit_report_["learning_rate"]
        found = {"learner": replace(learner, steps=learner.steps // share, learning_rate=rate)}
        return found | ({"kernel": member.kernel_} if goes_on else {})

    def _refit(
        self, members: dict[str, Any], rows: Data, scores: dict[str, dict[str, float]], context: FitContext
    ) -> dict[str, Any]:
        """Return the members after refits on all rows, if there is enough time."""
        goes_on = len(rows) > MAX_FEW_ROWS and not isinstance(self.members, Mapping)
        seconds = 1.5 * sum(scores[name]["seconds"] for name in members) / (SHORTER if goes_on else 1)
        if seconds > (0.0 if context.is_interrupted else deadline.left()):
            context.record("refit", False, "there was no time to refit the members on all rows")
            return members
        again, haste = {}, deadline.within(0.0 if context.is_interrupted else None)
        with haste, context.interruptible("the refits"):
            for name, member in members.items():
                try:
                    settings = self._settings_again(member, SHORTER if goes_on else 1, goes_on)
                    found = learned_again(member, self._labelled(rows), **settings)
                except MemoryLimitError as refusal:
                    why = f"{name!r} and later members were not refitted on all rows: {refusal}"
                    context.record("refit", False, why)
                    break
                again[name] = found.set_params(kernel=member.kernel, learner=member.learner)
            return members | again
        return members
