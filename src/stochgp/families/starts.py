"""Initial kernels, noise and likelihoods from the settings of an estimator."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from stochgp import kernels
from stochgp.data import TableEncoder
from stochgp.data.training import TrainingData
from stochgp.families.default_learners import FULL_BATCH_ROWS
from stochgp.kernels import AbstractKernel, Constant, Product, Sum, Tanimoto
from stochgp.learners import SVGP, VGP, AbstractLearner
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
from stochgp.observations.error_distribution import GAUSSIAN, SCALED, STUDENT
from stochgp.parameters import Frozen, positive, value_of
from stochgp.tables.molecules import Inputs

AUTO = "auto"
KERNEL, FEATURE, SPARSE = "KernelGPRegressor", "FeatureGPRegressor", "SparseGPRegressor"
START_NOISE = 0.1  # ratio of the initial noise variance to the mean square of the targets
LEAST_NOISE = 1e-10  # the same ratio for the lower limit of the noise variance, in kernel GPs
START_DF, START_SHAPE = 4.0, 10.0  # initial df of the Student-t, and shape of the negative binomial
COUNT_VARIANCE = 1.0  # initial variance of kernels for the logarithm of a rate
LEAST_COUNT = 0.5  # replaces the sum of counts if all counts are 0
# Initial lengthscale of dates, in standard deviations, if the loss predicts rows one by one.
NEAR_IN_TIME = 0.05

KINDS: dict[str, type[AbstractLikelihood]] = {
    GAUSSIAN: Gaussian,
    STUDENT: StudentT,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
}


def resolve_likelihood(value: Any, family: str) -> str | AbstractLikelihood:
    """Return `likelihood` as a name or an object. Raises an error if the family lacks it."""
    names = (AUTO, *KINDS) if family == SPARSE else (AUTO, GAUSSIAN, STUDENT)
    if isinstance(value, str) and value == SCALED:  # chosen by an earlier fit
        return value
    if isinstance(value, str):
        if value in KINDS and value not in names:
            raise ValueError(f"only {SPARSE} accepts likelihood={value!r}; {family} accepts {quoted(names)}")
        value = lookup(value, {name: name for name in names}, "likelihood")
        if isinstance(value, str):
            return value
    is_general = isinstance(value, AbstractLikelihood) and not isinstance(
        value, Bernoulli | Softmax | Shifted
    )
    if isinstance(value, Gaussian | StudentT) or (is_general and family == SPARSE):
        if family != SPARSE and (df := fixed_df(value)) is not None and df <= 2:
            raise ValueError(
                f"df is {df:g}; it must be above 2, because otherwise observations have no standard deviation"
            )
        return value
    values = "an object" if family == SPARSE else "Gaussian(noise) or StudentT(df, noise)"
    others = f": only {SPARSE} accepts it" if is_general else ""
    if isinstance(value, Bernoulli | Softmax):
        others = ": for classes, use SparseGPClassifier"
    raise TypeError(
        f"likelihood must be a name ({quoted(names)}), {values} of stochgp.likelihoods, or Warped with such a likelihood, not {value!r}{others}"
    )


def name_of(likelihood: str | AbstractLikelihood) -> str:
    """Return the name of a resolved likelihood, or else of its class."""
    if isinstance(likelihood, str):
        return likelihood
    names = (name for name, kind in KINDS.items() if isinstance(likelihood, kind))
    return next(names, type(likelihood).__name__)


def is_of_counts(likelihood: str | AbstractLikelihood) -> bool:
    """Return True if a resolved likelihood is for counts."""
    kind = KINDS.get(likelihood, Gaussian) if isinstance(likelihood, str) else likelihood
    return kind.is_of_counts


def fixed_df(likelihood: Any) -> float | None:
    """Return the degrees of freedom if they are fixed, else None."""
    is_fixed = isinstance(likelihood, StudentT) and isinstance(likelihood.df, Frozen)
    return float(likelihood.df) if is_fixed else None


def start_noise(
    likelihood: str | AbstractLikelihood, family: str, spread: float, dtype: str
) -> AbstractNoise:
    """Return the noise of the likelihood, or constant noise with the variance `spread`/10."""
    own = getattr(likelihood, "noise", None)
    if own is None:
        lower = LEAST_NOISE if family == KERNEL else NOISE_FLOOR
        return constant_noise(START_NOISE * spread, lower=lower * spread, dtype=np.dtype(dtype))
    if not np.finfo(dtype).tiny <= float(own.level) <= np.finfo(dtype).max:
        raise ValueError(f"the noise variance is {float(own.level):g}, outside the range of {dtype}")
    return own


def started_sparse(
    estimator: Any, learner: AbstractLearner | None, data: TrainingData
) -> tuple[AbstractLikelihood, float]:
    """Return initial likelihood and kernel variance. Raises for an unsuitable likelihood."""
    found = resolve_likelihood(estimator._likelihood, SPARSE)
    if name_of(found) not in (AUTO, GAUSSIAN) and not isinstance(learner, SVGP | VGP):
        kind = KINDS[found] if isinstance(found, str) else type(found)
        raise ValueError(
            f"{type(learner).__name__} needs Gaussian noise, but the likelihood is {kind.__name__}; the learners 'svgp' and 'vgp' accept any likelihood"
        )
    counts = is_of_counts(found)
    spread = 1.0 if counts else data.spread
    if isinstance(found, str):
        noise = start_noise(found, SPARSE, spread, estimator.dtype)
        others: dict[str, AbstractLikelihood] = {STUDENT: StudentT(START_DF, noise), "poisson": Poisson()}
        others["negative-binomial"] = NegativeBinomial(START_SHAPE)
        found = others.get(found, Gaussian(noise))
    return (Shifted(found, _prior_log_rate(data, estimator)), COUNT_VARIANCE) if counts else (found, spread)


def _prior_log_rate(data: TrainingData, estimator: Any) -> float:
    """Return log `mean`; for None, the log average count or 0. Raises if `mean` ≤ 0."""
    mean, weights = estimator.mean, data.rows.weights
    if mean is None:
        total = max(float(np.sum(weights * data.rows.y)), LEAST_COUNT)
        mean = total / float(weights.sum()) if estimator.standardize else 1.0
    if not mean > 0:
        raise ValueError(f"the prior mean of counts must be positive, but is {mean!r}")
    return math.log(mean)


def near_in_time(kernel: Any, encoder: Any, n_rows: int, group: Any) -> Any:
    """Return the kernel; with many rows and no groups, lengthscales of dates become short."""
    is_scored_by_row = group is None and n_rows > FULL_BATCH_ROWS
    if not is_scored_by_row or not isinstance(encoder, TableEncoder):
        return kernel
    dates = {f"{rule.name}.days" for rule in encoder.columns if rule.kind == "time"}
    days = [j for j, name in enumerate(encoder.output_names) if name in dates]
    if not (days and isinstance(kernel, kernels.AbstractStationary) and kernel.active_dims is None):
        return kernel
    lengthscale = np.array(value_of(kernel.lengthscale))
    if lengthscale.ndim == 0:
        return kernel
    lengthscale[days] = NEAR_IN_TIME
    return dataclasses.replace(kernel, lengthscale=positive(lengthscale, dtype=lengthscale.dtype))


def inputs_of(kernel: Any) -> Inputs:
    """Return FINGERPRINTS for a kernel of Tanimoto kernels that use all columns."""
    if isinstance(kernel, str):
        return Inputs.FINGERPRINTS if kernel == "tanimoto" else Inputs.NUMBERS
    if not _has_tanimoto(kernel):
        return Inputs.NUMBERS
    return Inputs.FINGERPRINTS if _sees_sets_alone(kernel) else Inputs.AS_GIVEN


def with_packing(kernel: AbstractKernel, packed: bool) -> AbstractKernel:
    """Return the kernel with Tanimoto kernels for packed or unpacked rows."""
    if not _has_tanimoto(kernel):
        return kernel

    def convert(node: Any) -> Any:
        return Tanimoto(node.variance, packed, node.active_dims) if _is_tanimoto(node) else node

    return jax.tree.map(convert, kernel, is_leaf=_is_tanimoto)


def _is_tanimoto(node: Any) -> bool:
    return isinstance(node, Tanimoto)


def _has_tanimoto(kernel: Any) -> bool:
    return any(map(_is_tanimoto, jax.tree.leaves(kernel, is_leaf=_is_tanimoto)))


def _sees_sets_alone(kernel: Any) -> bool:
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return _sees_sets_alone(kernel.left) and _sees_sets_alone(kernel.right)
    return isinstance(kernel, Constant) or (_is_tanimoto(kernel) and kernel.active_dims is None)
