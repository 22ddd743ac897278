"""Checked numbers of the arguments of `fit`, `update` and `partial_fit`: tables, arrays, files, targets and weights."""

import logging
import os
import typing
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from sklearn.base import is_classifier
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import validate_data

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

FIT = 6  # calls from here to that of `fit`
CODE = "the target {:.10g}, probably a code for a missing value (missing='keep' trains on such rows)"
MAX_SAMPLE = 1_000_000  # rows of files to learn θ from: more change it by less than 0.01 nats per row
SAMPLE_SHARE = 0.1  # of the free memory, for the rows of a sample
SAMPLE_SEED = 0x5EED  # added to the user's, so that a sample does not follow the division

_FLOATS = (np.float64, np.float32)


def are_files(X: Any) -> bool:
    """Return True if X names a file or a folder, or is `data.FileSource`."""
    return isinstance(X, str | os.PathLike | FileSource)


def read_training_rows(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any, context: FitContext, *,
    inputs: Inputs = Inputs.NUMBERS, time_order: str = INTERPOLATE,
) -> tuple[Data, Encoder | None]:  # fmt: skip
    """Return the checked rows given to `fit`, in the user's units, and the encoder of their inputs.

    Equal rows become one row with the sum of their weights (`Data.merged`). Rows without weight or target are ignored. Without `groups`,
    `time_order` decides whether blocks of time are groups (`groups_in_time`). Sets `n_features_in_` and `feature_names_in_`. Raises ValueError
    or TypeError, with row and column, for values that cannot be used.
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
    if rows.group is not None and (rows.group == rows.group[0]).all():
        raise ValueError("groups has the same value for all rows; at least two groups are needed")
    note_columns(encoder, context)
    if rows.group is None:
        of_numbers = rows.X if inputs is Inputs.NUMBERS else None
        rows = replace(rows, group=groups_in_time(of_numbers, rows.y, encoder, time_order, context.record))
        # In pools, which also predict between the training rows: statistics of whole other blocks differ from those at predict: 95 % intervals of air fares held .86 of a random fifth.
        if rows.group is not None and time_order != EITHER and targets:
            targets = targets._replace(group=rows.group)
            rows = replace(rows, X=typing.cast(TableEncoder, encoder).in_folds(rows.X, X, targets))
    return rows.merged(packed), encoder


def _category_targets(estimator: Any, y: np.ndarray, group: Any, weight: Any) -> CategoryTargets:
    """Return the targets for statistics of categories, with the folds of `random_state` if that is a number."""
    seed, kind = estimator.random_state, getattr(estimator, "_target", getattr(estimator, "target", "real"))
    seed = int(seed) if isinstance(seed, int | np.integer) else 0
    return CategoryTargets.of(y, seed, group, kind, is_classifier(estimator), weight)


def _known(y: np.ndarray, weight: np.ndarray | None, estimator: Any, context: FitContext) -> np.ndarray:
    """Return the rows [N] that have a weight and a target; warn of rows without the latter."""
    codes, said = np.zeros(len(y), bool), ""
    if estimator.missing != "keep" and getattr(estimator, "_checks_targets", False):
        codes, said = checked_targets(y, weight, estimator.missing == "refuse")
    if said:
        warn(f"{said}; the model learns from them, but they may be errors", DataWarning, stacklevel=FIT)
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
    """Record how columns of the training table were changed, and warn of values that may be wrong."""
    if not isinstance(encoder, TableEncoder):
        return
    if encoder.notes:
        context.record("columns", encoder.notes, "columns of the table that are not taken as they are")
    for rule in encoder.columns:
        if rule.caution:
            warn(f"column {rule.name!r}: {rule.caution}", DataWarning, stacklevel=5)


def read_rows(
    X: np.ndarray, y: Any, sample_weight: Any, *, joins: Encoder | None, may_weigh_nothing: bool = False
) -> Data:
    """Return checked rows with numbers as inputs. `joins` is the encoder of a fitted model that gets more rows."""
    if is_packed(joins):
        refuse_further_counts(X)
    y = read_targets(y)
    check_consistent_length(X, y)
    return Data(X, y, read_weights(sample_weight, X, may_weigh_nothing))


def read_inputs(estimator: Any, encoder: Encoder | None, X: Any) -> Float[np.ndarray, "N D"]:
    """Return the inputs of a fitted estimator as numbers, from a table or an array."""
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
    """Return the encoder of a table with `targets` or an array, None if nothing of it is imputed, and the numbers; set the names."""
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
    """Return `missing` of the encoder of inputs, whose gaps "keep" fills too."""
    return "refuse" if estimator.missing == "refuse" else "auto"


def _encoded(estimator: Any, encoder: TableEncoder, X: Any) -> tuple[np.ndarray, list[str]]:
    """Return the numbers of a table, if they fit into memory, and notes. Plain arrays are not copied."""
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
    """Return a uniform sample of the rows in files, and their source, which standardises both.

    `others` are arguments of `fit` for rows in memory, which are refused. Raises ValueError or TypeError, with file and row, for values that cannot
    be used, and MemoryLimitError if `keeps_all` is True and there is no memory for all rows.
    """
    lookup(estimator.missing, dict.fromkeys(("auto", "refuse", "keep")), "missing")
    if not isinstance(target, str):
        what = "X names files, so y must be the name of the target's column"
        raise TypeError(f"{what}, but it has the type {type(target).__name__}")
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
    """Return numbers of the groups by `split_by`, or else of blocks of time."""
    if rows.group is None:
        order = estimator.time_order
        return groups_in_time(rows.X, rows.y, source.encoder, order, context.record, in_order=False)
    group = np.unique(rows.group, return_inverse=True)[1].astype(np.int32)
    if group.max() == 0:
        raise ValueError("the columns of split_by are the same in all rows; at least two groups are needed")
    return group


def _note_rows(source: FileSource, rows: Data, n_dropped: int, estimator: Any, context: FitContext) -> None:
    """Warn of rows and columns of files that are not taken as they are, and record them."""
    looks, refuses = source.scaled and estimator.missing != "keep", estimator.missing == "refuse"
    if looks and (said := checked_targets(rows.y, None, refuses, leaves_out=False)[1]):
        warn(f"of {len(rows)} rows of the files: {said}", DataWarning, stacklevel=3)
    if n_dropped:
        why = "of the files are ignored: they have no target"
        warn(f"{n_dropped} rows {why}", DataWarning, stacklevel=3)
        context.record("unused_rows", n_dropped, why)
    note_columns(source.encoder, context)


def _standardised(source: FileSource, rows: Data, estimator: Any) -> TrainingData:
    """Return the sample, standardised by all rows unless targets are classes or counts; with the source of all rows if there are others."""
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
    """As many rows as memory holds; fewer to learn θ from if a posterior takes in the others one by one."""
    free = budget.free() / _row_bytes(n_inputs)
    return max(1, int(free / 2)) if keeps_all else min(MAX_SAMPLE, max(1, int(SAMPLE_SHARE * free)))


def _row_bytes(n_inputs: int) -> int:
    """In float64, with its hash, twice while a sample grows; and once in float32 on the device."""
    return 2 * 8 * (n_inputs + 2) + 4 * (n_inputs + 2)
