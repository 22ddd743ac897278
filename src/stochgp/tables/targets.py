"""Checked targets, labels, weights and groups, from arrays, tables and files."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int32, Shaped

from stochgp.context import FitContext
from stochgp.exceptions import DataWarning
from stochgp.warning import warn

from .columns import (
    DURATIONS,
    LARGEST,
    OF_DAY,
    Column,
    TableError,
    column_named,
    is_missing,
    read_column,
    rewording,
    row_of_first,
    unmasked,
)
from .readings import Reading, as_read, reading_of
from .rules import MAX_APART, MAX_CATEGORIES, MIN_ROWS, isolated

MAX_CLASSES = 1_000  # maximum number of different labels
LARGEST_WEIGHT = 1e30  # the product of this weight with a precision is still a float32
# Minimum for outliers: robust standard deviations from the median; ratio to the distance of the next value;
# robust standard deviations of log |y| from the next value, if all targets have the same sign.
FAR_TARGET, ISOLATED_TARGET, ISOLATED_LOG = 20.0, 5.0, 4.0
REPEATED = 3  # minimum number of outliers with the same value
SHOWN = 5  # maximum number of targets in a message
FILLS = ("32767", "32768", "65535", "2.147484e+09", "9.223372e+18")  # the ends of integer types
MIN_RANGE = 1e-150  # minimum range of targets; the square of the range must not be 0


def target_column(
    table: Any, name: str, allow_missing: bool = False, reads_text: bool = True
) -> Float64[np.ndarray, " N"]:
    """Return the column `name` of a data frame as float64.

    All texts must be numbers, such as $1,200 or 12%. Raises ValueError if the column is absent or contains
    dates, other text, infinite values or, unless allowed, missing values.

    Parameters
    ----------
    table : data frame
        A data frame of pandas, polars or pyarrow.
    name : str
        The name of the target column.
    allow_missing : bool
        True: missing values become NaN. False: missing values raise ValueError.
    reads_text : bool
        False: text of any kind raises ValueError.
    """
    with rewording(lambda text: f"target {text}"):
        return target_numbers(column_named(table, name, allow_missing), reads_text)


def target_numbers(column: Column, reads_text: bool = True) -> Float64[np.ndarray, " N"]:
    """Return the numbers of a column, NaN if missing. Raises TableError for other columns."""
    what = f"column {column.name!r} contains"
    if column.kind == "time":
        raise TableError(f"{what} dates or times; the target must be numbers, such as days since a date")
    if column.kind != "text":
        if column.note in (OF_DAY, DURATIONS):
            warn(f"targets and predictions are {column.note}", DataWarning, stacklevel=3)
        return column.values
    reading, read = reading_of(column, True) if reads_text else (None, column)
    if reading is None or reading.kind != "number":
        bad = ~column.missing if reading is not None else as_read(Reading("number"), column)[1]
        shown = f"{column.values[int(np.argmax(bad))].as_py()!r} at data row {row_of_first(bad)}"
        raise TableError(f"{what} text ({shown}); the target must be numbers")
    if read.caution:
        warn(f"target {column.name!r}: {read.caution}", DataWarning, stacklevel=3)
    return read.values


def holds_classes(table: Any, name: str) -> bool:
    """Return True for labels (text or booleans). Raises TableError for unclear columns."""
    column = _named_column(table, name, allow_missing=True)
    if column.kind != "text":
        return column.kind == "boolean"
    reading = reading_of(column, strict=True)[0]
    if reading is not None and reading.kind == "number":
        return False
    stray = as_read(Reading("number"), column)[1]
    n_different = len(column.values.drop_null().unique())
    faults = {
        "dates or times as text": reading is not None and reading.kind != "boolean",
        f"text (most are numbers, but not all: {column.first(stray)})": 0 < 2 * stray.sum() < len(stray),
        f"text with {n_different} different values": n_different > MAX_CATEGORIES,
    }
    for fault in [fault for fault, holds in faults.items() if holds]:
        remedy = "if its values are class labels, set --task classes"
        raise TableError(f"target column {name!r} contains {fault}; {remedy}")
    return True


def label_column(table: Any, name: str) -> Shaped[np.ndarray, " N"]:
    """Return the column `name` of a data frame as class labels.

    Booleans and whole numbers become integers, and other numbers float64. Raises ValueError if the column is
    absent or contains dates or missing values.

    Parameters
    ----------
    table : data frame
        A data frame of pandas, polars or pyarrow.
    name : str
        The name of the column.
    """
    column = _named_column(table, name)
    if column.kind == "time":
        raise TableError(f"target column {name!r} contains dates or times; classes must be text or numbers")
    if column.kind == "text":
        return np.array(column.values.to_pylist(), dtype=object)
    with np.errstate(invalid="ignore"):  # numbers too large for integers
        whole = column.values.astype(np.int64)
    return whole if (whole == column.values).all() else column.values


def with_labels(labels: Shaped[np.ndarray, " C"] | None, table: Any, name: str) -> Shaped[np.ndarray, " L"]:
    """Return sorted labels, including those of a block. Raises TableError for too many."""
    found, what = np.unique(label_column(table, name)), f"target column {name!r} contains"
    if labels is not None and len(found):
        if (labels.dtype == object) != (found.dtype == object):
            raise TableError(f"{what} text in some files and numbers in other files")
        found = np.unique(np.concatenate([labels, found]))
    if len(found) > MAX_CLASSES:
        raise TableError(f"{what} more than {MAX_CLASSES} different labels, too many for classes")
    return found


def _named_column(table: Any, name: str, allow_missing: bool = False) -> Column:
    with rewording(lambda text: f"target {text}"):
        return column_named(table, name, allow_missing)


def refuse_no_counts(y: np.ndarray) -> None:
    """Raise ValueError, with the first row, for targets that are not counts."""
    bad = (y < 0) | (y != np.floor(y))
    if bad.any():
        found = f"{bad.sum()} of {bad.size} targets are not, such as {y[np.argmax(bad)]:g} at data row {row_of_first(bad)}"
        raise ValueError(f"counts must be whole numbers of at least 0, but {found}")


def name_of_targets(y: Any) -> str | None:
    """Return the name of a series, or y if it is the name of a column in files."""
    name = y if isinstance(y, str) else getattr(y, "name", None)
    return name if isinstance(name, str) else None


def refuse_no_targets(estimator: Any, y: Any) -> None:
    """Raise ValueError, with the text of scikit-learn, if y is None."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")


def read_targets(y: Any, allow_missing: bool = False, context: FitContext | None = None) -> np.ndarray:
    """Return y [N] in float64, NaN if missing; durations in seconds, times of day in hours."""
    from sklearn.utils.validation import column_or_1d  # slow to import

    y = column_or_1d(unmasked(y), warn=True)
    if y.dtype.kind == "c":
        raise ValueError("Complex data not supported: y must be real numbers")
    try:
        if y.dtype.kind in "mM":  # NumPy would convert them to counts of a unit
            raise TypeError(f"{y.dtype}")
        y = np.asarray(y, np.float64)
    except (TypeError, ValueError):
        with rewording(lambda text: f"y must be numbers: {text}"):
            column = read_column("y", y, allow_missing=True)
            y = target_numbers(column)
        if column.note and context is not None:
            context.record("target_unit", column.note, "the unit of targets and predictions")
    there = y[np.isfinite(y)]
    if len(there) and 0 < (width := np.max(there) - np.min(there)) < MIN_RANGE:
        raise ValueError(f"the targets differ by at most {width:.3g}; use a smaller unit")
    bad = np.abs(y) > LARGEST if allow_missing else ~(np.abs(y) <= LARGEST)
    if bad.any():
        what = "NaN" if np.isnan(y[np.argmax(bad)]) else "infinity or a value beyond 1e150"
        place = f"{bad.sum()} such value(s), the first at row {row_of_first(bad)} (rows count from 1)"
        raise ValueError(f"Input y contains {what}: {place}")
    return y


def read_labels(estimator: Any, y: Any) -> tuple[Shaped[np.ndarray, " C"], Float[np.ndarray, " N"]]:
    """Return the sorted classes and the class index of each row (NaN for a missing label)."""
    from sklearn.utils.multiclass import check_classification_targets  # slow to import
    from sklearn.utils.validation import column_or_1d

    refuse_no_targets(estimator, y)
    y = unmasked(y)
    unknown = missing_labels(y)
    if unknown.all() or getattr(estimator, "missing", "refuse") == "refuse":
        missing_labels(y, "the label")
    labels = known = column_or_1d(y, warn=True)
    if unknown.any():
        known = np.asarray(labels[~unknown].tolist())  # with the dtype of the known labels
    check_classification_targets(known)
    if unknown.any() and known.dtype.kind == "f" and (known == np.floor(known)).all():
        known = known.astype(np.int64)  # integers with a missing value are floats in pandas
    found = np.full(len(labels), np.nan)
    classes, found[~unknown] = np.unique(known, return_inverse=True)
    return classes, found


def refuse_one_class(
    classes: Shaped[np.ndarray, " C"], numbers: Float[np.ndarray, " N"], name: str = "y"
) -> None:
    """Raise ValueError if all training rows have the same class."""
    if len(np.unique(numbers)) < 2:
        only = classes.tolist()[int(numbers[0])]
        raise ValueError(f"{name} has only one class, {only!r}; at least two classes are needed")


def read_weights(sample_weight: Any, X: np.ndarray, may_be_nothing: bool = False) -> np.ndarray | None:
    """Return the weights [N]; one number applies to all rows. Raises ValueError if invalid."""
    if sample_weight is None:
        return None
    given, N = (
        np.full(len(X), sample_weight) if np.isscalar(sample_weight) else unmasked(sample_weight),
        len(X),
    )
    found = checked_weights(np.asarray(given, np.float64))  # NaN if masked
    if found.shape != (N,):
        raise ValueError(f"sample_weight has the shape {found.shape} for {N} rows; the shape must be [{N}]")
    if not may_be_nothing and found.sum() < np.finfo(np.float32).tiny:
        raise ValueError("the sum of sample_weight is zero or too small")
    return found


def checked_weights(weight: np.ndarray, name: str = "sample_weight", row: str = "row") -> np.ndarray:
    """Return the weights [N]. Raises ValueError for negative, missing or huge weights."""
    bad = (weight < 0) if (weight < 0).any() else ~(weight <= LARGEST_WEIGHT)
    if bad.any():
        value, place = weight[np.argmax(bad)], f"at {row} {row_of_first(bad)} (rows count from 1)"
        what = f"negative, {value:g}," if value < 0 else f"{value:g}, not between 0 and {LARGEST_WEIGHT:g},"
        raise ValueError(f"{name} is {what} {place}")
    return weight


def read_groups(groups: Any, n_rows: int) -> Int32[np.ndarray, " N"]:
    """Return group numbers from 0. `groups` has a value for each row: a number or text."""
    groups = unmasked(groups)
    found = np.asarray(groups)
    missing_labels(groups, "the group")
    if found.shape != (n_rows,):
        raise ValueError(f"groups needs one entry for each of {n_rows} rows, but has the shape {found.shape}")
    try:
        return np.unique(found, return_inverse=True)[1].astype(np.int32)
    except TypeError as error:
        raise ValueError(f"groups must all be numbers, or must all be text: {error}") from error


def missing_labels(labels: Any, refused: str = "") -> Bool[np.ndarray, " N"]:
    """Return a mask of missing labels. Raises ValueError if `refused` names the labels."""
    values = np.asarray(labels) if hasattr(labels, "dtype") else np.asarray(labels, object)
    if values.dtype.kind not in "fO":
        return np.zeros(values.size, bool)
    missing = np.array([is_missing(value) for value in values.ravel().tolist()], bool)
    if refused and missing.any():
        what = f"{refused} of row {row_of_first(missing)} is missing (rows count from 1)"
        raise ValueError(f"{what}; {missing.sum()} of {missing.size} values are missing")
    return missing


def checked_targets(
    y: Float[np.ndarray, " N"], weight: Any, refuses: bool = False, leaves_out: bool = True,
) -> tuple[Bool[np.ndarray, " N"], str]:  # fmt: skip
    """Return a mask of codes for missing targets, or refuse them, and a note on outliers."""
    has_weights = np.shape(weight) == y.shape
    codes, far = target_outliers(np.where(np.asarray(weight) == 0, np.nan, y) if has_weights else y)
    is_refused = refuses and codes.any()
    rows = np.flatnonzero(far if leaves_out and not is_refused else codes | far)
    if len(rows) == 0:
        return codes, ""
    place = lambda row: f" at data row {row + 1}" if leaves_out else ""  # a sample has another order
    shown = ", ".join(f"{y[row]:.10g}{place(row)}" for row in rows[:SHOWN])
    said = f"{len(rows)} target(s) are more than {FAR_TARGET:g} robust standard deviations from the median, beyond a gap: {shown}"
    if is_refused:
        raise ValueError(f"{said}; set missing='keep' to use these targets")
    return codes, said


def target_outliers(y: Float[np.ndarray, " N"]) -> tuple[Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Return masks of targets that are codes for missing values, and of other outliers.

    Both kinds are more than 20 robust standard deviations from the median, beyond a gap. A robust standard
    deviation is 1.4826 times the median distance from the median. Codes are 99, −99.9 …, powers of ten
    from 10⁵, limits of integer types, values from 10³⁰, and values ≠ 0 that 3 or more outliers share.
    """
    there = np.flatnonzero(~np.isnan(y))
    codes, far, values = np.zeros(len(y), bool), np.zeros(len(y), bool), y[there]
    if len(values) < MIN_ROWS or np.ptp(values) == 0:
        return codes, far
    center = float(np.median(values))
    distance = np.abs(values - center)
    scale = 1.4826 * float(np.median(distance) or np.median(distance[distance > 0]))
    apart = isolated(values, center, FAR_TARGET * scale, ISOLATED_TARGET)
    for value, count in zip(*np.unique(values[apart], return_counts=True), strict=True):
        is_code = REPEATED <= count <= MAX_APART * len(values) or _is_fill(abs(value))
        is_code = is_code and value != 0 and _is_beyond_in_logs(value, values[~apart])
        (codes if is_code else far)[there[values == value]] = True
    return codes, far & (far.sum() <= MAX_APART * len(values))


def _is_fill(size: float) -> bool:
    """Return True if a number of this size often stands for a missing value."""
    text = f"{size:.7g}"
    digits = text.replace(".", "")
    is_power = size >= 1e5 and text.split("e", 1)[0].rstrip("0") == "1"
    return is_power or text in FILLS or size >= 1e30 or (len(digits) > 1 and set(digits) == {"9"})


def _is_beyond_in_logs(value: float, bulk: Float[np.ndarray, " n"]) -> bool:
    """Return True if a value is far from all others in logarithms, or has another sign."""
    sizes = np.sign(value) * bulk
    if (sizes < 0).any() or not (sizes > 0).any():
        return True
    logs = np.log(sizes[sizes > 0])
    spread = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return bool(np.log(abs(value)) - logs.max() > ISOLATED_LOG * spread)
