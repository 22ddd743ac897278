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
    LatentNoiseGaussian,
    NegativeBinomial,
    Poisson,
    Shifted,
    Softmax,
    StudentT,
    Warped,
    constant_noise,
)
from stochgp.likelihoods.noise import NOISE_FLOOR
from stochgp.names import lookup, quoted
from stochgp.observations.error_distribution import GAUSSIAN, STUDENT
from stochgp.parameters import Frozen, frozen

AUTO, ROW_NOISE = "auto", "row-noise"
KERNEL, FEATURE, SPARSE = FAMILIES = "KernelGPRegressor", "FeatureGPRegressor", "SparseGPRegressor"
START_NOISE = 0.1  # of the targets' mean square
# Its bound from below, of the same: a kernel GP can interpolate, and is solved in float64 where rows are few.
LEAST_NOISE = {KERNEL: 1e-10, FEATURE: NOISE_FLOOR, SPARSE: NOISE_FLOOR}
START_DF, START_SHAPE = 4.0, 10.0  # of a Student-t; of a negative binomial
COUNT_VARIANCE = 1.0  # that kernels of the logarithm of a rate start from
LEAST_COUNT = 0.5  # the sum of counts is taken to be at least this
LEAST_DF = 2.2  # below it the bound of ν governs standard deviations
AT_BOUND = "; at its bound: standard deviations are governed by it, quantiles are not"


# Of classes, and what a regressor takes apart, or puts around others.
NOT_SPARSE = (Bernoulli, Softmax, Shifted, Warped)


class Named(NamedTuple):
    """What a name stands for: a class, the families that take the name, and where it starts."""

    kind: type[AbstractLikelihood] | None
    families: tuple[str, ...]
    start: Callable[[AbstractNoise], AbstractLikelihood] | None = None  # from constant noise


LIKELIHOODS = {
    AUTO: Named(None, FAMILIES, Gaussian),
    GAUSSIAN: Named(Gaussian, FAMILIES, Gaussian),
    STUDENT: Named(StudentT, FAMILIES, lambda noise: StudentT(START_DF, noise)),
    ROW_NOISE: Named(LatentNoiseGaussian, (SPARSE,), lambda noise: LatentNoiseGaussian(noise.level)),
    "poisson": Named(Poisson, (SPARSE,), lambda _: Poisson()),
    "negative-binomial": Named(NegativeBinomial, (SPARSE,), lambda _: NegativeBinomial(START_SHAPE)),
}


class Asked(NamedTuple):
    """`likelihood=` taken apart."""

    name: str  # one of LIKELIHOODS, or that of the class of another value
    value: AbstractLikelihood | None = None  # that was given, and is learned from there on
    df: float | None = None  # degrees of freedom that are not to be learned
    again: bool = False  # whether the name is what an earlier fit chose

    @classmethod
    def of(cls, value: Any, family: str) -> "Asked":
        """Raises ValueError for a name and TypeError for a value that the family does not take; the line says which family does."""
        value = _named(value, family) if isinstance(value, str) else value
        if isinstance(value, str):
            return cls(value)
        if family == SPARSE and isinstance(value, AbstractLikelihood) and not isinstance(value, NOT_SPARSE):
            return cls(_name_of(value), value)
        if isinstance(value, Gaussian | StudentT):
            return cls(_name_of(value), value, known_df(value))
        values = "" if family == SPARSE else "Gaussian(noise) or StudentT(df, noise) as "
        raise TypeError(
            f"likelihood must be one of {quoted(_names(family))}, {values}a value of stochgp.likelihoods, or a Warped of one, "
            f"not {value!r}{_others(value)}"
        )

    def as_chosen(self, name: str | None) -> "Asked":
        """With the name that an earlier fit chose, as its `plan_` has it; None: the same."""
        return self if name is None else self._replace(name=name, again=True)

    @property
    def noise(self) -> AbstractNoise | None:
        """Of the value given."""
        return getattr(self.value, "noise", None)

    @property
    def is_of_counts(self) -> bool:
        """Whether its targets are counts as they are."""
        kind = LIKELIHOODS[self.name].kind if self.value is None else type(self.value)
        return kind is not None and kind.is_of_counts


def _names(family: str) -> list[str]:
    return [name for name, named in LIKELIHOODS.items() if family in named.families]


def _named(name: str, family: str) -> Any:
    """The name, or the value that a user has registered under it."""
    families = LIKELIHOODS[name].families if name in LIKELIHOODS else (family,)
    if family not in families:
        raise ValueError(
            f"likelihood {name!r} is of {' and '.join(families)}; {family} has {quoted(_names(family))}"
        )
    return lookup(name, {known: known for known in _names(family)}, "likelihood")


def _name_of(value: AbstractLikelihood) -> str:
    """In LIKELIHOODS; of another likelihood that of its class."""
    names = (name for name, named in LIKELIHOODS.items() if named.kind and isinstance(value, named.kind))
    return next(names, type(value).__name__)


def _others(value: Any) -> str:
    """Which family takes a likelihood that the one asked does not."""
    if isinstance(value, Bernoulli | Softmax):
        return ": classes are for SparseGPClassifier"
    is_taken = isinstance(value, AbstractLikelihood) and not isinstance(value, NOT_SPARSE)
    return f": {SPARSE} takes it" if is_taken else ""


def starting_noise(family: str, spread: float, dtype: str) -> AbstractNoise:
    """START_NOISE of the targets' mean square `spread`, to be learned."""
    return constant_noise(START_NOISE * spread, lower=LEAST_NOISE[family] * spread, dtype=np.dtype(dtype))


def start_noise(asked: Asked, given: float | None, spread: float, dtype: str) -> AbstractNoise:
    """The noise of a likelihood; or the variance given, which nothing trains; or `starting_noise`.

    Raises ValueError for a variance that the dtype cannot hold, and where both are given.
    """
    if asked.noise is not None:
        if given is not None:
            raise ValueError(
                "noise_variance and the noise of likelihood are both given: leave one of them out"
            )
        return asked.noise
    if given is None:
        return starting_noise(KERNEL, spread, dtype)
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
        kind: Any = LIKELIHOODS[asked.name].kind if asked.value is None else type(asked.value)
        raise ValueError(
            f"{type(learner).__name__} takes Gaussian noise, but the likelihood is {kind.__name__}: approximation='svgp' takes any"
        )
    spread, likelihood = 1.0 if asked.is_of_counts else data.spread, asked.value
    if likelihood is None:
        start: Any = LIKELIHOODS[asked.name].start
        likelihood = start(starting_noise(SPARSE, spread, estimator.dtype))
    if asked.is_of_counts:
        return Shifted(likelihood, _prior_log_rate(data, estimator)), COUNT_VARIANCE
    return likelihood, spread


def known_df(likelihood: Any) -> float | None:
    """The degrees of freedom that are not to be learned. Raises ValueError for those without a standard deviation."""
    if not isinstance(likelihood, StudentT) or not isinstance(likelihood.df, Frozen):
        return None
    df = float(likelihood.df)
    if df <= 2:
        raise ValueError(f"df is {df:g}; observations have a standard deviation only above 2")
    return df


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
