"""Targets with one frequent value, continuous elsewhere: a classifier for the value, a regressor for the other rows."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray
from sklearn.base import clone

from stochgp.choosing import Decisions, choice
from stochgp.context import FitContext
from stochgp.data.reading import Encoder
from stochgp.data.rows import Data
from stochgp.distributions import PointMass
from stochgp.distributions.mixture import recorded_width
from stochgp.estimators.base import PosteriorRegressor
from stochgp.pools.members import raise_interrupt_of, takes_in
from stochgp.pools.pool import Draws, Pool, report_members
from stochgp.pools.targets import prefer_by_crps
from stochgp.pools.weights import HeldOutPredictions, Inputs, PerRow, PoolWeights, alone

# A value is tried that a tenth of the targets have, five times as many as have any other: the neighbours of a frequent count are frequent too. With calls on a
# doctor, 31 % of which are 0 and 19 % 1, a point mass had a CRPS of .369 instead of .349.
MIN_SHARE, MIN_RATIO, MIN_OTHERS = 0.1, 5.0, 20
MIN_ROWS = 10  # of the value, and of others
MIN_GAIN = 0.01  # of the CRPS


def frequent(rows: Data) -> float | None:
    """The value to be tried, if there is one."""
    values, number = np.unique(rows.y, return_inverse=True)
    if len(values) <= MIN_OTHERS:
        return None
    share = np.bincount(number.ravel(), rows.weights) / rows.weights.sum()
    second, first = np.argsort(share)[-2:]
    return float(values[first]) if share[first] >= max(MIN_SHARE, MIN_RATIO * share[second]) else None


@dataclass(frozen=True, eq=False)
class Hurdle:
    """y is `value` with probability π(x), else a draw of the regressor; a density is of targets recorded to `width`.

    With a `classifier` it is the first member of a `Pool`, whose observations are the value, and the weights (π, 1 − π) of the pool, which each
    observation follows by itself; with `n_samples` also functions that are the value everywhere.
    """

    value: float
    width: float
    classifier: Pool | None = None
    n_samples: int = 0
    by_row: ClassVar[bool] = True
    is_joint: ClassVar[bool] = False

    def has(self, y: PerRow) -> Bool[np.ndarray, " N"]:
        """Which targets are the value."""
        return y == np.asarray(self.value, y.dtype)

    def weights(self, X: Inputs) -> Float[np.ndarray, "N 2"]:
        """(π, 1 − π), of the second and the first class."""
        assert self.classifier is not None
        return self.classifier.distribution(X).probabilities[:, ::-1]

    @property
    def encoder(self) -> Encoder | None:
        return None if self.classifier is None else self.classifier.encoder

    @property
    def seen(self) -> Any:
        return None if self.classifier is None else self.classifier.seen

    def need_bytes(self, n_rows: int = 0, **wanted: Any) -> int:
        """The bytes of the probabilities of each row."""
        assert self.classifier is not None
        return self.classifier.need_bytes(n_rows)

    def mean(self, X: Inputs) -> PerRow:
        return np.full(len(X), self.value)

    def mean_and_std(self, X: Inputs, *, include_noise: bool) -> tuple[PerRow, PerRow]:
        return self.mean(X), np.zeros(len(X))

    def distribution(self, X: Inputs) -> PointMass:
        return PointMass(self.mean(X), np.full(len(X), self.width))

    def covariance(self, X: Inputs, *, include_noise: bool) -> Float[np.ndarray, "N N"]:
        return np.zeros((len(X), len(X)))

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray) -> "Hurdle":
        return dataclasses.replace(self, n_samples=n_samples)

    def observed(self, functions: "Hurdle", X: Inputs, *, key: PRNGKeyArray) -> Draws:
        return functions.at_numbers(X)

    def at_numbers(self, X: Inputs) -> Draws:
        return np.full((len(X), self.n_samples), self.value)


@dataclass(eq=False, repr=False)
class HurdleRegressor(PosteriorRegressor):
    """p(y | x) = π(x) δ(y − value) + (1 − π(x)) p(y | x, y ≠ value), the first by `classifier`, the second by `regressor`, which learns from other rows.

    `estimators_` has both, "at_value" and "elsewhere". `fit` raises ValueError if fewer than 10 targets have the value, or fewer than 10 another one.
    """

    value: float = 0.0
    classifier: Any = None
    regressor: Any = None
    missing: str = field(default="refuse", kw_only=True)
    new_rows: str = field(default="between", kw_only=True)

    @property
    def _fitted(self) -> Pool:
        classifier, elsewhere = (member._fitted for member in self.estimators_.values())
        hurdle = dataclasses.replace(self._pooling, classifier=classifier)
        return Pool((hurdle, elsewhere), hurdle)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: Any = None,
        callback: Any = None,
    ) -> "HurdleRegressor":
        """Fit the classifier to all rows and the regressor to rows of other values.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            As of every estimator, in memory; inputs are numbers.
        """
        with FitContext.open(self, checkpoint, callback) as context:
            rows = Data(X, y, sample_weight, groups)
            hurdle = Hurdle(float(self.value), recorded_width(y))
            at = hurdle.has(y)
            others = rows.take(~at)
            if min(at.sum(), len(others)) < MIN_ROWS:
                raise ValueError(
                    f"point_mass is {self.value:g}, the target of {at.sum()} of {len(rows)} rows; at least {MIN_ROWS} must have it, and {MIN_ROWS} another one"
                )
            names = ("missing", "new_rows", "memory_limit", "dtype", "verbose", "devices")
            shared = {name: getattr(self, name) for name in names}
            parts = (("at_value", self.classifier, rows, at), ("elsewhere", self.regressor, others, others.y))
            members = {}
            for k, (name, member, part, targets) in enumerate(parts):
                time_limit = None if self.time_limit is None else max(context.seconds_left, 0.1) / (2 - k)
                members[name] = clone(member)
                members[name].set_params(random_state=context.seed(name), time_limit=time_limit, **shared)
                members[name].fit(part.X, targets, part.weight, groups=part.group, **context.of_member(name))
                if name == "at_value":  # without the regressor this is no model
                    raise_interrupt_of(members[name])
            share = float(np.average(at, weights=rows.weights))
            self.estimators_, self._pooling, self._correction = members, hurdle, None
            self.weights_ = {"at_value": share, "elsewhere": 1 - share}
            self.plan_ = Decisions({"point_mass": choice(self.value, f"{share:.1%} of the targets")})
            self.n_features_in_, self.n_rows_, self.target_name_ = X.shape[1], len(rows), None
            report_members(self)
        return self

    def summary(self) -> str:
        """The summaries of classifier and regressor."""
        return "\n\n".join(f"{name}: {member.summary()}" for name, member in self.estimators_.items())


def unless_preferred(
    name: str, weights: PoolWeights, others: HeldOutPredictions, predictions: HeldOutPredictions
) -> PoolWeights:
    """The hurdle model alone, if its CRPS of held-out rows is clearly lower than that of the pool."""
    rival = {name: predictions.distributions[predictions.names.index(name)]}
    found = prefer_by_crps(others.mixed(weights), rival, predictions.rows, predictions.cluster, MIN_GAIN)
    if not found.gains:  # one of the two has no finite scores
        return weights
    if found.name is None:
        return dataclasses.replace(weights, why=f"{weights.why}; {found.why}")
    return alone(name, f"{found.why}: {weights.why}")


def update_member(member: Any, held: Data) -> bool:
    """`takes_in`; the members elsewhere of a hurdle model take in rows of other values."""
    if isinstance(member, HurdleRegressor):
        held, elsewhere = held.take(held.y != member.value), member.estimators_["elsewhere"]
        joined = [update_member(part, held) for part in elsewhere.estimators_.values()]
        return all(joined)
    return takes_in(member, held)
