"""How the target's column becomes numbers or labels: of a table, and of files block by block."""

import logging
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from stochgp.names import did_you_mean
from stochgp.warning import warn

from .columns import (
    DURATIONS,
    OF_DAY,
    Column,
    TableError,
    read_column,
    rewording,
    row_of_first,
    table_columns,
)
from .readings import Reading, as_read, reading_of
from .rules import MAX_LEVELS

logger = logging.getLogger("stochgp.data")

LABELS = "; if its values are labels of classes, give --task classes"
MOST_CLASSES = 1_000  # different labels that are remembered


@dataclass(frozen=True, eq=False)
class FileTargets:
    """How a target's column of files becomes numbers. Errors of a block name its data row.

    Parameters
    ----------
    kind : "real", "count" or "class"
        Numbers as they are; whole numbers of at least 0; the number of each label among `levels`.
    transform : AbstractTransform or None
        T of the numbers that a model learns, without parameters to learn. None = the numbers themselves.
    levels : array [C] or None
        All labels of the files, sorted; None = no rows read yet.
    """

    kind: Literal["real", "count", "class"] = "real"
    transform: Any = None
    levels: Shaped[np.ndarray, " C"] | None = None

    @property
    def scaled(self) -> bool:
        """Whether models may standardise them."""
        return self.kind == "real" or self.transform is not None

    def sees(self, table: Any, name: str) -> "FileTargets":
        """The targets with the labels of this block."""
        if self.kind != "class":
            return self
        found = np.unique(label_column(table, name))
        if self.levels is not None and len(found):
            if (self.levels.dtype == object) != (found.dtype == object):
                raise TableError(f"target column {name!r} holds text in some files and numbers in others")
            found = np.unique(np.concatenate([self.levels, found]))
        if len(found) > MOST_CLASSES:
            raise TableError(
                f"target column {name!r} holds more than {MOST_CLASSES} different labels: no classes"
            )
        return replace(self, levels=found)

    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        """Those of a block, by which rows are divided too. Text is refused: other blocks may write it otherwise."""
        if self.kind == "class":
            levels: Any = self.levels
            return np.searchsorted(levels, label_column(table, name)).astype(np.float64)
        y = target_column(table, name, reads_text=False)
        if self.kind == "count":
            _refuse_targets(name, y, _no_counts(y), "counts are whole numbers of at least 0")
        if self.transform is not None:
            wanted = f"{type(self.transform).__name__} takes targets above {self.transform.lower:g}"
            _refuse_targets(name, y, y <= self.transform.lower, wanted)
        return y

    def learned(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """The targets of a model, of these numbers."""
        if self.transform is None:
            return y
        self.transform.check(y)
        return np.asarray(self.transform(y), np.float64)


REAL = FileTargets()


def _refuse_targets(name: str, y: Float[np.ndarray, " N"], bad: Bool[np.ndarray, " N"], wanted: str) -> None:
    """Raises TableError, with the first data row, for targets of a block that cannot be learned."""
    if bad.any():
        value = y[np.argmax(bad)]
        raise TableError(f"target column {name!r} holds {value:g} at data row {row_of_first(bad)}; {wanted}")


def target_column(
    table: Any, name: str, source: str = "the table", allow_missing: bool = False, reads_text: bool = True
) -> Float64[np.ndarray, " N"]:
    """The column `name` of a data frame, as float64: numbers, or text that is numbers in all rows, such as $1,200 or 12%.

    Raises ValueError if it is absent (with the nearest name), holds other text or dates, or has infinite or, unless these are allowed, missing
    values (with the first data row and the count).

    Parameters
    ----------
    table : data frame
        Of pandas, polars or pyarrow.
    name : str
        The target's column.
    source : str
        What messages call the table.
    allow_missing : bool
        Whether values may be missing; they are NaN.
    reads_text : bool
        False refuses text of any kind.
    """
    column = _named_column(table, name, source, allow_missing)
    with rewording(lambda text: f"{source}, target {text}"):
        return target_numbers(column, reads_text)


def target_numbers(column: Column, reads_text: bool = True) -> Float64[np.ndarray, " N"]:
    """NaN where missing. Raises TableError for a column that holds no numbers."""
    if column.kind == "time":
        raise TableError(
            f"column {column.name!r} holds dates or times; the target must be numbers, such as days since a start"
        )
    if column.kind == "text":
        reading, read, said = reading_of(column, True) if reads_text else (None, column, "")
        if reading is None or reading.kind != "number":
            bad = _no_number(column) if reading is None else ~column.missing
            shown = column.values[int(np.argmax(bad))].as_py()
            raise TableError(
                f"column {column.name!r} holds text ({shown!r} at data row {row_of_first(bad)}); the target must be numbers"
            )
        logger.info("the target is read as numbers: %s", said or "all texts are")
        if read.caution:
            warn(f"target {column.name!r}: {read.caution}", UserWarning, stacklevel=3)
        return read.values
    if column.note in (OF_DAY, DURATIONS):
        warn(f"the targets are {column.note}, and so are predictions", UserWarning, stacklevel=3)
    return column.values


def _no_number(column: Column) -> Bool[np.ndarray, " N"]:
    """Which texts are no numbers, if most are; all otherwise."""
    bad = as_read(Reading("number"), column)[1]
    return bad if 2 * bad.sum() < len(bad) else ~column.missing


def holds_classes(table: Any, name: str, source: str = "the table") -> bool:
    """Whether the column `name` holds labels of classes: text or booleans.

    Text that is numbers in all rows is no label. Raises ValueError if the column is absent, and for text that is mostly numbers (with the first
    data row of another text), that is dates, or that has more than 50 different values.
    """
    column = _named_column(table, name, source, allow_missing=True)
    if column.kind != "text":
        return column.kind == "boolean"
    reading = reading_of(column, strict=True)[0]
    if reading is not None and reading.kind == "number":
        return False
    with rewording(lambda text: f"{source}, target {text}{LABELS}"):
        if reading is not None and reading.kind != "boolean":
            raise TableError(f"column {name!r} holds dates or times as text")
        stray = _no_number(column)
        if 0 < stray.sum() < (~column.missing).sum():
            shown = f"{column.values[int(np.argmax(stray))].as_py()!r} at data row {row_of_first(stray)}"
            raise TableError(f"column {name!r} holds text (most are numbers, but {shown} is not)")
        n_levels = len(column.values.drop_null().unique())
        if n_levels > MAX_LEVELS:
            raise TableError(f"column {name!r} holds text with {n_levels} different values")
    return True


def label_column(table: Any, name: str, source: str = "the table") -> Shaped[np.ndarray, " N"]:
    """The column `name` of a data frame as labels of classes: text as objects, booleans and whole numbers as integers, other numbers as float64.

    Raises ValueError if it is absent (with the nearest name), holds dates, or has missing values.

    Parameters
    ----------
    table, name, source : data frame, str, str
        As of `target_column`.
    """
    column = _named_column(table, name, source)
    if column.kind == "time":
        raise TableError(
            f"{source}, target column {name!r} holds dates or times; classes are text or numbers"
        )
    if column.kind == "text":
        return np.array(column.values.to_pylist(), dtype=object)
    with np.errstate(invalid="ignore"):  # numbers that no integer holds
        whole = column.values.astype(np.int64)
    return whole if (whole == column.values).all() else column.values


def _named_column(table: Any, name: str, source: str, allow_missing: bool = False) -> Column:
    columns = table_columns(table)
    if name not in columns:
        raise ValueError(f"no column {name!r} in {source}; {did_you_mean(name, columns)}")
    with rewording(lambda text: f"{source}, target {text}"):
        return read_column(name, columns[name], allow_missing)


def refuse_no_counts(y: np.ndarray) -> None:
    """Raises ValueError, with the first, for targets that are no counts."""
    bad = _no_counts(y)
    if bad.any():
        first = y[int(np.argmax(bad))]
        raise ValueError(
            f"counts are whole numbers of at least 0, but {bad.sum()} of {bad.size} targets are not, such as {first:g}"
        )


def _no_counts(y: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Which are no whole numbers of at least 0."""
    return (y < 0) | (y != np.floor(y))
