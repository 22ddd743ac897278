"""`GPClassifier`: sparse GP classifiers with a smooth, a rough and a linear kernel, pooled."""

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
    held_out_clusters,
    record_scores,
    weigh,
)
from stochgp.tables.targets import read_labels, refuse_one_class

# Divisors of the steps of a member that learns again from more than MAX_FEW_ROWS rows, from the learned kernel, and from another fold, from the same start.
SHORTER, SHORTER_FOLDS = 4, 2


@dataclass(eq=False, repr=False)
class GPClassifier(PosteriorClassifier, PoolEstimator):
    """Gaussian process classification for any table: classifiers with a smooth, a rough and a linear kernel, mixed according to how they predict held-out rows.

    With 100 to 5,000 rows a fifth is held out, up to 1,000 one fifth after the other; else as by `GPRegressor`. With fewer than 100 rows the smooth kernel is alone.
    P(y = c | x) ∝ (Σ_k w_k P_k(y = c | x))^(1/T). The weights maximise the mean of log P(y) over the held-out rows at T = 1; then T does
    (`distributions.TemperatureScaling`). If the pool is not clearly better than its best member, that member predicts alone. Members then learn again from all
    rows, if there is time: with more than 5,000 rows from the learned kernel, in a quarter of the steps. The learning rate is that of the first fold.

    Parameters
    ----------
    ensemble : bool
        False: the one member that predicts held-out rows best.
    members
        "auto"; a list of names, "smooth" (RBF), "rough" (Matérn 1/2), "linear" (Bayesian regression on the inputs and a constant); or {name: estimator}.
    missing, time_order, random_state, memory_limit, time_limit, dtype, verbose, devices
        As of every estimator (`KernelGPRegressor`); `time_limit` is shared by the members.

    Attributes
    ----------
    classes_
        Sorted.
    scores_ : dict
        Mean of −log P(y) and accuracy of each member that was tried, on held-out rows, and its seconds.
    estimators_, weights_, plan_, fit_report_, n_rows_, n_iter_, converged_, history_, fit_seconds_, n_features_in_, feature_names_in_, target_name_
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
        """Fit the members and their weights; as `GPRegressor.fit`.

        Raises ValueError or TypeError, in one line, for data or settings that cannot be used, and if no member can be fitted within `memory_limit`.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            As of `GPRegressor.fit`; y are labels of classes.
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
        """Return the rows with labels in place of the numbers of classes."""
        return replace(rows, y=self.classes_[rows.y.astype(np.int64)])

    def _predict_held_out(
        self, members: dict[str, Any], rows: Data, role: Roles, fold: Roles | None
    ) -> HeldOutPredictions:
        """Return predictions of held-out rows: with few rows those of every fold, while there is time."""
        where = [np.flatnonzero((role != LEARNED) & (role != UNSCORED))]
        predicted = lambda members, i: [
            member._fitted.distribution(rows.X[i]).log_probabilities for member in members
        ]
        log_p = [predicted(members.values(), where[0])]
        seconds = sum(member.fit_seconds_ for member in members.values())
        for k in range(1, N_FOLDS if len(rows) < MIN_ROWS_HELD_OUT and fold is not None else 0):
            part = of_known_classes(rows, SINGLE * (fold == k))
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
        weight, cluster = held.weights.astype(np.float64), held_out_clusters(members, held)
        nothing = np.zeros(len(held))  # there are no means: log probabilities decide alone
        means = np.zeros_like(log_density)
        return HeldOutPredictions(
            list(members), held, distributions, means, log_density, weight, cluster, nothing
        )

    def _settings_again(
        self, member: SparseGPClassifier, share: int, goes_on: bool = False
    ) -> dict[str, Any]:
        """Return the settings with which a member learns again; none for members that a user gave.

        Mini-batches take this share of the steps at the same rate, from the learned kernel if the member `goes_on`. A learner of all rows keeps its kernel.
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
        """Return the members, learned again from all rows, if that takes no longer than the time that is left."""
        goes_on = len(rows) > MAX_FEW_ROWS and not isinstance(self.members, Mapping)
        seconds = 1.5 * sum(scores[name]["seconds"] for name in members) / (SHORTER if goes_on else 1)
        if seconds > (0.0 if context.is_interrupted else deadline.left()):
            context.record("refit", False, "there was no time to learn again from all rows")
            return members
        again, haste = {}, deadline.within(0.0 if context.is_interrupted else None)
        with haste, context.interruptible("the refits"):
            for name, member in members.items():
                try:
                    settings = self._settings_again(member, SHORTER if goes_on else 1, goes_on)
                    found = learned_again(member, self._labelled(rows), **settings)
                except MemoryLimitError as refusal:
                    why = f"from {name!r} on, members have not learned from held-out rows: {refusal}"
                    context.record("refit", False, why)
                    break
                again[name] = found.set_params(kernel=member.kernel, learner=member.learner)
            return members | again
        return members
