"""Models of targets in pools: counts, transforms and hurdle models."""

import contextlib
import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from sklearn.base import clone

from stochgp import deadline
from stochgp.budget import MemoryLimitError
from stochgp.choosing import Decisions, Preference, choice, prefer
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import AbstractDistribution, Normal, PointMass, Rounded, Warped
from stochgp.distributions.mixture import recorded_width
from stochgp.estimators.base import PosteriorRegressor
from stochgp.families.feature import FeatureGPRegressor
from stochgp.families.kernel import KernelGPRegressor
from stochgp.numerics.clustered import clusters
from stochgp.numerics.seeds import random_rows
from stochgp.observations.mean_function import boosted
from stochgp.pools.division import LEARNED, held_out
from stochgp.pools.members import raise_interrupt_of
from stochgp.pools.pool import Draws, Pool, report_members
from stochgp.pools.weights import HeldOutPredictions, Inputs, PerRow, PoolWeights, alone
from stochgp.transforms import AbstractTransform, Log
from stochgp.warning import silent

REAL, COUNT = "real", "count"
# Limits for targets that may be counts: median, share of the most frequent value, number of values.
MAX_MEDIAN, MIN_SHARE, MIN_VALUES = 30, 0.02, 3
MIN_GAIN_OF_COUNTS = 0.02  # minimum decrease of the CRPS, as a share
TAILS = (0.1, 0.5, 0.9)  # quantiles that measure skewness
MIN_GAIN_OF_LOG, MAX_ZEROS = 0.05, 0.01  # minimum gain in nats per row; maximum share of zeros
MIN_ROWS, MAX_ROWS = 400, 2_000  # numbers of rows to compare models of targets
# Minimum share of a point mass, ratio to the share of the next value, and number of other values.
MIN_SHARE_OF_VALUE, MIN_RATIO, MIN_OTHERS = 0.1, 5.0, 20
MIN_ROWS_OF_VALUE = 10  # minimum number of rows with the value, and of other rows
MIN_GAIN_OF_HURDLE = 0.01  # minimum decrease of the CRPS, as a share


def choose_counts(rows: Data, context: FitContext) -> str:
    """Return "count" if trees of log(y + ½) predict clearly better than trees of y.

    The score is the CRPS, because log scores cannot compare probabilities with densities.
    """
    if not may_be_counts(rows):
        return REAL
    if len(rows) < MIN_ROWS:
        context.record("target", REAL, "too few rows to compare models of counts and of real numbers")
        return REAL
    (real, count), held, cluster = _predicted(Log(0.5), rows, context.seed("counts"))
    found = prefer_by_crps(real, COUNT, Rounded(count), held, cluster, MIN_GAIN_OF_COUNTS)
    context.record("target", found.name or REAL, f"comparison of trees: {found.why}")
    return found.name or REAL


def choose_transform(rows: Data, context: FitContext) -> Log | None:
    """Return T(y) = log(y + c) if trees of T(y) predict held-out rows clearly better."""
    shift = shift_of(rows)
    if shift is None:
        return None
    T = Log(shift)
    each, held, cluster = _predicted(T, rows, context.seed("transform"))
    base, rival = (found.logpdf(held.y) for found in each)
    found = prefer(base, {"log": rival}, cluster, held.weights, least=MIN_GAIN_OF_LOG)
    what = None if found.name is None else f"log(y + {shift:.4g})"
    context.record("transform", what, f"for all members; comparison of trees: {found.why}")
    return None if found.name is None else T


def prefer_by_crps(
    base: AbstractDistribution,
    name: str,
    rival: AbstractDistribution,
    rows: Data,
    cluster: Int[np.ndarray, " R"],
    least: float,
) -> Preference:
    """Apply `prefer` to CRPS divided by the mean CRPS of `base`."""
    of_base = base.crps(rows.y)
    unit = float(np.average(of_base, weights=rows.weights))
    scored = {name: -rival.crps(rows.y) / unit}
    found = prefer(-of_base / unit, scored, cluster, rows.weights, least=least)
    if not found.gains:
        return found
    mean, error, _ = found.gains[name]
    return found._replace(why=f"{name!r} changes the CRPS by {-mean:+.1%} ± {error:.1%}")


def may_be_counts(rows: Data) -> bool:
    """Return True for small whole numbers ≥ 0 if one value is frequent."""
    y = rows.y
    if y.min() < 0 or np.median(y) > MAX_MEDIAN or np.any(y != np.floor(y)):
        return False
    _, which = np.unique(y, return_inverse=True)
    share = np.bincount(which.ravel(), rows.weights) / rows.weights.sum()
    return bool(len(share) >= MIN_VALUES and share.max() >= MIN_SHARE)


def shift_of(rows: Data) -> float | None:
    """Return c if log(y + c) may suit the targets, else None.

    c is half of the least positive target. No target may be negative, and log(y + c) must be less skewed than
    y. At most 1 % of the targets may be 0, because log c would be far from other values of log(y + c).
    """
    y = rows.y
    if y.min() < 0 or np.average(y == 0, weights=rows.weights) > MAX_ZEROS:
        return None
    shift = float(y[y > 0].min()) / 2
    return shift if _skewness(y) > abs(_skewness(np.log(y + shift))) else None


def _skewness(y: Float[np.ndarray, " N"]) -> float:
    """Return Kelly's skewness ((q₉₀ − q₅₀) − (q₅₀ − q₁₀))/(q₉₀ − q₁₀), from −1 to 1."""
    low, middle, high = np.quantile(y, TAILS)
    return float((high + low - 2 * middle) / max(high - low, np.finfo(float).tiny))


def _predicted(
    T: AbstractTransform, rows: Data, seed: int
) -> tuple[list[AbstractDistribution], Data, Int[np.ndarray, " R"]]:
    """Predict half of the rows with trees of y and with trees of T(y), from the other half.

    Return N(m, S) for y and for T(y), the predicted rows, and clusters of rows. S is the mean squared error.
    """
    rows, each = rows.take(random_rows(len(rows), MAX_ROWS, seed)), list[AbstractDistribution]()
    is_new = held_out(rows, np.random.default_rng(seed), share=0.5) != LEARNED
    seen, held, spread = rows.take(~is_new), rows.take(is_new), np.std(rows.X, axis=0)
    for of in (None, T):
        z, new = (part.y if of is None else np.asarray(of(part.y), np.float64) for part in (seen, held))
        offset = np.average(z, weights=seen.weights)
        pair = dataclasses.replace(seen, y=z - offset), dataclasses.replace(held, y=new - offset)
        trees = boosted(*pair)
        m = offset + (0.0 if trees is None else trees.on_host(held.X))
        S = np.average((new - m) ** 2, weights=held.weights) + np.finfo(float).tiny
        found = Normal(np.broadcast_to(m, new.shape), np.full(len(new), S**0.5))
        each.append(found if of is None else Warped(found, of))
    return each, held, clusters(held.X / np.where(spread > 0, spread, 1.0), held.group)


def frequent(rows: Data) -> float | None:
    """Return the value to try as a point mass, or None."""
    values, number = np.unique(rows.y, return_inverse=True)
    if len(values) <= MIN_OTHERS:
        return None
    share = np.bincount(number.ravel(), rows.weights) / rows.weights.sum()
    second, first = np.argsort(share)[-2:]
    return (
        float(values[first]) if share[first] >= max(MIN_SHARE_OF_VALUE, MIN_RATIO * share[second]) else None
    )


@dataclass(frozen=True, eq=False)
class Hurdle:
    """The member of a hurdle model that predicts `value`. It also computes both weights.

    `classifier` predicts the probability π(x) of y = `value`. With probability 1 − π(x), y has the
    regressor's predictive distribution. `width` is the smallest difference between recorded targets
    (`recorded_width`). `n_samples` is the number of sampled functions, which are constant.
    """

    value: float
    width: float
    classifier: Pool | None = None
    n_samples: int = 0
    by_row: ClassVar[bool] = True
    is_joint: ClassVar[bool] = False
    positive: ClassVar[bool] = False
    calibration: ClassVar[None] = None

    def weights(self, X: Inputs) -> Float[np.ndarray, "N 2"]:
        """Return (π, 1 − π): probabilities of the classifier's second and first class."""
        assert self.classifier is not None
        return self.classifier.distribution(X).probabilities[:, ::-1]

    def need_bytes(self, n_rows: int = 0, **wanted: Any) -> int:
        """Return the bytes that the probabilities of rows need."""
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
    """Hurdle model p(y | x) = π(x) δ(y − value) + (1 − π(x)) p(y | x, y ≠ value).

    `classifier` learns π(x) from all rows. `regressor` learns only from rows whose target is not `value`.
    `estimators_` contains the classifier as "at_value" and the regressor as "elsewhere". `fit`
    raises ValueError if fewer than 10 targets equal `value`, or fewer than 10 targets differ from `value`.
    """

    value: float = 0.0
    classifier: Any = None
    regressor: Any = None
    missing: str = field(default="refuse", kw_only=True)
    time_order: str = field(default="interpolate", kw_only=True)

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
        """Fit the classifier to all rows, and the regressor to rows whose target is not `value`.

        Parameters
        ----------
        X, y, sample_weight, groups, checkpoint, callback
            See `KernelGPRegressor.fit`; X and y are arrays of numbers.
        """
        with FitContext.open(self, checkpoint, callback) as context:
            rows = Data(X, y, sample_weight, groups)
            hurdle = Hurdle(float(self.value), recorded_width(y))
            at = y == np.asarray(self.value, y.dtype)
            others = rows.take(~at)
            if min(at.sum(), len(others)) < MIN_ROWS_OF_VALUE:
                raise ValueError(
                    f"point_mass is {self.value:g}, which is the target of {at.sum()} of {len(rows)} rows; at least {MIN_ROWS_OF_VALUE} rows must have this target, and at least {MIN_ROWS_OF_VALUE} rows a different target"
                )
            names = ("missing", "time_order", "memory_limit", "dtype", "verbose", "devices")
            shared = {name: getattr(self, name) for name in names}
            parts = (("at_value", self.classifier, rows, at), ("elsewhere", self.regressor, others, others.y))
            members = {}
            for k, (name, member, part, targets) in enumerate(parts):
                time_limit = None if self.time_limit is None else max(deadline.left(), 0.1) / (2 - k)
                members[name] = clone(member)
                vars(members[name])["_checks_targets"] = False
                members[name].set_params(random_state=context.seed(name), time_limit=time_limit, **shared)
                members[name].fit(part.X, targets, part.weight, groups=part.groups, **context.of_member(name))
                if name == "at_value":  # the model also needs the regressor
                    raise_interrupt_of(members[name])
            share = float(np.average(at, weights=rows.weights))
            self.estimators_, self._pooling = members, hurdle
            self.weights_ = {"at_value": share, "elsewhere": 1 - share}
            self.plan_ = Decisions({"point_mass": choice(self.value, f"{share:.1%} of targets equal it")})
            self.n_features_in_, self.n_rows_, self.target_name_ = X.shape[1], len(rows), None
            report_members(self)
        return self

    def summary(self) -> str:
        """Return the summaries of classifier and regressor."""
        return "\n\n".join(f"{name}: {member.summary()}" for name, member in self.estimators_.items())


def unless_preferred(
    name: str, weights: PoolWeights, others: HeldOutPredictions, predictions: HeldOutPredictions,
    cluster: Int[np.ndarray, " R"],
) -> PoolWeights:  # fmt: skip
    """Return only the hurdle model if its CRPS of held-out rows is clearly lower."""
    rival, rows = predictions.distributions[predictions.names.index(name)], predictions.rows
    pool = others.mixed(weights)
    found = prefer_by_crps(pool, name, rival, rows, cluster, MIN_GAIN_OF_HURDLE)
    if not found.gains:  # a score is not finite
        return weights
    if found.name is None:
        return dataclasses.replace(weights, why=f"{weights.why}; {found.why}")
    return alone(name, f"{found.why}: {weights.why}")


def update_member(member: Any, held: Data) -> None:
    """Update a posterior with held-out rows, if time and memory allow it."""
    if isinstance(member, HurdleRegressor):
        for part in member.estimators_["elsewhere"].estimators_.values():
            update_member(part, held.take(held.y != member.value))
        return
    with silent(), contextlib.suppress(TimeIsUpError, MemoryLimitError):
        deadline.require()
        for kind, method in ((KernelGPRegressor, "update"), (FeatureGPRegressor, "partial_fit")):
            if isinstance(member, kind):
                getattr(member, method)(held.X, held.y, held.weight)
