"""The likelihoods of a sparse regressor: their names, where they start, which learner takes them, and counts as they are."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from stochgp.data import Standardiser
from stochgp.data.rows import Rows
from stochgp.data.targets import refuse_no_counts
from stochgp.estimators.units import TrainingData
from stochgp.learners import SVGP, AbstractLearner
from stochgp.likelihoods import (
    AbstractLikelihood,
    Gaussian,
    LatentNoiseGaussian,
    NegativeBinomial,
    Poisson,
    Shifted,
    StudentT,
    constant_noise,
)
from stochgp.likelihoods.noise import NOISE_FLOOR
from stochgp.names import lookup
from stochgp.parameters import positive

START_NOISE = 0.1  # of the targets' mean square
START_DF = 4.0
START_SHAPE = 10.0  # of a negative binomial
COUNT_VARIANCE = 1.0  # that kernels of the logarithm of a rate start from
LEAST_COUNT = 0.5  # the sum of counts is taken to be at least this
REAL = {"gaussian": Gaussian, "student-t": StudentT, "row-noise": LatentNoiseGaussian}
COUNTS = {"poisson": Poisson, "negative-binomial": NegativeBinomial}
NAMED = REAL | COUNTS


def kind_of(likelihood: Any) -> type[AbstractLikelihood]:
    """The class of the likelihood that a name or a value asks for. Raises ValueError or TypeError for any other than those of NAMED."""
    if isinstance(likelihood, str):
        return lookup(likelihood, NAMED, "likelihood")
    for kind in NAMED.values():
        if isinstance(likelihood, kind):
            return kind
    names, kinds = ", ".join(map(repr, NAMED)), ", ".join(kind.__name__ for kind in NAMED.values())
    raise TypeError(
        f"likelihood must be one of {names}, a {kinds} of stochgp.likelihoods, or a Warped of one, not {likelihood!r}; "
        "classes are for SparseGPClassifier"
    )


def is_of_counts(likelihood: Any) -> bool:
    """Whether its targets are counts as they are."""
    return kind_of(likelihood) in COUNTS.values()


def refuse_learner(likelihood: Any, learner: AbstractLearner | None) -> None:
    """Raises ValueError for a likelihood that is not Gaussian with a learner other than SVGP."""
    kind = kind_of(likelihood)
    if kind is not Gaussian and not isinstance(learner, SVGP):
        raise ValueError(
            f"{type(learner).__name__} takes Gaussian noise, but the likelihood is {kind.__name__}: approximation='svgp' takes any"
        )


def data_of_counts(rows: Rows, standardize: bool, dtype: str) -> TrainingData:
    """Counts are not standardised, inputs are. Raises ValueError for targets that are no counts."""
    refuse_no_counts(rows.y)
    unchanged = Standardiser.identity((rows.X.shape[1],))
    inputs = Standardiser.fit(rows.X, rows.weight) if standardize else unchanged
    return TrainingData(rows, inputs, Standardiser.identity(()), dtype, False)


def started(likelihood: Any, data: TrainingData, estimator: Any) -> tuple[AbstractLikelihood, float]:
    """(The likelihood of standardised targets at its start, or the one given; the variance that kernels start from)."""
    if is_of_counts(likelihood):
        shift = _prior_log_rate(data, estimator)
        return Shifted(_of_name(likelihood, 1.0, estimator.dtype), shift), COUNT_VARIANCE
    return _of_name(likelihood, data.spread, estimator.dtype), data.spread


def _of_name(likelihood: Any, spread: float, dtype: str) -> AbstractLikelihood:
    if isinstance(likelihood, AbstractLikelihood):
        return likelihood
    kind, wide = NAMED[likelihood], jnp.dtype(dtype)
    if kind is Poisson:
        return Poisson()
    if kind is NegativeBinomial:
        return NegativeBinomial(START_SHAPE)
    start, least = START_NOISE * spread, NOISE_FLOOR * spread
    if kind is LatentNoiseGaussian:
        return LatentNoiseGaussian(positive(start, lower=least, dtype=wide))
    noise = constant_noise(start, least, wide)
    return Gaussian(noise) if kind is Gaussian else StudentT(START_DF, noise)


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
