"""Starting kernels, noise and likelihoods of the families, from their settings."""

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
START_NOISE = 0.1  # of the targets' mean square
LEAST_NOISE = 1e-10  # of the same, of kernel GPs: they can interpolate, and few rows are solved in float64
START_DF, START_SHAPE = 4.0, 10.0  # Student-t; negative binomial
COUNT_VARIANCE = 1.0  # starting variance of kernels for the logarithm of a rate
LEAST_COUNT = 0.5  # lower bound of the sum of counts
# Lengthscale of dates, in their standard deviations, if rows are scored one by one: from √D, rows an hour apart are never found to be alike.
NEAR_IN_TIME = 0.05

KINDS: dict[str, type[AbstractLikelihood]] = {
    GAUSSIAN: Gaussian,
    STUDENT: StudentT,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
}


def resolve_likelihood(value: Any, family: str) -> str | AbstractLikelihood:
    """Return the setting `likelihood=` as a name or a likelihood.

    Raises ValueError or TypeError, naming the family that accepts it.
    """
    names = (AUTO, *KINDS) if family == SPARSE else (AUTO, GAUSSIAN, STUDENT)
    if isinstance(value, str) and value == SCALED:  # an earlier fit chose it
        return value
    if isinstance(value, str):
        if value in KINDS and value not in names:
            raise ValueError(f"likelihood {value!r} is of {SPARSE}; {family} has {quoted(names)}")
        value = lookup(value, {name: name for name in names}, "likelihood")
        if isinstance(value, str):
            return value
    is_general = isinstance(value, AbstractLikelihood) and not isinstance(
        value, Bernoulli | Softmax | Shifted
    )
    if isinstance(value, Gaussian | StudentT) or (is_general and family == SPARSE):
        if family != SPARSE and (df := fixed_df(value)) is not None and df <= 2:
            raise ValueError(f"df is {df:g}; observations have a standard deviation only above 2")
        return value
    values = "" if family == SPARSE else "Gaussian(noise) or StudentT(df, noise) as "
    others = f": {SPARSE} takes it" if is_general else ""
    if isinstance(value, Bernoulli | Softmax):
        others = ": classes are for SparseGPClassifier"
    raise TypeError(
        f"likelihood must be one of {quoted(names)}, {values}a value of stochgp.likelihoods, or a Warped of one, not {value!r}{others}"
    )


def name_of(likelihood: str | AbstractLikelihood) -> str:
    """Return the name of a resolved likelihood, or else of its class."""
    if isinstance(likelihood, str):
        return likelihood
    names = (name for name, kind in KINDS.items() if isinstance(likelihood, kind))
    return next(names, type(likelihood).__name__)


def is_of_counts(likelihood: str | AbstractLikelihood) -> bool:
    """Return True if a resolved likelihood takes counts."""
    kind = KINDS.get(likelihood, Gaussian) if isinstance(likelihood, str) else likelihood
    return kind.is_of_counts


def fixed_df(likelihood: Any) -> float | None:
    """Return degrees of freedom that are given and not learned."""
    is_fixed = isinstance(likelihood, StudentT) and isinstance(likelihood.df, Frozen)
    return float(likelihood.df) if is_fixed else None


def start_noise(
    likelihood: str | AbstractLikelihood, family: str, spread: float, dtype: str
) -> AbstractNoise:
    """Return the likelihood's noise, or a tenth of `spread`, learned; `spread` is the targets' mean square.

    Raises ValueError for a variance that the dtype cannot hold.
    """
    own = getattr(likelihood, "noise", None)
    if own is None:
        lower = LEAST_NOISE if family == KERNEL else NOISE_FLOOR
        return constant_noise(START_NOISE * spread, lower=lower * spread, dtype=np.dtype(dtype))
    if not np.finfo(dtype).tiny <= float(own.level) <= np.finfo(dtype).max:
        raise ValueError(f"the noise variance is {float(own.level):g}, which {dtype} cannot hold")
    return own


def started_sparse(
    estimator: Any, learner: AbstractLearner | None, data: TrainingData
) -> tuple[AbstractLikelihood, float]:
    """Return a sparse regressor's starting likelihood, and the starting variance of kernels.

    Raises ValueError if a learner other than SVGP and VGP has a likelihood that does not start with Gaussian noise.
    """
    found = resolve_likelihood(estimator._likelihood, SPARSE)
    if name_of(found) not in (AUTO, GAUSSIAN) and not isinstance(learner, SVGP | VGP):
        kind = KINDS[found] if isinstance(found, str) else type(found)
        raise ValueError(
            f"{type(learner).__name__} takes Gaussian noise, but the likelihood is {kind.__name__}: learner='svgp' or 'vgp' takes any"
        )
    counts = is_of_counts(found)
    spread = 1.0 if counts else data.spread
    if isinstance(found, str):
        noise = start_noise(found, SPARSE, spread, estimator.dtype)
        others = {STUDENT: StudentT(START_DF, noise), "poisson": Poisson()}
        others["negative-binomial"] = NegativeBinomial(START_SHAPE)
        found = others.get(found, Gaussian(noise))
    return (Shifted(found, _prior_log_rate(data, estimator)), COUNT_VARIANCE) if counts else (found, spread)


def _prior_log_rate(data: TrainingData, estimator: Any) -> float:
    """Return log `mean`, the log average count, or 0. Raises ValueError for a mean ≤ 0."""
    mean, weights = estimator.mean, data.rows.weights
    if mean is None:
        total = max(float(np.sum(weights * data.rows.y)), LEAST_COUNT)
        mean = total / float(weights.sum()) if estimator.standardize else 1.0
    if not mean > 0:
        raise ValueError(f"mean is {mean!r}; that of counts must be positive")
    return math.log(mean)


def near_in_time(kernel: Any, encoder: Any, n_rows: int, group: Any) -> Any:
    """Return the kernel with lengthscales of NEAR_IN_TIME for days of dates, if it has ARD.

    Only for more than 3,000 rows without groups: they are scored one by one.
    """
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
    """Return fingerprints as inputs if only Tanimoto kernels of all columns use them."""
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
