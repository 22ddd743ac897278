"""What `fit`, `update` and `partial_fit` are given: tables, arrays, targets and weights as checked numbers."""

import dataclasses
import logging
import typing
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from stochgp.budget import Budget
from stochgp.choosing import choice
from stochgp.data import TableEncoder
from stochgp.data.model_rows import is_finite, refuse_not_finite
from stochgp.data.rows import Rows
from stochgp.data.survey import LARGEST_WEIGHT
from stochgp.names import lookup
from stochgp.tables.bounds import checked_targets
from stochgp.tables.columns import Caution, is_array, is_missing, read_column, unmasked
from stochgp.tables.encoding import many_texts, rows_without_values, some_rows
from stochgp.tables.fingerprints import FingerprintEncoder, Fingerprints
from stochgp.tables.levels import LevelTargets
from stochgp.tables.molecules import MoleculeEncoder
from stochgp.tables.readings import decimal_mark_of
from stochgp.tables.targets import target_numbers
from stochgp.training_data.fingerprinted import (
    Inputs,
    is_packed,
    name_inputs,
    read_fingerprints,
    refuse_further_counts,
    without_skipped,
)
from stochgp.training_data.new_rows import BETWEEN, EITHER, groups_in_time
from stochgp.training_data.progress import say
from stochgp.warning import warn

logger = logging.getLogger("stochgp.estimators")

Encoder = TableEncoder | FingerprintEncoder | MoleculeEncoder

FIT = 6  # calls from here to that of `fit`
LARGEST_TARGET, SMALLEST_RANGE = 1e150, 1e-150  # whose squares are still numbers, and not 0

CODE = "the target {:.10g}, a code for a missing value far from all others (target_outliers='keep' learns from it)"

_FLOATS = (np.float64, np.float32)


def read_training_rows(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    sample_weight: Any,
    budget: Budget,
    missing: str = "auto",
    groups: Any = None,
    inputs: Inputs = Inputs.NUMBERS,
    new_rows: str = BETWEEN,
) -> tuple[Rows, Encoder | None, dict[str, Any]]:
    """(The rows given to `fit`, checked, in the user's units; what makes numbers of their inputs; what `plan_` says of columns, of rows that cannot

    be learned from, and of groups that are blocks of time).

    Sets `n_features_in_` and `feature_names_in_`. Up to 10,000 rows are put in lexicographic order, and equal ones become one row with the sum
    of their weights: the same likelihood, and the same fit whichever of the two ways the rows were given. Rows of different groups stay
    apart. Rows of weight 0 are left out. `missing` is what becomes of missing values: "refuse" or "auto" (or "impute"), as `TableEncoder` does it, for
    arrays too; then rows without a target, or without any input, are not learned from. Without `groups`, `new_rows` says whether they are blocks of time
    (`groups_in_time`). Raises ValueError or TypeError, naming row and column, for what cannot be used.
    """
    lookup(missing, dict.fromkeys(("auto", "refuse", "impute", "skip")), "missing")
    refuse_no_targets(estimator, y)
    targets, entries, outliers = None, {}, getattr(estimator, "target_outliers", "keep")
    if inputs is Inputs.FINGERPRINTS:
        encoder, numbers = read_fingerprints(estimator, X, budget)
        y = read_targets(y, False, entries)
        known = _known((None, y, sample_weight), missing, outliers, entries)
        if known is not None:
            sample_weight = known * (1.0 if sample_weight is None else sample_weight)
    else:
        X, groups = unmasked(X), unmasked(groups)
        y = read_targets(y, missing != "refuse", entries, None if is_array(X) else X)
        given = X, y, _of_each_row(sample_weight, len(y)), groups
        known = _known(given, missing, outliers, entries)
        if known is not None:
            X, y, sample_weight, groups = (None if part is None else some_rows(part, known) for part in given)
        targets = _level_targets(estimator, X, y, sample_weight, groups)
        if targets is not None and known is not None and sample_weight is not None:
            targets = targets._replace(
                many=many_texts(given[0])
            )  # one encoding, whichever rows have weight 0
        encoder, numbers = read_inputs_at_fit(estimator, X, budget, missing, targets)
    rows = read_rows(numbers, y, sample_weight, groups).counted()
    if missing == "skip":
        rows = rows.some(without_skipped(rows.X))
    if rows.group is not None and (rows.group == rows.group[0]).all():
        raise ValueError("groups puts all rows into one group; at least two are needed")
    entries |= _notes_of(encoder)
    warn_of_columns(encoder)
    if rows.group is None:
        of_numbers = rows.X if inputs is Inputs.NUMBERS else None
        group, in_time = groups_in_time(of_numbers, rows.y, encoder, new_rows)
        # In pools, which also predict between the training rows: statistics of whole other blocks differ from those at predict: 95 % intervals of air fares held .86 of a random fifth.
        if group is not None and new_rows != EITHER and targets and getattr(encoder, "needs_targets", False):
            of_blocks = typing.cast(TableEncoder, encoder).in_folds(numbers, X, targets._replace(group=group))
            rows = dataclasses.replace(rows, X=of_blocks)
        rows, entries = dataclasses.replace(rows, group=group), entries | in_time
    return rows.merged(inputs is Inputs.FINGERPRINTS), encoder, entries


def _notes_of(encoder: Encoder | None) -> dict[str, Any]:
    if not isinstance(encoder, TableEncoder) or not encoder.notes:
        return {}
    return {"columns": choice(encoder.notes, "what of the table's columns was not taken as it stands")}


def _known(
    given: tuple[Any, ...], missing: str, outliers: str, entries: dict[str, Any]
) -> Bool[np.ndarray, " N"] | None:
    """Which rows of X, y, … have a weight, a target and any input, None for all; warns of rows without the last two, and adds what `plan_` says of them.

    What is of another length is refused by who reads it. Raises ValueError where no row is left.
    """
    X, y, weight = given[:3]
    if any(_length(part) != len(y) for part in given if part is not None):
        return None
    codes, said = checked_targets(y, weight, outliers, missing == "refuse")
    if said:
        warn(f"{said}; they are learned from, and may be errors", UserWarning, stacklevel=FIT)
        entries["target_outliers"] = choice(outliers, said)
    rho, unknown, empty = read_weights(weight, y, True), np.isnan(y), np.zeros(len(y), bool)
    empty = empty if X is None or missing == "refuse" else rows_without_values(X)
    kept = np.ones(len(y), bool) if rho is None or not rho.any() else rho > 0
    drop = unknown | empty | codes
    if not drop.any():
        return None if kept.all() else kept
    if drop.all():
        what = "X contains NaN in all rows" if empty.all() else "y contains NaN in all rows that have inputs"
        raise ValueError(f"Input {what}: there is nothing to learn from")
    reasons = [(unknown, "without a target"), (empty & ~unknown, "without any input")]
    reasons += [(codes & (y == value), f"with {CODE.format(value)}") for value in np.unique(y[codes])]
    why = " and ".join(
        f"{int(which.sum())} {what} (the first: data row {int(np.argmax(which)) + 1})"
        for which, what in reasons
        if which.any()
    )
    entry = choice(int(drop.sum()), f"of {len(y)} are not learned from: {why}")
    warn(f"{entry['choice']} rows {entry['why']}", UserWarning, stacklevel=FIT)
    entries["unused_rows"] = entry
    return kept & ~drop


def _length(part: Any) -> int | None:
    """Of rows; None for what is no table, array or series."""
    if hasattr(part, "toarray"):  # sparse, which is refused
        return None
    shape = getattr(part, "shape", None)
    size = shape if isinstance(shape, tuple) else (len(part),) if hasattr(part, "__len__") else ()
    return int(size[0]) if size else None


def _level_targets(
    estimator: Any, X: Any, y: Float[np.ndarray, " N"], sample_weight: Any, groups: Any
) -> LevelTargets | None:
    """What columns of many levels are encoded by: of tables, whose arrays have no text. Folds are those of `random_state` where that is a number."""
    if is_array(X) or _length(X) != len(y):
        return None
    group = None if groups is None else read_groups(groups, len(y))
    kind = getattr(estimator, "target", "real")
    weight = read_weights(sample_weight, y)
    return LevelTargets.of(y, _seed(estimator), group, kind, is_classifier(estimator), weight)


def _seed(estimator: Any) -> int:
    seed = estimator.random_state
    return int(seed) if isinstance(seed, int | np.integer) else 0


def read_rows(
    X: np.ndarray,
    y: Any,
    sample_weight: Any,
    groups: Any = None,
    *,
    joins: Encoder | None = None,
    may_weigh_nothing: bool = False,
) -> Rows:
    """Checked rows of inputs that are numbers already, in their order. `joins` is the encoder of a fitted model whose rows they join.

    Raises ValueError, naming the row, for targets, weights and groups that cannot be used, for all weights 0 unless that may be, and for packed
    fingerprints that the encoder has no bits for.
    """
    if is_packed(joins):
        refuse_further_counts(X)
    y = read_targets(y)
    check_consistent_length(X, y)
    group = None if groups is None else read_groups(groups, len(y))
    return Rows(X, y, read_weights(sample_weight, X, may_weigh_nothing), group)


def name_of_targets(y: Any) -> str | None:
    """That of a series; y itself where it is the name of a column of files."""
    name = y if isinstance(y, str) else getattr(y, "name", None)
    return name if isinstance(name, str) else None


def refuse_no_targets(estimator: BaseEstimator, y: Any) -> None:
    """Raises ValueError, as scikit-learn words it, where y is None."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")


def read_inputs(
    estimator: BaseEstimator, encoder: Encoder | None, X: Any, budget: Budget
) -> Float[np.ndarray, "N D"]:
    """The numbers of a table or an array given to a fitted estimator."""
    if isinstance(encoder, FingerprintEncoder | MoleculeEncoder):
        is_table = not isinstance(X, Fingerprints) and hasattr(type(X), "columns")
        if isinstance(encoder, FingerprintEncoder) and is_table:
            X = TableEncoder.fit(X).transform(X)
        return encoder.transform(X)
    X = unmasked(X)
    if encoder is None or not encoder.named:
        X = validate_data(estimator, X, reset=False, dtype=_FLOATS, ensure_all_finite=False)
    if encoder is None:
        refuse_not_finite(X)
        return X
    X, notes = _encoded(encoder, X, budget)
    for note in notes:
        logger.info(note)
        if isinstance(note, Caution):
            warn(note, UserWarning, stacklevel=4)
        else:
            say(getattr(estimator, "verbose", 0), note)
    return X


def warn_of_columns(encoder: Encoder | None) -> None:
    """Warns of values of the training table that are not taken as they are, or may be wrong."""
    for caution in encoder.cautions if isinstance(encoder, TableEncoder) else ():
        warn(caution, UserWarning, stacklevel=5)


def read_targets(
    y: Any, allow_missing: bool = False, entries: dict[str, Any] | None = None, table: Any = None
) -> Float[np.ndarray, " N"]:
    """y [N] in float64, NaN where missing; a column vector is taken with scikit-learn's DataConversionWarning, text where all of it is numbers.

    Texts have the decimal mark of the `table` of inputs, if there is one. Durations become seconds, and times of day hours, with a warning;
    `entries` get what `plan_` says of that. Dates are refused.
    """
    y = column_or_1d(unmasked(y), warn=True)
    if y.dtype.kind == "c":
        raise ValueError("Complex data not supported: y must be real numbers")
    try:
        if y.dtype.kind in "mM":  # NumPy would take their counts of some unit
            raise TypeError(f"{y.dtype}")
        y = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        try:
            mark = "" if table is None else decimal_mark_of(table)
            column = read_column("y", y, allow_missing=True)
            y = target_numbers(column, mark=mark)
            if column.note and entries is not None:
                entries["target_unit"] = choice(column.note, "what targets are, and predictions")
        except ValueError as refusal:
            raise ValueError(f"y must be numbers: {refusal}") from error
    there = y[np.isfinite(y)]
    if len(there) and 0 < (width := np.max(there) - np.min(there)) < SMALLEST_RANGE:
        raise ValueError(f"the targets differ by {width:.3g} at most: give them in a smaller unit")
    bad = np.abs(y) > LARGEST_TARGET if allow_missing else ~(np.abs(y) <= LARGEST_TARGET)
    if bad.any():
        row = int(np.argmax(bad))
        what = "NaN" if np.isnan(y[row]) else "infinity or a value beyond 1e150"
        raise ValueError(
            f"Input y contains {what}: {int(bad.sum())} such, the first at row {row + 1} (rows count from 1)"
        )
    return y


def read_labels(estimator: BaseEstimator, y: Any) -> tuple[Shaped[np.ndarray, " C"], Float[np.ndarray, " N"]]:
    """(The classes, sorted; the number of each row's, NaN where the label is missing). Raises ValueError where labels are no classes, and, with `missing="refuse"`, where any is missing."""
    refuse_no_targets(estimator, y)
    y = unmasked(y)
    unknown = missing_labels(y)
    if unknown.all() or getattr(estimator, "missing", "refuse") == "refuse":
        refuse_missing(y, "the label")
    labels = column_or_1d(y, warn=True)
    known = (
        np.asarray(labels[~unknown].tolist()) if unknown.any() else labels
    )  # in the dtype that they have alone
    check_classification_targets(known)
    if unknown.any() and known.dtype.kind == "f" and (known == np.floor(known)).all():
        known = known.astype(np.int64)  # NumPy and pandas make floats of integers beside a missing one
    classes, numbers = np.unique(known, return_inverse=True)
    found = np.full(len(labels), np.nan)
    found[~unknown] = numbers
    return classes, found


def refuse_one_class(classes: Shaped[np.ndarray, " C"], numbers: Float[np.ndarray, " N"]) -> None:
    """Raises ValueError where the rows to learn from are all of one of the classes."""
    if len(np.unique(numbers)) < 2:
        only = classes.tolist()[int(numbers[0])]
        raise ValueError(f"y has one class only, {only!r}: at least two are needed")


def read_weights(
    sample_weight: Any, X: np.ndarray, may_be_nothing: bool = False
) -> Float[np.ndarray, " N"] | None:
    """The weights [N]; one number stands for all rows; None where none are given.

    Raises ValueError for another shape, negative ones, those beyond 1e30, and a sum of 0 unless that may be.
    """
    if sample_weight is None:
        return None
    given = _of_each_row(sample_weight, len(X))
    found = np.asarray(check_array(given, ensure_2d=False, dtype="float64", input_name="sample_weight"))
    if found.shape != (len(X),):
        raise ValueError(
            f"sample_weight has the shape {found.shape} for {len(X)} rows; it must be [{len(X)}]"
        )
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        raise ValueError(f"sample_weight is negative, {found[row]:g}, at row {row + 1} (rows count from 1)")
    if (found > LARGEST_WEIGHT).any():
        row = int(np.argmax(found > LARGEST_WEIGHT))
        raise ValueError(
            f"sample_weight is {found[row]:g} at row {row + 1} (rows count from 1); a weight is the number of rows that a row stands for, at "
            f"most {LARGEST_WEIGHT:g}"
        )
    if not may_be_nothing and found.sum() < np.finfo(np.float32).tiny:
        raise ValueError("the sum of sample_weight is zero, or too small a number")
    return found


def _of_each_row(sample_weight: Any, n_rows: int) -> Any:
    """One number as the weight of every row; anything else as it is, with NaN, which is refused, in place of masked values."""
    return np.full(n_rows, sample_weight) if np.isscalar(sample_weight) else unmasked(sample_weight)


def read_groups(groups: Any, n_rows: int) -> Int32[np.ndarray, " N"]:
    """Numbers, from 0, of what says for each row which group it is in: numbers, text, or anything else that can be sorted."""
    groups = unmasked(groups)
    found = np.asarray(groups)
    refuse_missing(groups, "the group")
    if found.shape != (n_rows,):
        raise ValueError(
            f"groups must have one entry for each of the {n_rows} rows, but has shape {found.shape}"
        )
    try:
        number = np.unique(found, return_inverse=True)[1]
    except TypeError as error:
        raise ValueError(f"groups must be numbers or text, of one kind: {error}") from error
    return number.astype(np.int32)


def refuse_missing(labels: Any, what: str) -> None:
    """ValueError, with the first row, for labels that are None or NaN."""
    missing = missing_labels(labels)
    if missing.any():
        row, count = int(np.argmax(missing)) + 1, int(missing.sum())
        raise ValueError(f"{what} of row {row} is missing, {count} of {missing.size} are (rows count from 1)")


def missing_labels(labels: Any) -> Bool[np.ndarray, " N"]:
    """Which labels are None or NaN; in a list, before NumPy makes text of them."""
    values = np.asarray(labels) if hasattr(labels, "dtype") else np.asarray(labels, object)
    values = values.reshape(-1)
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), bool)
    return np.array([is_missing(value) for value in values], bool)


def read_inputs_at_fit(
    estimator: Any, X: Any, budget: Budget, missing: str, targets: LevelTargets | None = None
) -> tuple[TableEncoder | None, np.ndarray]:
    """(What encodes the table, None for an array of which nothing is imputed; the numbers); sets `n_features_in_` and `feature_names_in_`."""
    if not is_array(X):
        encoder = TableEncoder.fit(X, missing=missing, targets=targets)
        numbers = _encoded(encoder, X, budget, targets)[0]
        has_names = all(isinstance(name, str) for name in getattr(X, "column_names", X.columns))
        names = [rule.name for rule in encoder.columns]
        name_inputs(estimator, len(names), names if has_names else None)
        return encoder, numbers
    X = validate_data(estimator, X, dtype=_FLOATS, ensure_all_finite=False)
    if missing == "refuse":
        refuse_not_finite(X)
        return None, X
    encoder = TableEncoder.fit(X, missing=missing)
    return encoder, _encoded(encoder, X, budget)[0]


def _encoded(
    encoder: TableEncoder, X: Any, budget: Budget, targets: LevelTargets | None = None
) -> tuple[np.ndarray, list[str]]:
    """(The numbers of a table, if they fit; what is to be said of them). Of the training table with its `targets`; an array that stays as it is is no copy."""
    if (
        encoder.is_plain
        and isinstance(X, np.ndarray)
        and X.shape[1:] == (len(encoder.columns),)
        and is_finite(X)
    ):
        return X, []
    n_columns = len(encoder.output_names)
    budget.require(8 * len(X) * n_columns, f"a matrix of {len(X)} rows and {n_columns} columns")
    if targets is not None and encoder.needs_targets:
        return encoder.training_matrix(X, targets), []
    return encoder.encoded(X)
