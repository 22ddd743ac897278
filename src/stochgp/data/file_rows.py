"""Rows in files, as `fit` is given them: what is learned from them, and all of them for the posterior."""

import os
from typing import Any

import numpy as np

from stochgp.budget import Budget
from stochgp.context import FitContext
from stochgp.data import Blocks
from stochgp.data.fingerprint_rows import name_inputs
from stochgp.data.reading import note_columns
from stochgp.data.survey import Survey, survey
from stochgp.data.training import TrainingData
from stochgp.names import lookup
from stochgp.tables.bounds import checked_targets
from stochgp.tables.targets import REAL, FileTargets
from stochgp.warning import warn

MOST_ROWS = (
    1_000_000  # to learn θ from: more change it by less than 0.01 nats a row, at some 20,000 parameters
)
SHARE = 0.1  # of what is free, for the rows of a sample


def are_files(X: Any) -> bool:
    """Whether X names a file or a folder, or is `data.Blocks`."""
    return isinstance(X, str | os.PathLike | Blocks)


def sample_rows(n_inputs: int, budget: Budget) -> int:
    """How many rows a family learns θ from that can take all others into its posterior one after the other."""
    return min(MOST_ROWS, max(1, int(SHARE * budget.free() / _bytes_of_row(n_inputs))))


def rows_that_fit(n_inputs: int, budget: Budget) -> int:
    """How many rows may be kept in memory."""
    return max(1, int(budget.free() / 2 / _bytes_of_row(n_inputs)))


def read_files(
    estimator: Any,
    X: Any,
    target: Any,
    others: dict[str, Any],
    context: FitContext,
    *,
    keeps_all: bool,
    targets: FileTargets = REAL,
) -> tuple[TrainingData, Survey]:
    """(A uniform sample of the rows in files, standardised by all of them, and where all are; what was found of them).

    `targets` says what the numbers of the target's column stand for. `others` are arguments of `fit` that belong to rows in memory. Sets
    `n_features_in_` and `feature_names_in_`. Raises ValueError or TypeError, in one line, with file and row for what cannot be used, and where
    a family that `keeps_all` rows cannot.
    """
    _check(estimator, target, others)
    blocks, budget = X if isinstance(X, Blocks) else Blocks.of(X), context.budget
    wanted = rows_that_fit if keeps_all else sample_rows
    most = lambda n_inputs: wanted(n_inputs, budget)
    found = survey(
        blocks, target, missing=estimator.missing, seed=context.sample_seed, sample=most, targets=targets
    )
    if targets.scaled:
        said = checked_targets(found.sample.y, None, estimator.target_outliers, leaves_out=False)[1]
        if said:
            warn(f"of {len(found.sample.y)} rows of the files: {said}", UserWarning, stacklevel=2)
    if keeps_all and found.size > len(found.sample.y):
        n_inputs = len(found.rows.encoder.output_names)
        budget.refuse(
            2 * found.size * _bytes_of_row(n_inputs),
            f"a model that keeps {found.size} rows of {n_inputs} inputs",
        )
    names = [rule.name for rule in found.rows.encoder.columns]
    name_inputs(estimator, len(names), names)
    mean = getattr(estimator, "mean", None) if targets.scaled else None
    if mean is not None:
        mean = float(targets.learned(np.array([mean], np.float64))[0])
    settings = bool(estimator.standardize), mean, estimator.dtype, estimator.new_rows
    data = TrainingData.of_files(found, *settings, record=context.record)
    if found.n_dropped:
        why = "of the files are not learned from: they have no target"
        warn(f"{found.n_dropped} rows {why}", UserWarning, stacklevel=2)
        context.record("unused_rows", found.n_dropped, why)
    note_columns(found.rows.encoder, context)
    return data, found


def _bytes_of_row(n_inputs: int) -> int:
    """In float64, with its hash, twice while a sample grows; and once in float32 on the device."""
    return 2 * 8 * (n_inputs + 2) + 4 * (n_inputs + 2)


def _check(estimator: Any, target: Any, others: dict[str, Any]) -> None:
    """Raises ValueError or TypeError for settings, and arguments of `fit`, that files do not take."""
    lookup(estimator.missing, dict.fromkeys(("auto", "refuse")), "missing")
    if not isinstance(target, str):
        raise TypeError(
            f"y must be the name of the target's column where X names files, but is {type(target).__name__}"
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} is for rows in memory: X names files")
