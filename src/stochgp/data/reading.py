"""Checked numbers of the arguments of `fit`, `update` and `partial_fit`: tables, arrays, targets and weights."""

import dataclasses
import logging
import os
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

from stochgp.budget import Budget
from stochgp.context import FitContext
from stochgp.data.files import FileSource, note_columns
from stochgp.data.rows import Data, first_not_finite, refuse_not_finite
from stochgp.data.time_order import EITHER, INTERPOLATE, groups_in_time
from stochgp.names import lookup
from stochgp.tables.categories import CategoryTargets
from stochgp.tables.columns import Caution, is_array, row_of_first, unmasked
from stochgp.tables.encoding import TableEncoder, rows_without_values, some_rows
from stochgp.tables.molecules import (
    Encoder,
    FingerprintEncoder,
    Inputs,
    counts_of,
    is_packed,
    name_inputs,
    read_fingerprints,
    refuse_further_counts,
    without_skipped,
)
from stochgp.tables.targets import checked_targets, read_groups, read_targets, read_weights, refuse_no_targets
from stochgp.warning import say, warn

logger = logging.getLogger("stochgp.estimators")

FIT = 6  # calls from here to that of `fit`
CODE = "the target {:.10g}, a code for a missing value far from all others (target_outliers='keep' learns from it)"

_FLOATS = (np.float64, np.float32)


def are_files(X: Any) -> bool:
    """Return True if X names a file or a folder, or is `data.FileSource`."""
    return isinstance(X, str | os.PathLike | FileSource)


def read_training_rows(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
    context: FitContext,
    *,
    inputs: Inputs = Inputs.NUMBERS,
    time_order: str = INTERPOLATE,
) -> tuple[Data, Encoder | None]:
    """Return the checked rows given to `fit`, in the user's units, and the encoder of their inputs.

    Equal rows become one with the sum of their weights (`Data.merged`); rows without weight, target or any input are left out. Without
    `groups`, `time_order` decides about blocks of time (`groups_in_time`). Set `n_features_in_` and `feature_names_in_`. Raises ValueError or
    TypeError, naming row and column, for values that cannot be used.
    """
    missing, packed = estimator.missing, inputs is Inputs.FINGERPRINTS
    lookup(missing, dict.fromkeys(("auto", "refuse", "skip")), "missing")
    refuse_no_targets(estimator, y)
    encoder = targets = None
    if packed:
        encoder, X = read_fingerprints(estimator, X, context.budget)
    X, groups = unmasked(X), unmasked(groups)
    y = read_targets(y, missing != "refuse" and not packed, context)
    check_consistent_length(X, y)
    weight = read_weights(sample_weight, y)
    known = _known(None if packed else X, y, weight, estimator, context)
    if known is not None:
        X, weight = some_rows(X, known), None if weight is None else weight[known]
        groups = some_rows(groups, known) if np.shape(groups)[:1] == y.shape else groups
        y = y[known]
    group, numbers = None if groups is None else read_groups(groups, len(y)), X
    if not packed:
        if not is_array(X):  # folds are those of `random_state` where that is a number
            seed, kind = estimator.random_state, getattr(estimator, "target", "real")
            seed = int(seed) if isinstance(seed, int | np.integer) else 0
            targets = CategoryTargets.of(y, seed, group, kind, is_classifier(estimator), weight)
        encoder, numbers = read_inputs_at_fit(estimator, X, context.budget, missing, targets)
    rows = Data(numbers, y, weight, group)
    rows = rows.take(without_skipped(rows.X)) if missing == "skip" else rows
    if rows.group is not None and (rows.group == rows.group[0]).all():
        raise ValueError("groups puts all rows into one group; at least two are needed")
    note_columns(encoder, context)
    if rows.group is None:
        of_numbers = rows.X if inputs is Inputs.NUMBERS else None
        group = groups_in_time(of_numbers, rows.y, encoder, time_order, context.record)
        # In pools, which also predict between the training rows: statistics of whole other blocks differ from those at predict: 95 % intervals of air fares held .86 of a random fifth.
        if group is not None and time_order != EITHER and targets:
            of_blocks = typing.cast(TableEncoder, encoder).in_folds(numbers, X, targets._replace(group=group))
            rows = dataclasses.replace(rows, X=of_blocks)
        rows = dataclasses.replace(rows, group=group)
    return rows.merged(packed), encoder


def _known(
    X: Any,
    y: Float[np.ndarray, " N"],
    weight: Float[np.ndarray, " N"] | None,
    estimator: Any,
    context: FitContext,
) -> Bool[np.ndarray, " N"] | None:
    """Return the rows that have a weight, a target and any input (if X is given), None for all; warn of rows without the last two."""
    refuses, outliers = estimator.missing == "refuse", getattr(estimator, "target_outliers", "keep")
    codes, said = checked_targets(y, weight, outliers, refuses)
    if said:
        warn(f"{said}; they are learned from, and may be errors", UserWarning, stacklevel=FIT)
        context.record("target_outliers", outliers, said)
    unknown = np.isnan(y)
    can_be_empty = not refuses and X is not None and not hasattr(X, "toarray")  # sparse X is refused later
    empty = rows_without_values(X) if can_be_empty else np.zeros(len(y), bool)
    kept = np.ones(len(y), bool) if weight is None else weight > 0
    drop = unknown | empty | codes
    if not drop.any():
        return None if kept.all() else kept
    if drop.all():
        what = "X contains NaN in all rows" if empty.all() else "y contains NaN in all rows that have inputs"
        raise ValueError(f"Input {what}: there is nothing to learn from")
    reasons = [(unknown, "without a target"), (empty & ~unknown, "without any input")]
    reasons += [(codes & (y == value), f"with {CODE.format(value)}") for value in np.unique(y[codes])]
    said = (
        f"{which.sum()} {what} (the first: data row {row_of_first(which)})"
        for which, what in reasons
        if which.any()
    )
    n_dropped, why = int(drop.sum()), f"of {len(y)} are not learned from: {' and '.join(said)}"
    warn(f"{n_dropped} rows {why}", UserWarning, stacklevel=FIT)
    context.record("unused_rows", n_dropped, why)
    return kept & ~drop


def read_rows(
    X: np.ndarray,
    y: Any,
    sample_weight: Any,
    groups: Any = None,
    *,
    joins: Encoder | None = None,
    may_weigh_nothing: bool = False,
) -> Data:
    """Return checked rows of inputs that are numbers already. `joins` is the encoder of a fitted model whose rows they join.

    Raises ValueError, naming the row, for values that cannot be used, and for all weights 0 unless that may be.
    """
    if is_packed(joins):
        refuse_further_counts(X)
    y = read_targets(y)
    check_consistent_length(X, y)
    group = None if groups is None else read_groups(groups, len(y))
    return Data(X, y, read_weights(sample_weight, X, may_weigh_nothing), group)


def read_inputs(estimator: Any, encoder: Encoder | None, X: Any) -> Float[np.ndarray, "N D"]:
    """Return the numbers of a table or an array given to a fitted estimator."""
    if isinstance(encoder, FingerprintEncoder):
        return encoder.transform(counts_of(X) if encoder.morgan is None else X)
    X = unmasked(X)
    if encoder is None or not encoder.named:
        X = validate_data(estimator, X, reset=False, dtype=_FLOATS, ensure_all_finite=False)
    if encoder is None:
        refuse_not_finite(X)
        return X
    X, notes = _encoded(encoder, X, lambda: Budget.of(estimator.memory_limit))
    for note in notes:
        logger.info(note)
        if isinstance(note, Caution):
            warn(note, UserWarning, stacklevel=4)
        else:
            say(getattr(estimator, "verbose", 0), note)
    return X


def read_inputs_at_fit(
    estimator: Any, X: Any, budget: Budget, missing: str, targets: CategoryTargets | None = None
) -> tuple[TableEncoder | None, np.ndarray]:
    """Return the encoder of the table, None for an array of which nothing is imputed, and the numbers; set the names."""
    if not is_array(X):
        encoder = TableEncoder.fit(X, missing=missing, targets=targets)
        numbers = _encoded(encoder, X, lambda: budget, targets)[0]
        has_names = all(isinstance(name, str) for name in getattr(X, "column_names", X.columns))
        names = [rule.name for rule in encoder.columns]
        name_inputs(estimator, len(names), names if has_names else None)
        return encoder, numbers
    X = validate_data(estimator, X, dtype=_FLOATS, ensure_all_finite=False)
    if missing == "refuse":
        refuse_not_finite(X)
        return None, X
    encoder = TableEncoder.fit(X, missing=missing)
    return encoder, _encoded(encoder, X, lambda: budget)[0]


def _encoded(
    encoder: TableEncoder, X: Any, budget: Callable[[], Budget], targets: CategoryTargets | None = None
) -> tuple[np.ndarray, list[str]]:
    """Return the numbers of a table, if they fit, and notes; a training table has `targets`. Plain arrays are not copied."""
    is_plain = encoder.is_plain and isinstance(X, np.ndarray) and X.shape[1:] == (len(encoder.columns),)
    if is_plain and first_not_finite(X) is None:
        return X, []
    n_columns = len(encoder.output_names)
    budget().require(8 * len(X) * n_columns, f"a matrix of {len(X)} rows and {n_columns} columns")
    numbers, notes = encoder.encoded(X)
    return (numbers, notes) if targets is None else (encoder.in_folds(numbers, X, targets), [])
