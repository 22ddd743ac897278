"""`likelihood=`: what each family takes and where that starts, counts as they are, and what `plan_` says of degrees of freedom."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stochgp.choosing import choice
from stochgp.data import Standardiser
from stochgp.data.rows import Rows
from stochgp.data.targets import refuse_no_counts
from stochgp.estimators.units import TrainingData
from stochgp.learners import SVGP, AbstractLearner
from stochgp.learners.dispersion import GAUSSIAN, STUDENT
from stochgp.likelihoods import (
    AbstractLikelihood,
    AbstractNoise,
    Gaussian,
    LatentNoiseGaussian,
    NegativeBinomial,
    Poisson,
    Shifted,
    StudentT,
    constant_noise,
)
from stochgp.likelihoods.noise import NOISE_FLOOR
from stochgp.names import lookup, quoted
from stochgp.parameters import Frozen

AUTO, ROW_NOISE = "auto", "row-noise"
BOTH = f"{ROW_NOISE}-{STUDENT}"
KERNEL, FEATURE, SPARSE = FAMILIES = "KernelGPRegressor", "FeatureGPRegressor", "SparseGPRegressor"
START_NOISE = 0.1  # of the targets' mean square
LEAST_NOISE = {
    KERNEL: 1e-10,
    FEATURE: NOISE_FLOOR,
    SPARSE: NOISE_FLOOR,
}  # the same; a kernel GP can interpolate
START_DF, START_SHAPE = 4.0, 10.0  # of a Student-t; of a negative binomial
COUNT_VARIANCE = 1.0  # that kernels of the logarithm of a rate start from
LEAST_COUNT = 0.5  # the sum of counts is taken to be at least this
LEAST_DF = 2.2  # below it the bound of ν governs standard deviations
AT_BOUND = "; at its bound: standard deviations are governed by it, quantiles are not"


class Named(NamedTuple):
    """What a name stands for: a class, the families that take the name and those that take a value of the class, and where it starts."""

    kind: type[AbstractLikelihood] | None
    by_name: tuple[str, ...]
    by_value: tuple[str, ...] = ()
    start: Callable[[AbstractNoise], AbstractLikelihood] | None = None  # from constant noise


LIKELIHOODS = {
    AUTO: Named(None, (KERNEL, FEATURE)),
    GAUSSIAN: Named(Gaussian, FAMILIES, FAMILIES, Gaussian),
    STUDENT: Named(StudentT, FAMILIES, FAMILIES, lambda noise: StudentT(START_DF, noise)),
    ROW_NOISE: Named(
        LatentNoiseGaussian, (FEATURE, SPARSE), (SPARSE,), lambda noise: LatentNoiseGaussian(noise.level)
    ),
    BOTH: Named(None, (FEATURE,)),
    "poisson": Named(Poisson, (SPARSE,), (SPARSE,), lambda _: Poisson()),
    "negative-binomial": Named(
        NegativeBinomial, (SPARSE,), (SPARSE,), lambda _: NegativeBinomial(START_SHAPE)
    ),
}


class Asked(NamedTuple):
    """`likelihood=` taken apart."""

    name: str  # one of LIKELIHOODS
    value: AbstractLikelihood | None = None  # that was given, and is learned from there on
    df: float | None = None  # degrees of freedom that are not to be learned
    hashed: bool = False  # whether inputs are fingerprints, which no network takes
    transformed: bool = False  # whether targets are T(y), whose mean heavy tails may not have

    @classmethod
    def of(cls, value: Any, family: str) -> "Asked":
        """Raises ValueError for a name and TypeError for a value that the family does not take; the line says which family does."""
        if isinstance(value, str):
            return cls(_known_name(value, family))
        for name, named in LIKELIHOODS.items():
            if named.kind is not None and isinstance(value, named.kind) and family in named.by_value:
                return cls(name, value, None if family == SPARSE else known_df(value))
        kinds = [one.kind.__name__ for one in LIKELIHOODS.values() if one.kind and family in one.by_value]
        raise TypeError(
            f"likelihood must be one of {quoted(_names(family))}, a value of {', '.join(kinds)} of stochgp.likelihoods, or a Warped of these, "
            f"not {value!r}{_others(value, family)}"
        )

    @property
    def noise(self) -> AbstractNoise | None:
        """Of the value given."""
        return getattr(self.value, "noise", None)

    @property
    def is_of_counts(self) -> bool:
        """Whether its targets are counts as they are."""
        return LIKELIHOODS[self.name].kind in (Poisson, NegativeBinomial)


def _names(family: str) -> list[str]:
    return [name for name, named in LIKELIHOODS.items() if family in named.by_name]


def _known_name(name: str, family: str) -> str:
    families = LIKELIHOODS[name].by_name if name in LIKELIHOODS else (family,)
    if family not in families:
        raise ValueError(
            f"likelihood {name!r} is of {' and '.join(families)}; {family} has {quoted(_names(family))}"
        )
    lookup(name, dict.fromkeys(_names(family)), "likelihood")
    return name


def _others(value: Any, family: str) -> str:
    """Which family takes a likelihood that this one does not."""
    if not isinstance(value, AbstractLikelihood):
        return ""
    for named in LIKELIHOODS.values():
        if named.kind is not None and isinstance(value, named.kind):
            return f"; {' and '.join(named.by_value)} takes it"
    return "; classes are for SparseGPClassifier"


def starting_noise(family: str, spread: float, dtype: str) -> AbstractNoise:
    """START_NOISE of the targets' mean square `spread`, to be learned."""
    return constant_noise(START_NOISE * spread, lower=LEAST_NOISE[family] * spread, dtype=np.dtype(dtype))


def refuse_learner(asked: Asked, learner: AbstractLearner | None) -> None:
    """Raises ValueError for a likelihood that is not Gaussian with a learner other than SVGP."""
    if asked.name != GAUSSIAN and not isinstance(learner, SVGP):
        kind: Any = LIKELIHOODS[asked.name].kind
        raise ValueError(
            f"{type(learner).__name__} takes Gaussian noise, but the likelihood is {kind.__name__}: approximation='svgp' takes any"
        )


def started(asked: Asked, data: TrainingData, estimator: Any) -> tuple[AbstractLikelihood, float]:
    """(A sparse regressor's likelihood of standardised targets at its start, or the one given; the variance that kernels start from)."""
    spread = 1.0 if asked.is_of_counts else data.spread
    likelihood, start = asked.value, LIKELIHOODS[asked.name].start
    if likelihood is None:
        assert start is not None
        likelihood = start(starting_noise(SPARSE, spread, estimator.dtype))
    if asked.is_of_counts:
        return Shifted(likelihood, _prior_log_rate(data, estimator)), COUNT_VARIANCE
    return likelihood, spread


def data_of_counts(rows: Rows, standardize: bool, dtype: str) -> TrainingData:
    """Counts are not standardised, inputs are. Raises ValueError for targets that are no counts."""
    refuse_no_counts(rows.y)
    unchanged = Standardiser.identity((rows.X.shape[1],))
    inputs = Standardiser.fit(rows.X, rows.weight) if standardize else unchanged
    return TrainingData(rows, inputs, Standardiser.identity(()), dtype, False)


def known_df(likelihood: Any) -> float | None:
    """The degrees of freedom that are not to be learned. Raises ValueError for those without a standard deviation."""
    if not isinstance(likelihood, StudentT) or not isinstance(likelihood.df, Frozen):
        return None
    df = float(likelihood.df)
    if df <= 2:
        raise ValueError(f"df is {df:g}; observations have a standard deviation only above 2")
    return df


def df_told(df: float, how: str) -> dict[str, Any]:
    """What `plan_` says of them."""
    bound = AT_BOUND if df < LEAST_DF else ""
    return {"df": choice(df, f"degrees of freedom of the Student-t, {how}{bound}")}


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
