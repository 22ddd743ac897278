"""`likelihood=`: what each family takes and where that starts, counts as they are, and what `plan_` says of degrees of freedom."""

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
# Its bound from below, of the same: a kernel GP can interpolate, and is solved in float64 where rows are few.
LEAST_NOISE = {KERNEL: 1e-10, FEATURE: NOISE_FLOOR, SPARSE: NOISE_FLOOR}
START_DF, START_SHAPE = 4.0, 10.0  # of a Student-t; of a negative binomial
COUNT_VARIANCE = 1.0  # that kernels of the logarithm of a rate start from
LEAST_COUNT = 0.5  # the sum of counts is taken to be at least this
LEAST_DF = 2.2  # below it the bound of ν governs standard deviations
AT_BOUND = "; at its bound: standard deviations are governed by it, quantiles are not"


# Of classes, and what a regressor takes apart, or puts around others.
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
    """`likelihood=` taken apart."""

    name: str  # "auto", one of KINDS, or that of the class of another value
    value: AbstractLikelihood | None = None  # that was given, and is learned from there on
    df: float | None = None  # degrees of freedom that are not to be learned
    again: bool = False  # whether the name is what an earlier fit chose

    @classmethod
    def of(cls, value: Any, family: str) -> "Asked":
        """Raises ValueError for a name or a Student-t, and TypeError for a value, that the family does not take; the line says which family does."""
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
        """With the name that an earlier fit chose, as its `plan_` has it; None: the same."""
        return self if name is None else self._replace(name=name, again=True)

    @property
    def noise(self) -> AbstractNoise | None:
        """Of the value given."""
        return getattr(self.value, "noise", None)

    @property
    def kind(self) -> type[AbstractLikelihood]:
        """The class; of "auto" that where it starts."""
        return KINDS.get(self.name, Gaussian) if self.value is None else type(self.value)


def start_noise(
    asked: Asked, family: str, spread: float, dtype: str, given: float | None = None
) -> AbstractNoise:
    """The noise of a likelihood; or the variance given, which nothing trains; or a tenth of the targets' mean square `spread`, to be learned.

    Raises ValueError for a variance that the dtype cannot hold, and where both are given.
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
    """A sparse regressor's likelihood of standardised targets at its start, or the one given; and the variance that kernels start from.

    Raises ValueError for a likelihood that does not begin with Gaussian noise with a learner other than SVGP.
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
    """The logarithm of `mean`, or of the average count; 0 with `standardize=False`. Raises ValueError for a mean that is not positive."""
    mean = estimator.mean
    if mean is None and not estimator.standardize:
        return 0.0
    if mean is None:
        mean = max(float(np.sum(data.weight * data.rows.y)), LEAST_COUNT) / float(data.weight.sum())
    if not mean > 0:
        raise ValueError(f"mean is {mean!r}; that of counts must be positive")
    return math.log(mean)
