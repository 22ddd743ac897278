"""Checks and conversions of the arguments of `fit`, `update` and `partial_fit`."""

import logging
import os
import typing
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data  # pyrefly: ignore[missing-module-attribute]

from stochgp.budget import Budget
from stochgp.context import FitContext
from stochgp.exceptions import DataWarning
from stochgp.names import lookup
from stochgp.tables.categories import CategoryTargets
from stochgp.tables.columns import Caution, is_array, row_of_first, unmasked
from stochgp.tables.encoding import TableEncoder, some_rows
from stochgp.tables.molecules import (
    Encoder,
    FingerprintEncoder,
    Inputs,
    is_packed,
    name_inputs,
    read_fingerprints,
    refuse_further_counts,
    without_skipped,
)
from stochgp.tables.targets import checked_targets, read_groups, read_targets, read_weights, refuse_no_targets
from stochgp.warning import say, warn

from .files import FileSource, open_files
from .rows import Data, Standardiser, first_not_finite, refuse_not_finite
from .time_order import EITHER, INTERPOLATE, groups_in_time
from .training import TrainingData

logger = logging.getLogger("stochgp.estimators")

FIT = 6  # `stacklevel` of warnings, so that they show the line that calls `fit`
CODE = "the target {:.10g}, probably a code for a missing value (missing='keep' trains on such rows)"
MAX_SAMPLE = 1_000_000  # maximum number of rows of files to learn hyperparameters from
SAMPLE_SHARE = 0.1  # share of the free memory for the rows of a sample
SAMPLE_SEED = 0x5EED  # added to the user's seed, so that samples and random splits are independent

_FLOATS = (np.float64, np.float32)


def are_files(X: Any) -> bool:
    """Return True if X is the path of a file or a folder, or a `data.FileSource`."""
    return isinstance(X, str | os.PathLike | FileSource)


def read_training_rows(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any, context: FitContext, *,
    inputs: Inputs = Inputs.NUMBERS, time_order: str = INTERPOLATE,
) -> tuple[Data, Encoder | None]:  # fmt: skip
    """Check the arguments of `fit`; return the rows in the user's units and the input encoder.

    Equal rows are merged (`Data.merged`). Rows with weight 0 or without a target are ignored. If `groups` is
    None, blocks of time may become the groups (`groups_in_time`). The estimator receives `n_features_in_` and
    `feature_names_in_`. Raises ValueError or TypeError for invalid values.
    """
    missing, packed = estimator.missing, inputs is Inputs.FINGERPRINTS
    lookup(missing, dict.fromkeys(("auto", "refuse", "keep")), "missing")
    refuse_no_targets(estimator, y)
    encoder, X = read_fingerprints(estimator, X, context.budget) if packed else (None, unmasked(X))
    y = read_targets(y, missing != "refuse" and not packed, context)
    check_consistent_length(X, y)
    weight, group = read_weights(sample_weight, y), None if groups is None else read_groups(groups, len(y))
    known = _known(y, weight, estimator, context)
    if not known.all():
        X, y = some_rows(X, known), y[known]
        weight, group = (None if part is None else part[known] for part in (weight, group))
    numbers, targets = X, None
    if not packed:
        targets = None if is_array(X) else _category_targets(estimator, y, group, weight)
        encoder, numbers = _read_inputs_at_fit(estimator, X, targets)
    rows = Data(numbers, y, weight, group)
    rows = rows.take(without_skipped(rows.X)) if is_packed(encoder) else rows
    if rows.group is not None and rows.groups is None:
        raise ValueError("all values of groups are equal; at least two groups are needed")
    note_columns(encoder, context)
    if rows.group is None:
        of_numbers = rows.X if inputs is Inputs.NUMBERS else None
        rows = replace(rows, group=groups_in_time(of_numbers, rows.y, encoder, time_order, context.record))
        # Not in pools: pools also predict rows between training rows; statistics of random folds fit better.
        if rows.group is not None and time_order != EITHER and targets:
            targets = targets._replace(group=rows.group)
            rows = replace(rows, X=typing.cast(TableEncoder, encoder).in_folds(rows.X, X, targets))
    return rows.merged(packed), encoder


def _category_targets(estimator: Any, y: np.ndarray, group: Any, weight: Any) -> CategoryTargets:
    """Return the targets for target statistics of categories, with folds from `random_state`."""
    seed, kind = estimator.random_state, getattr(estimator, "_target", getattr(estimator, "target", "real"))
    seed = int(seed) if isinstance(seed, int | np.integer) else 0
    return CategoryTargets.of(y, seed, group, kind, is_classifier(estimator), weight)


def _known(y: np.ndarray, weight: np.ndarray | None, estimator: Any, context: FitContext) -> np.ndarray:
    """Return a mask of rows with positive weight and a valid target; warn of invalid targets."""
    codes, said = np.zeros(len(y), bool), ""
    if estimator.missing != "keep" and getattr(estimator, "_checks_targets", False):
        codes, said = checked_targets(y, weight, estimator.missing == "refuse")
    if said:
        warn(f"{said}; the model uses these targets, but they may be errors", DataWarning, stacklevel=FIT)
        context.record("target_outliers", "learned from", said)
    drop = np.isnan(y) | codes
    if drop.all():
        raise ValueError("Input y contains NaN in all rows: there is nothing to learn from")
    if drop.any():
        reasons = {"without a target": np.isnan(y)}
        reasons |= {f"with {CODE.format(value)}": codes & (y == value) for value in np.unique(y[codes])}
        said = " and ".join(
            f"{which.sum()} {what} (the first: data row {row_of_first(which)})"
            for what, which in reasons.items()
            if which.any()
        )
        n_dropped, why = int(drop.sum()), f"of {len(y)} are ignored: {said}"
        warn(f"{n_dropped} rows {why}", DataWarning, stacklevel=FIT)
        context.record("unused_rows", n_dropped, why)
    return ~drop if weight is None else ~drop & (weight > 0)


def note_columns(encoder: Encoder | None, context: FitContext) -> None:
    """Record how the fit changed columns of the training table, and warn of suspicious values."""
    if not isinstance(encoder, TableEncoder):
        return
    if encoder.notes:
        context.record("columns", encoder.notes, "the fit changed these columns of the table")
    for rule in encoder.columns:
        if rule.caution:
            warn(f"column {rule.name!r}: {rule.caution}", DataWarning, stacklevel=5)


def read_rows(
    X: np.ndarray, y: Any, sample_weight: Any, *, joins: Encoder | None, may_weigh_nothing: bool = False
) -> Data:
    """Check rows whose inputs are numbers; `joins` is the encoder of the model to update."""
    if is_packed(joins):
        refuse_further_counts(X)
    y = read_targets(y)
    check_consistent_length(X, y)
    return Data(X, y, read_weights(sample_weight, X, may_weigh_nothing))


def read_inputs(estimator: Any, encoder: Encoder | None, X: Any) -> Float[np.ndarray, "N D"]:
    """Convert a table or an array to the inputs of a fitted estimator."""
    if isinstance(encoder, FingerprintEncoder):
        return encoder.transform(X)
    X = unmasked(X)
    if encoder is None or not encoder.named:
        X = validate_data(estimator, X, reset=False, dtype=_FLOATS, ensure_all_finite=False)
    if encoder is None:
        refuse_not_finite(X)
        return X
    X, notes = _encoded(estimator, encoder, X)
    for note in notes:
        logger.info(note)
        if isinstance(note, Caution):
            warn(note, DataWarning, stacklevel=4)
        else:
            say(getattr(estimator, "verbose", 0), note)
    return X


def _read_inputs_at_fit(
    estimator: Any, X: Any, targets: CategoryTargets | None
) -> tuple[TableEncoder | None, np.ndarray]:
    """Fit an encoder to X; return the encoder (None = not needed) and the encoded numbers."""
    if targets is None:
        X = validate_data(estimator, X, dtype=_FLOATS, ensure_all_finite=False)
        if estimator.missing == "refuse":
            refuse_not_finite(X)
            return None, X
    encoder = TableEncoder.fit(X, missing=_of_inputs(estimator), targets=targets)
    numbers, _ = _encoded(estimator, encoder, X)
    if targets is not None:
        numbers = encoder.in_folds(numbers, X, targets)
        has_names = all(isinstance(name, str) for name in getattr(X, "column_names", X.columns))
        names = [rule.name for rule in encoder.columns]
        name_inputs(estimator, len(names), names if has_names else None)
    return encoder, numbers


def _of_inputs(estimator: Any) -> str:
    """Return `missing` for inputs; "keep" concerns only targets and becomes "auto"."""
    return "refuse" if estimator.missing == "refuse" else "auto"


def _encoded(estimator: Any, encoder: TableEncoder, X: Any) -> tuple[np.ndarray, list[str]]:
    """Encode a table if it fits into memory; return numbers and notes about changes."""
    is_plain = encoder.is_plain and isinstance(X, np.ndarray) and X.shape[1:] == (len(encoder.columns),)
    if is_plain and first_not_finite(X) is None:
        return X, []
    n_columns = len(encoder.output_names)
    what = f"a matrix of {len(X)} rows and {n_columns} columns"
    Budget.of(estimator.memory_limit).require(8 * len(X) * n_columns, what)
    return encoder.encoded(X)


def read_files(
    estimator: Any, X: Any, target: Any, others: dict[str, Any], context: FitContext, *,
    keeps_all: bool, kind: Literal["real", "count", "class"] = "real", transform: Any = None,
) -> tuple[TrainingData, FileSource]:  # fmt: skip
    """Return a uniform sample of the rows in files, and the source of all rows.

    `others` are arguments of `fit` that need rows in memory. Raises ValueError if any of them is set, and
    for invalid values. Raises MemoryLimitError if `keeps_all` is True and memory is too small for all rows.
    """
    lookup(estimator.missing, dict.fromkeys(("auto", "refuse", "keep")), "missing")
    if not isinstance(target, str):
        what = "X names files, so y must be the name of the target column"
        raise TypeError(f"{what}, but y has the type {type(target).__name__}")
    for name in [name for name, value in others.items() if value is not None]:
        raise ValueError(f"{name} cannot be used with rows in files, only with rows in memory")
    source = X if isinstance(X, FileSource) else FileSource.of(X)
    source = replace(source, target=target, kind=kind, transform=transform)
    seed = context.sample_seed + SAMPLE_SEED
    n_sample = lambda n_inputs: _sample_size(n_inputs, context.budget, keeps_all)
    source, rows, n_dropped = open_files(source, missing=_of_inputs(estimator), seed=seed, n_sample=n_sample)
    if keeps_all and source.size > len(rows):
        n_inputs = len(source.encoder.output_names)
        need, what = 2 * source.size * _row_bytes(n_inputs), f"{source.size} rows of {n_inputs} inputs"
        context.budget.refuse(need, f"a model that keeps {what}")
    names = [column.name for column in source.encoder.columns]
    name_inputs(estimator, len(names), names)
    rows = replace(rows, group=_groups(rows, source, estimator, context))
    _note_rows(source, rows, n_dropped, estimator, context)
    return _standardised(source, rows, estimator), source


def _groups(rows: Data, source: FileSource, estimator: Any, context: FitContext) -> np.ndarray | None:
    """Return group numbers from `split_by` columns; without such columns, from blocks of time."""
    if rows.group is None:
        order = estimator.time_order
        return groups_in_time(rows.X, rows.y, source.encoder, order, context.record, in_order=False)
    group = np.unique(rows.group, return_inverse=True)[1].astype(np.int32)
    if group.max() == 0:
        raise ValueError("every split_by column is constant; at least two groups are needed")
    return group


def _note_rows(source: FileSource, rows: Data, n_dropped: int, estimator: Any, context: FitContext) -> None:
    """Warn of outliers, ignored rows and changed columns in files, and record them."""
    looks, refuses = source.scaled and estimator.missing != "keep", estimator.missing == "refuse"
    if looks and (said := checked_targets(rows.y, None, refuses, leaves_out=False)[1]):
        warn(f"in a check of {len(rows)} rows of the files, {said}", DataWarning, stacklevel=3)
    if n_dropped:
        why = "of the files are ignored: they have no target"
        warn(f"{n_dropped} rows {why}", DataWarning, stacklevel=3)
        context.record("unused_rows", n_dropped, why)
    note_columns(source.encoder, context)


def _standardised(source: FileSource, rows: Data, estimator: Any) -> TrainingData:
    """Standardise the sample with mean and scale of all rows, and add the source of all rows."""
    is_whole, scaled, standardize = source.size == len(rows), source.scaled, bool(estimator.standardize)
    mean = getattr(estimator, "mean", None) if scaled else None
    mean = None if mean is None else float(source.learned(np.array([mean], np.float64))[0])
    rows = rows.merged() if is_whole else rows
    data = TrainingData.of(rows, standardize, mean, estimator.dtype, leaves_targets=not scaled)
    data = replace(data, encoder=source.encoder)
    if is_whole:
        return data
    if standardize:
        whole = source.of_rows.standardiser()
        data = replace(data, inputs=Standardiser(whole.mean[:-1], whole.scale[:-1]))
        if scaled:
            center = whole.mean[-1] if mean is None else mean
            data = replace(data, targets=Standardiser(np.asarray(center), np.asarray(whole.scale[-1])))
    return replace(data, everything=replace(source, scales=(data.inputs, data.targets), dtype=data.dtype))


def _sample_size(n_inputs: int, budget: Budget, keeps_all: bool) -> int:
    """Return the number of rows to sample, according to the free memory."""
    free = budget.free() / _row_bytes(n_inputs)
    return max(1, int(free / 2)) if keeps_all else min(MAX_SAMPLE, max(1, int(SAMPLE_SHARE * free)))


def _row_bytes(n_inputs: int) -> int:
    """Return the bytes per row of a sample: two copies in float64 and one in float32."""
    return 2 * 8 * (n_inputs + 2) + 4 * (n_inputs + 2)
