"""Targets that have one value again and again, and are continuous elsewhere: how often, by a classifier, and what else, by a pool."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from stochgp.budget import Budget
from stochgp.data.rows import Rows
from stochgp.distributions import PointMass
from stochgp.distributions.point_mass import recorded_width
from stochgp.estimators.function_draws import AbstractDraws
from stochgp.pools.class_pool import ClassPool
from stochgp.pools.pool import Pool
from stochgp.pools.pooling import AbstractPooling
from stochgp.posteriors.base import Request
from stochgp.training_data.cautions import Seen
from stochgp.training_data.inputs import Encoder

# A value is tried that a tenth of the targets have, five times as many as have any other: of counts the neighbours of a frequent one are frequent too. Of calls on
# a doctor, 31 % of which are 0 and 19 % 1, a point mass had a CRPS of .369 for .349.
SHARE, TIMES, FEWEST_OTHERS = 0.1, 5.0, 20


def frequent(rows: Rows) -> float | None:
    """The value to be tried, if there is one: see `SHARE`."""
    values, number = np.unique(rows.y, return_inverse=True)
    if len(values) <= FEWEST_OTHERS:
        return None
    share = np.bincount(number.ravel(), rows.weights) / rows.weights.sum()
    second, first = np.argsort(share)[-2:]
    return float(values[first]) if share[first] >= max(SHARE, TIMES * share[second]) else None


@dataclass(frozen=True, eq=False)
class Hurdle:
    """y is `value` with probability π(x), by a classifier, and else a draw of what another member predicts; a density is of targets recorded to `width`."""

    value: float
    width: float

    @classmethod
    def of(cls, value: float, y: Float[np.ndarray, " N"]) -> "Hurdle":
        """Of a value of these targets, by what they are recorded to."""
        return cls(float(value), recorded_width(np.unique(y), float(np.std(y))))

    def has(self, y: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Which targets are the value."""
        return y == np.asarray(self.value, y.dtype)

    def elsewhere(self, rows: Rows) -> Rows:
        """Those of other targets."""
        return rows.some(~self.has(rows.y))

    def pool(self, classifier: ClassPool, elsewhere: Any) -> Pool:
        """Of the two, as one."""
        return Pool((AtValue(self, classifier), elsewhere), ByClass(classifier))


@dataclass(frozen=True, eq=False)
class ByClass(AbstractPooling):
    """w(x) = (P(second class), P(first class))."""

    classifier: ClassPool

    @property
    def by_row(self) -> bool:
        return True

    def weights(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N 2"]:
        return self.classifier.distribution(X).probabilities[:, ::-1]


@dataclass(frozen=True, eq=False)
class AtValue:
    """What `Fitted` is, of a target that is always the same."""

    hurdle: Hurdle
    classifier: ClassPool

    @property
    def encoder(self) -> Encoder | None:
        return self.classifier.encoder

    @property
    def seen(self) -> Seen | None:
        return self.classifier.seen

    def need_bytes(self, request: Request) -> int:
        """Of the probabilities of each row."""
        return self.classifier.need_bytes(Request(request.n_rows))

    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        return np.full(len(X), self.hurdle.value)

    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        return self.mean(X), np.zeros(len(X))

    def distribution(self, X: Float[np.ndarray, "N D"]) -> PointMass:
        return PointMass(self.mean(X), np.full(len(X), self.hurdle.width))

    def covariance(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool, free: int
    ) -> Float[np.ndarray, "N N"]:
        return np.zeros((len(X), len(X)))

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray, budget: Budget) -> "ConstantDraws":
        return ConstantDraws(self.hurdle.value, n_samples, self.encoder)

    def observed(
        self, functions: "ConstantDraws", X: Float[np.ndarray, "N D"], *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "N S"]:
        return functions.at_numbers(X)


class ConstantDraws(AbstractDraws):
    """S functions that are the same constant."""

    value: float = eqx.field(static=True)
    size: int = eqx.field(static=True)
    encoder: Encoder | None = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return self.size

    def __call__(self, X: Any) -> Any:
        return self.at_numbers(X)

    def at_numbers(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        return np.full((len(X), self.size), self.value)
