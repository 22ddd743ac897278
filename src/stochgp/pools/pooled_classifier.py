"""`GPClassifier`: sparse GP classifiers of a smooth, of a rough and of a linear kernel, pooled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from stochgp import deadline
from stochgp.budget import Budget, MemoryLimitError
from stochgp.choosing import choice
from stochgp.data.rows import Rows
from stochgp.distributions import Categorical, TemperatureScaling, temperature_scaling
from stochgp.families.classifier import SparseGPClassifier
from stochgp.kernels import Constant, Linear, Sum
from stochgp.pools.class_pool import ClassPool, mixed_classes
from stochgp.pools.joining import raise_interrupt_of
from stochgp.pools.pool_division import HeldOut, folds
from stochgp.pools.pool_run import Given
from stochgp.pools.pooled import FEWEST_ROWS, PooledEstimator
from stochgp.pools.pooling import AbstractPooling, Chosen, Compared, Predicted, alone, chosen, lowest
from stochgp.posteriors.base import Request
from stochgp.selection.choices import CLASSIFIER
from stochgp.training_data.inputs import read_labels, read_training_rows, refuse_one_class

INDUCING, FOLDS, FEWEST_IN_FOLDS = 256, 5, 100

# Of its steps a member takes 1/4 when it learns again from more than FEW_ROWS rows: on diamonds (8,000) in 11 s for 44, at a log loss of .7494 for .7490 (.7514
# without, .7547 with 1/8). Of few rows it takes all: on digits (1,438) 1/4 gave .0483 for .0445.
SHORTER = 4

# Points and steps of members up to so many rows. By 256 and 2,048, digits (1,438 rows) took 41 s for 17, at a log loss of .078 for .080; Chile .833 for .835,
# mortgages (1,905 rows) .258 for .260, diamonds (8,000) .759 for .763. By 128 and 1,024, 456 to 560 rows took 2 to 3 times as long, at .074 for .076 (breast cancer), .868
# for .867 (Chile), .234 for .242 (digits), means of four divisions.
FEW_ROWS = 5_000
FEW = {1_000: (64, replace(CLASSIFIER, steps=512)), FEW_ROWS: (128, replace(CLASSIFIER, steps=1_024))}


def _lines() -> SparseGPClassifier:
    """Of standardised inputs: typical sums of few of them say as much as a typical f of the other members. Made when it is asked for: a kernel is on a device."""
    return SparseGPClassifier(Sum(Constant(4.0), Linear(0.3)), INDUCING // 4)


FAMILIES: dict[str, Callable[[], Any]] = {
    "smooth": partial(SparseGPClassifier, "rbf", INDUCING),
    "rough": partial(SparseGPClassifier, "matern12", INDUCING),
    "linear": _lines,
}


@dataclass(eq=False, repr=False)
class GPClassifier(ClassifierMixin, PooledEstimator):
    """Gaussian process classification for any table: classifiers of a smooth, a rough and a linear kernel, mixed by how they predict rows they have not seen.

    A tenth of the rows is held out (whole groups, where there are groups; a quarter where the table says when its rows were taken, see `GPRegressor`).
    Of 100 to 5,000 rows it is a fifth, of up to 1,000 one fifth after the other; fewer than 100 have the smooth kernel alone.
    P(y = c | x) ∝ (Σ_k w_k P_k(y = c | x))^(1/T), where the weights have the highest mean of log P(y) over the held-out rows at T = 1, and then T
    (`distributions.temperature_scaling`). A member stays where it pays, and learns again from all rows where there is time: of more
    than 5,000 rows from the kernel that it has learned, in a quarter of the steps.

    Parameters
    ----------
    ensemble : bool
        False: the one member that predicts held-out rows best.
    members
        "auto": all; a list of names, "smooth" (RBF), "rough" (Matérn 1/2), "linear" (Bayesian regression on the inputs and a constant); or
        {name: estimator}.
    missing, new_rows, random_state, memory_limit, time_limit, dtype, verbose, devices
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
    _n_auto: ClassVar[int] = 3
    _of_correction: ClassVar[str] = "temperature"
    _alone_of_files: ClassVar[str] = "rows in files have one classifier, that of the smooth kernel"

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """P(y = c) of each row and class, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "N C"]:
        """The logarithms of the probabilities, accurate where these are small."""
        check_is_fitted(self)
        X = self._read(X)
        self._reserve(Request(len(X)), f"probabilities for {len(X)} rows", 32 * len(X) * len(self.classes_))
        return self._fitted.distribution(X).log_probabilities

    def predict(self, X: Any) -> Shaped[np.ndarray, " N"]:
        """The most probable class of each row."""
        found = self.predict_log_proba(X)
        return self.classes_[np.argmax(found, axis=1)]

    @property
    def _fitted(self) -> Any:
        """The members as one."""
        return self._as_one(self.estimators_, self._pooling, self._correction)

    def _as_one(
        self, members: Mapping[str, Any], pooling: AbstractPooling | None = None, correction: Any = None
    ) -> ClassPool:
        """These members. A member knows those classes alone of which it has seen rows."""
        parts = tuple(member._fitted for member in members.values())
        known = tuple(np.searchsorted(self.classes_, member.classes_) for member in members.values())
        return ClassPool(parts, known, len(self.classes_), pooling, correction)

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

    def _suit(self, name: str, member: Any, rows: Rows, days: list[int], found: Mapping[str, Any]) -> None:
        fitting = next((FEW[most] for most in FEW if len(rows) <= most), None)
        if fitting is not None and not isinstance(self.members, Mapping):
            n_points, learner = fitting
            member.set_params(n_inducing=min(int(member.n_inducing), n_points), learner=learner)

    def _division(self, rows: Rows, in_time: bool, generator: np.random.Generator) -> HeldOut | None:
        """Where rows are few the first of five folds: members learn again from all rows, and the temperature asks for many held-out rows."""
        if in_time or len(rows) > FEW_ROWS:
            found = super()._division(rows, in_time, generator)
        else:
            fold = folds(rows, FOLDS, generator) if len(rows) >= FEWEST_IN_FOLDS else None
            found = None if fold is None else HeldOut.of_fold(fold, 0, rows.group is not None)
        found = None if found is None else self._known(rows, found)
        return found if found is not None and found.scored.any() else None

    def _known(self, rows: Rows, division: HeldOut) -> HeldOut:
        """Without rows of classes that are held out as a whole: a member knows the classes that it has seen."""
        number = rows.y.astype(np.int64)
        return division.without(np.bincount(number, ~division.all)[number] == 0)

    def _compared(self, rows: Rows, division: HeldOut) -> Compared:
        where, log_p = self._held_out(rows, division)
        new = rows.some(where)
        at = np.arange(len(new)), new.y.astype(np.int64)
        each = log_p[:, *at].T
        for k, name in enumerate(self.estimators_):
            right = np.argmax(log_p[k], axis=1) == at[1]
            self.scores_[name] |= {
                "log_loss": -float(np.average(each[:, k], weights=new.weights)),
                "accuracy": float(np.average(right, weights=new.weights)),
            }
        return Compared(self._chosen(each, new), None, [Categorical(part) for part in log_p], new)

    def _chosen(self, log_density: Float[np.ndarray, "R K"], new: Rows) -> Chosen:
        if not self.ensemble:
            best = lowest(self.scores_, self.estimators_, "log_loss")
            return alone(best, "ensemble=False: that of the best held-out probabilities")
        nothing = np.zeros(len(new))  # no means to be right: log probabilities decide alone
        weight = new.weights.astype(np.float64)
        found = Predicted(
            log_density, np.zeros_like(log_density), nothing, weight, self._cells(new), nothing, nothing
        )
        return chosen(found, list(self.estimators_), by_distance=False)

    def _held_out(self, rows: Rows, division: HeldOut) -> tuple[np.ndarray, Float[np.ndarray, "K R C"]]:
        """(Which rows are held out, their log probabilities by each member): of few rows those of every fold, while there is time."""
        members = self.estimators_
        predicted = lambda members, where: self._as_one(members).log_probabilities(rows.X[where])
        where = [np.flatnonzero(division.scored)]
        log_p = [predicted(members, where[0])]
        if len(rows) < FEWEST_ROWS and division.fold is not None:
            seconds = sum(score["seconds"] for score in self.scores_.values())
            for k in range(1, division.fold.max() + 1):
                part = self._known(rows, HeldOut.of_fold(division.fold, k, rows.group is not None))
                if 2.5 * seconds > deadline.left():
                    break
                if not part.scored.any():
                    continue
                again = {name: self._again(member, rows.some(~part.all)) for name, member in members.items()}
                where.append(np.flatnonzero(part.scored))
                log_p.append(predicted(again, where[-1]))
        return np.concatenate(where), np.concatenate(log_p, axis=1)

    def _again(self, member: Any, rows: Rows, **settings: Any) -> Any:
        """One that learns from these rows, with the same settings but for these."""
        again: Any = clone(member)
        again.set_params(time_limit=None if self.time_limit is None else deadline.left(), **settings)
        again.fit(rows.X, self._targets_of(rows), rows.weight, groups=rows.group)
        raise_interrupt_of(again)
        return again

    def _closed(self, rows: Rows, division: HeldOut, compared: Compared) -> dict[str, Any]:
        """Members learn again, from all rows, where that takes no longer than what is left; held-out rows say how sure they are to be."""
        entries = self._corrected(division, compared)
        goes_on = len(rows) > FEW_ROWS and not isinstance(self.members, Mapping)
        seconds = 1.5 * sum(self.scores_[name]["seconds"] for name in self.estimators_)
        seconds /= SHORTER if goes_on else 1
        if seconds > deadline.left():
            return entries | {"refit": choice(False, "there was no time to learn again from all rows")}
        for name, member in self.estimators_.items():
            try:
                again = self._again(member, rows, **(_shorter(member) if goes_on else {}))
            except MemoryLimitError as refusal:
                why = f"from {name!r} on, members keep what they learned without the held-out rows: {refusal}"
                return entries | {"refit": choice(False, why)}
            self.estimators_[name] = again.set_params(kernel=member.kernel, learner=member.learner)
        where = f"from the learned kernel, in 1/{SHORTER} of the steps" if goes_on else "from the start"
        return entries | {
            "refit": choice(True, f"the members that stay learned again from all rows, {where}")
        }

    def _correction_by(self, compared: Compared, new: Rows) -> tuple[TemperatureScaling, str]:
        """The temperature that held-out rows ask for."""
        each = np.stack([compared.distributions[k].log_probabilities for k in compared.picked.members])
        mixed = mixed_classes(each, self._pooling.weights(new.X))
        made = temperature_scaling(mixed, new.y, groups=new.group, weight=new.weight)
        return made, f"temperature {made.temperature:.3g}"


def _shorter(member: SparseGPClassifier) -> dict[str, Any]:
    """Settings with which it learns again, from the kernel that it has learned, in a fraction of the steps, at the rate of before."""
    learner = CLASSIFIER if isinstance(member.learner, str) else member.learner
    rate = member.plan_["learning_rate"]["choice"]
    return {
        "kernel": member.kernel_,
        "learner": replace(learner, steps=learner.steps // SHORTER, learning_rate=rate),
    }
