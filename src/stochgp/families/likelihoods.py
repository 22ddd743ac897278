"""The setting `likelihood=` of each family: valid values, starts, and counts."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stochgp.data.training import TrainingData
from stochgp.learners import SVGP, AbstractLearner
from stochgp.likelihoods import (
    AbstractLikelihood,
    AbstractNoise,
    Bernoulli,
    Gaussian,
    NegativeBinomial,
    Poisson,
    Shifted,
    Softmax,
    StudentT,
    constant_noise,
)
from stochgp.likelihoods.noise import NOISE_FLOOR
from stochgp.names import lookup, quoted
from stochgp.observations.error_distribution import GAUSSIAN, STUDENT
from stochgp.parameters import Frozen, frozen

AUTO = "auto"
KERNEL, FEATURE, SPARSE = "KernelGPRegressor", "FeatureGPRegressor", "SparseGPRegressor"
START_NOISE = 0.1  # of the targets' mean square
# Lower bound, times the same: a kernel GP can interpolate, and few rows are solved in float64.
LEAST_NOISE = {KERNEL: 1e-10, FEATURE: NOISE_FLOOR, SPARSE: NOISE_FLOOR}
START_DF, START_SHAPE = 4.0, 10.0  # Student-t; negative binomial
COUNT_VARIANCE = 1.0  # starting variance of kernels for the logarithm of a rate
LEAST_COUNT = 0.5  # lower bound of the sum of counts
LEAST_DF = 2.2  # below it the bound of ν determines standard deviations
AT_BOUND = "; at its bound: standard deviations are governed by it, quantiles are not"


# Likelihoods of classes, and wrappers that regressors add themselves.
NOT_SPARSE = (Bernoulli, Softmax, Shifted)
KINDS: dict[str, type[AbstractLikelihood]] = {
    GAUSSIAN: Gaussian,
    STUDENT: StudentT,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
}
NAMES = {KERNEL: (AUTO, GAUSSIAN, STUDENT), FEATURE: (AUTO, GAUSSIAN, STUDENT), SPARSE: (AUTO, *KINDS)}
STARTS: dict[str, Callable[[AbstractNoise], AbstractLikelihood]] = {  # from constant noise
    AUTO: Gaussian,
    GAUSSIAN: Gaussian,
    STUDENT: lambda noise: StudentT(START_DF, noise),
    "poisson": lambda _: Poisson(),
    "negative-binomial": lambda _: NegativeBinomial(START_SHAPE),
}


class Asked(NamedTuple):
    """The parsed setting `likelihood=`."""

    name: str  # "auto", one of KINDS, or the name of another class
    value: AbstractLikelihood | None = None  # given by the user, and learned from there
    df: float | None = None  # degrees of freedom that are not learned
    again: bool = False  # True if an earlier fit chose the name

    @classmethod
    def of(cls, value: Any, family: str) -> "Asked":
        """Parse the setting. Raises ValueError or TypeError, naming the family that accepts it."""
        if isinstance(value, str):
            if value in KINDS and value not in NAMES[family]:
                raise ValueError(f"likelihood {value!r} is of {SPARSE}; {family} has {quoted(NAMES[family])}")
            value = lookup(value, {name: name for name in NAMES[family]}, "likelihood")
            if isinstance(value, str):
                return cls(value)
        is_known = isinstance(value, Gaussian | StudentT)
        is_general = isinstance(value, AbstractLikelihood) and not isinstance(value, NOT_SPARSE)
        if is_known or (is_general and family == SPARSE):
            df = float(value.df) if isinstance(value, StudentT) and isinstance(value.df, Frozen) else None
            if df is not None and df <= 2 and family != SPARSE:
                raise ValueError(f"df is {df:g}; observations have a standard deviation only above 2")
            names = (name for name, kind in KINDS.items() if isinstance(value, kind))
            return cls(next(names, type(value).__name__), value, df)
        values = "" if family == SPARSE else "Gaussian(noise) or StudentT(df, noise) as "
        others = f": {SPARSE} takes it" if is_general else ""
        if isinstance(value, Bernoulli | Softmax):
            others = ": classes are for SparseGPClassifier"
        raise TypeError(
            f"likelihood must be one of {quoted(NAMES[family])}, {values}a value of stochgp.likelihoods, or a Warped of one, "
            f"not {value!r}{others}"
        )

    def as_chosen(self, name: str | None) -> "Asked":
        """Return the setting with the name that an earlier fit chose; None = unchanged."""
        return self if name is None else self._replace(name=name, again=True)

    @property
    def noise(self) -> AbstractNoise | None:
        """The noise of the given likelihood."""
        return getattr(self.value, "noise", None)

    @property
    def kind(self) -> type[AbstractLikelihood]:
        """The class; for "auto" the class at the start."""
        return KINDS.get(self.name, Gaussian) if self.value is None else type(self.value)


def start_noise(
    asked: Asked, family: str, spread: float, dtype: str, given: float | None = None
) -> AbstractNoise:
    """Return the likelihood's noise, a given fixed variance, or a tenth of `spread`, learned.

    `spread` is the targets' mean square. Raises ValueError for a variance that the dtype cannot hold, and if both are given.
    """
    if asked.noise is not None:
        if given is not None:
            raise ValueError(
                "noise_variance and the noise of likelihood are both given: leave one of them out"
            )
        return asked.noise
    if given is None:
        return constant_noise(START_NOISE * spread, lower=LEAST_NOISE[family] * spread, dtype=np.dtype(dtype))
    kind = np.finfo(dtype)
    if float(kind.tiny) <= given <= float(kind.max):
        return constant_noise(frozen(np.asarray(given, dtype)))
    raise ValueError(f"noise_variance is {given!r}, which {dtype} cannot hold")


def started_sparse(
    estimator: Any, learner: AbstractLearner | None, data: TrainingData
) -> tuple[AbstractLikelihood, float]:
    """Return a sparse regressor's starting likelihood, and the starting variance of kernels.

    Raises ValueError if a learner other than SVGP has a likelihood that does not start with Gaussian noise.
    """
    asked = Asked.of(estimator._likelihood, SPARSE)
    if asked.name not in (AUTO, GAUSSIAN) and not isinstance(learner, SVGP):
        raise ValueError(
            f"{type(learner).__name__} takes Gaussian noise, but the likelihood is {asked.kind.__name__}: approximation='svgp' takes any"
        )
    is_of_counts, likelihood = asked.kind.is_of_counts, asked.value
    spread = 1.0 if is_of_counts else data.spread
    if likelihood is None:
        likelihood = STARTS[asked.name](start_noise(asked, SPARSE, spread, estimator.dtype))
    if is_of_counts:
        return Shifted(likelihood, _prior_log_rate(data, estimator)), COUNT_VARIANCE
    return likelihood, spread


def _prior_log_rate(data: TrainingData, estimator: Any) -> float:
    """Return log `mean`, the log average count, or 0. Raises ValueError for a mean ≤ 0."""
    mean = estimator.mean
    if mean is None and not estimator.standardize:
        return 0.0
    if mean is None:
        mean = max(float(np.sum(data.rows.weights * data.rows.y)), LEAST_COUNT) / float(
            data.rows.weights.sum()
        )
    if not mean > 0:
        raise ValueError(f"mean is {mean!r}; that of counts must be positive")
    return math.log(mean)
