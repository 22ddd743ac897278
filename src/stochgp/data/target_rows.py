"""Targets, labels, weights and groups as `fit` is given them: checked numbers."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from stochgp.context import FitContext
from stochgp.tables.columns import is_missing, read_column, unmasked
from stochgp.tables.targets import target_numbers

LARGEST_WEIGHT = 1e30  # its product with a precision is still a float32
MAX_TARGET, MIN_RANGE = 1e150, 1e-150  # whose squares are still numbers, and not 0


def name_of_targets(y: Any) -> str | None:
    """That of a series; y itself where it is the name of a column of files."""
    name = y if isinstance(y, str) else getattr(y, "name", None)
    return name if isinstance(name, str) else None


def refuse_no_targets(estimator: BaseEstimator, y: Any) -> None:
    """Raises ValueError, as scikit-learn words it, where y is None."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")


def read_targets(
    y: Any, allow_missing: bool = False, context: FitContext | None = None
) -> Float[np.ndarray, " N"]:
    """y [N] in float64, NaN where missing; a column vector is taken with scikit-learn's DataConversionWarning, text where all of it is numbers.

    Durations become seconds, and times of day hours, with a warning, which
    is recorded in the context. Dates are refused.
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
            column = read_column("y", y, allow_missing=True)
            y = target_numbers(column)
            if column.note and context is not None:
                context.record("target_unit", column.note, "the unit of targets and predictions")
        except ValueError as refusal:
            raise ValueError(f"y must be numbers: {refusal}") from error
    there = y[np.isfinite(y)]
    if len(there) and 0 < (width := np.max(there) - np.min(there)) < MIN_RANGE:
        raise ValueError(f"the targets differ by {width:.3g} at most: give them in a smaller unit")
    bad = np.abs(y) > MAX_TARGET if allow_missing else ~(np.abs(y) <= MAX_TARGET)
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
    # Masked weights become NaN, which is refused.
    given = np.full(len(X), sample_weight) if np.isscalar(sample_weight) else unmasked(sample_weight)
    found = np.asarray(check_array(given, ensure_2d=False, dtype="float64", input_name="sample_weight"))
    if found.shape != (len(X),):
        raise ValueError(
            f"sample_weight has the shape {found.shape} for {len(X)} rows; it must be [{len(X)}]"
        )
    found = checked_weights(found)
    if not may_be_nothing and found.sum() < np.finfo(np.float32).tiny:
        raise ValueError("the sum of sample_weight is zero, or too small a number")
    return found


def checked_weights(
    weight: Float[np.ndarray, " N"], name: str = "sample_weight", row: str = "row"
) -> Float[np.ndarray, " N"]:
    """The weights. Raises ValueError, with the first row, for negative ones and those beyond 1e30."""
    most = f"; a weight is the number of rows that a row stands for, at most {LARGEST_WEIGHT:g}"
    for bad, what, end in ((weight < 0, "negative, ", ""), (weight > LARGEST_WEIGHT, "", most)):
        if bad.any():
            first = int(np.argmax(bad))
            raise ValueError(
                f"{name} is {what}{weight[first]:g}{',' if what else ''} at {row} {first + 1} (rows count from 1){end}"
            )
    return weight


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
