"""Targets that are transformed before they are standardised, and what is said of that."""

import dataclasses
import typing
from typing import Any

import numpy as np
from jaxtyping import Float

from stochgp import deadline
from stochgp.choosing import AS_ASKED, choice
from stochgp.data.rows import Rows
from stochgp.data.survey import Survey
from stochgp.likelihoods import Warped
from stochgp.likelihoods.warped import TRANSFORMS, as_transform
from stochgp.objectives.warping import fit_transforms
from stochgp.tables.targets import REAL, AbstractTargets, CountTargets, refuse_targets
from stochgp.training_data.units import TrainingData
from stochgp.transforms import AbstractTransform, Log, ShiftedLog

TARGETS = {"real": None, "positive": "log", "count": "count"}  # `target=` and its transform
CANDIDATES = ("sinh-arcsinh", "yeo-johnson")  # of "auto"
POSITIVE_CANDIDATES = ("log", "box-cox")  # further ones, where all targets are positive
SECONDS = 6.0  # that their comparison takes, compilation included


def transform_wanted(likelihood: Any, target: str) -> AbstractTransform | str | None:
    """What `likelihood=` and `target=` ask for: a transform, "auto", or None. ValueError where both ask for one."""
    of_target = TARGETS[target]
    if not isinstance(likelihood, Warped):
        return None if of_target is None else as_transform(of_target)
    if of_target is not None:
        raise ValueError(
            f"target={target!r} is a transform of its own: leave it, or the Warped likelihood, out"
        )
    return likelihood.transform


def untransformed(likelihood: Any) -> Any:
    """`likelihood=` of the targets once they are transformed."""
    return likelihood.likelihood if isinstance(likelihood, Warped) else likelihood


def warped_data(
    rows: Rows,
    wanted: AbstractTransform | str,
    settings: tuple[bool, Any, str, bool],
    seed: Any,
) -> TrainingData:
    """The data with transformed targets, the way back, and what `plan_` says of it.

    `settings` are those of `TrainingData.of`; a mean is one of the targets as given. Raises ValueError, naming a target, for those that
    the transform does not take.
    """
    standardize, mean, dtype, leaves = settings
    found, why = _found(wanted, rows, TrainingData.of(rows, standardize, None, dtype, leaves), seed)
    if found is None:
        plain = TrainingData.of(rows, *settings)
        return dataclasses.replace(plain, entries=plain.entries | {"transform": choice(None, why)})
    if mean is not None and not isinstance(mean, str):
        found.check(np.atleast_1d(np.float64(mean)))
        mean = float(found(np.asarray(mean, np.float64)))
    z = np.asarray(found(rows.y), np.float64)
    data = TrainingData.of(dataclasses.replace(rows, y=z), standardize, mean, dtype, leaves)
    slope = float(np.average(found.log_slope(rows.y), weights=data.weight))
    entries = {"transform": choice(type(getattr(found, "inner", found)).__name__, why)}
    return dataclasses.replace(data, transform=found, log_slope=slope, entries=data.entries | entries)


@dataclasses.dataclass(frozen=True, eq=False)
class TransformedTargets(AbstractTargets):
    """T of the numbers in files, which rows are divided by as they are. T has no parameters to learn."""

    transform: Log | ShiftedLog
    given: AbstractTargets

    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        y = self.given.numbers(table, name)
        wanted = f"{type(self.transform).__name__} takes targets above {self.transform.lower:g}"
        refuse_targets(name, y, y <= self.transform.lower, wanted)
        return y

    def learned(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        self.transform.check(y)
        return np.asarray(self.transform(y), np.float64)


def targets_in_files(wanted: AbstractTransform | str | None, target: str) -> AbstractTargets:
    """How a column of files becomes targets. Raises ValueError for a transform that would have to learn from them."""
    if wanted is None:
        return REAL
    if not isinstance(wanted, Log | ShiftedLog):
        raise ValueError(
            "of targets in files the transforms 'log' and 'count' are taken, which have no parameters to learn: give arrays or a table for others"
        )
    return TransformedTargets(wanted, CountTargets() if target == "count" else REAL)


def warped_files(data: TrainingData, found: Survey) -> TrainingData:
    """The data of files with their transform. Of T = log(y + c) the mean of log T' is minus that of T, of all rows."""
    T = typing.cast(TransformedTargets, found.rows.targets).transform
    whole = data.everything is None
    mean = np.average(data.rows.y, weights=data.weight) if whole else found.targets.mean[0]
    entries = {"transform": choice(type(T).__name__, "as asked; it has no parameters to learn")}
    return dataclasses.replace(data, transform=T, log_slope=-float(mean), entries=data.entries | entries)


def _found(
    wanted: AbstractTransform | str, rows: Rows, plain: TrainingData, seed: Any
) -> tuple[AbstractTransform | None, str]:
    """(The transform with its parameters, None where there is none; why)."""
    if isinstance(wanted, Log | ShiftedLog):
        wanted.check(rows.y)
        return wanted, f"{AS_ASKED}; it has no parameters to learn"
    if plain.leaves_inputs:
        raise ValueError(
            "the Tanimoto kernel takes the transforms 'log' and 'count', whose parameters need not be learned"
        )
    X = plain.X.astype(np.float64)
    if isinstance(wanted, str):
        return _chosen(X, rows, seed)
    wanted.check(rows.y)
    name = type(wanted).__name__
    fitted, found = fit_transforms({name: wanted}, X, rows.y, seed=seed, group=rows.group, weight=rows.weight)
    return fitted[name], f"{AS_ASKED}; rows that it was not fitted to: {found.why}"


def _chosen(X: np.ndarray, rows: Rows, seed: Any) -> tuple[AbstractTransform | None, str]:
    """The one that gains most on held-out rows, of those that clearly gain."""
    if deadline.left() < SECONDS:
        return None, "there was no time to compare transforms"
    names = CANDIDATES + (POSITIVE_CANDIDATES if rows.y.min() > 0 else ())
    tried = {name: TRANSFORMS[name] for name in names}
    fitted, found = fit_transforms(tried, X, rows.y, seed=seed, group=rows.group, weight=rows.weight)
    return None if found.name is None else fitted[found.name], f"by rows that none was fitted to: {found.why}"
