"""Targets of regressors: their kind, their transform, and a fitted prior mean."""

import dataclasses
from typing import Any

import numpy as np

from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext
from stochgp.data.files import FileSource
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.likelihoods import Warped
from stochgp.likelihoods.warped import TRANSFORMS, as_transform
from stochgp.objectives.warping import fit_transforms
from stochgp.observations import MEANS, LinearMean
from stochgp.tables.targets import refuse_no_counts
from stochgp.transforms import AbstractTransform, Log

TARGETS = {"real": None, "positive": "log", "count": "count"}  # `target=` and its transform
CANDIDATES = ("sinh-arcsinh",)  # candidates of "auto"
POSITIVE_CANDIDATES = ("log",)  # further candidates if all targets are positive


def target_transform(likelihood: Any, target: str) -> AbstractTransform | str | None:
    """Return the transform of `likelihood=` or `target=`. Raises ValueError if both set one."""
    of_target = TARGETS[target]
    if not isinstance(likelihood, Warped):
        return None if of_target is None else as_transform(of_target)
    if of_target is not None:
        raise ValueError(
            f"target={target!r} is a transform of its own: leave it, or the Warped likelihood, out"
        )
    return likelihood.transform


def untransformed(likelihood: Any) -> Any:
    """Return the setting `likelihood=` for the transformed targets."""
    return likelihood.likelihood if isinstance(likelihood, Warped) else likelihood


def standardised(
    rows: Data, mean: float | str | None, estimator: Any, leaves_inputs: bool, context: FitContext
) -> TrainingData:
    """Return the data, standardised as set; less a fitted mean if `mean` is its name."""
    settings = bool(estimator.standardize), estimator.dtype, leaves_inputs
    standardize, dtype, leaves = settings
    if not isinstance(mean, str):
        return TrainingData.of(rows, standardize, mean, dtype, leaves)
    found, values = MEANS[mean].fit(rows)
    variance = lambda part: float(np.cov(part, ddof=0, aweights=rows.weight))
    share = 1.0 - variance(rows.y - values) / (variance(rows.y) or 1.0)
    values = found(rows.X) if isinstance(found, LinearMean) else values
    rest = TrainingData.of(dataclasses.replace(rows, y=rows.y - values), standardize, None, dtype, leaves)
    context.record("mean", mean, f"{share:.0%} of the variance of the targets is that of {found.described}")
    return dataclasses.replace(rest, mean_function=found, mean_values=values)


def transformed(
    rows: Data,
    wanted: AbstractTransform | str,
    estimator: Any,
    leaves_inputs: bool,
    context: FitContext,
) -> TrainingData:
    """Return the data with transformed targets. A numeric `mean` is in original units.

    Raises ValueError, naming a target, for targets that the transform does not take.
    """
    if estimator.target == "count":
        refuse_no_counts(rows.y)
    mean = estimator.mean
    plain = TrainingData.of(rows, bool(estimator.standardize), None, estimator.dtype, leaves_inputs)
    T = _fitted_transform(wanted, rows, plain, context)
    if T is None:
        return standardised(rows, mean, estimator, leaves_inputs, context)
    if mean is not None and not isinstance(mean, str):
        T.check(np.atleast_1d(np.float64(mean)))
        mean = float(T(np.asarray(mean, np.float64)))
    z = np.asarray(T(rows.y), np.float64)
    data = standardised(dataclasses.replace(rows, y=z), mean, estimator, leaves_inputs, context)
    slope = float(np.average(T.log_slope(rows.y), weights=data.rows.weights))
    return dataclasses.replace(data, transform=T, log_slope=slope)


def data_of_counts(rows: Data, standardize: bool, dtype: str) -> TrainingData:
    """Return counts with standardised inputs. Raises ValueError for other targets."""
    refuse_no_counts(rows.y)
    return TrainingData.of(rows, standardize, None, dtype, leaves_targets=True)


def refuse_learned_transform(wanted: AbstractTransform | str | None) -> None:
    """Raise ValueError for a transform with parameters, which targets in files do not have."""
    if wanted is not None and not isinstance(wanted, Log):
        raise ValueError(
            "of targets in files the transforms 'log' and 'count' are taken, which have no parameters to learn: give arrays or a table for others"
        )


def transformed_files(data: TrainingData, found: FileSource, context: FitContext) -> TrainingData:
    """Return the data of files with their transform T = log(y + c): mean log T' is −mean T."""
    T = found.transform
    whole = data.everything is None
    mean = np.average(data.rows.y, weights=data.rows.weights) if whole else found.of_targets.mean[0]
    context.record("transform", type(T).__name__, "as asked; it has no parameters to learn")
    return dataclasses.replace(data, transform=T, log_slope=-float(mean))


def _fitted_transform(
    wanted: AbstractTransform | str, rows: Data, plain: TrainingData, context: FitContext
) -> AbstractTransform | None:
    """Return the fitted transform; None if "auto" finds no clear gain on held-out rows."""
    chooses = isinstance(wanted, str)
    if isinstance(wanted, AbstractTransform):
        wanted.check(rows.y)
    if plain.leaves_inputs and not isinstance(wanted, Log):
        raise ValueError(
            "the Tanimoto kernel takes the transforms 'log' and 'count', whose parameters need not be learned"
        )
    T: Any = wanted
    why = f"{AS_ASKED}; it has no parameters to learn"
    if chooses and (refusal := context.refusal()):
        T, why = None, refusal
    elif not isinstance(wanted, Log):
        names = CANDIDATES + (POSITIVE_CANDIDATES if rows.y.min() > 0 else ())
        tried = {name: TRANSFORMS[name] for name in names} if chooses else {type(wanted).__name__: wanted}
        options: dict[str, Any] = {"seed": context.sample_seed, "group": rows.group, "weight": rows.weight}
        T, found = fit_transforms(tried, plain.X.astype(np.float64), rows.y, **options)
        why = f"{AS_ASKED}; rows that it was not fitted to: {found.why}"
        if chooses:
            T, why = (None if found.name is None else T), f"by rows that none was fitted to: {found.why}"
    context.record("transform", None if T is None else type(getattr(T, "inner", T)).__name__, why)
    return T
