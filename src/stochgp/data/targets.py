"""How the target's column becomes numbers or labels: of a table, and of files block by block."""

import abc
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from stochgp.names import did_you_mean

from .columns import Column, TableError, first_not_number, read_column, table_columns
from .rules import refuse_foreign, refuse_no_labels

LABELS = "; if its values are labels of classes, give --task classes"
MOST_CLASSES = 1_000  # different labels that are remembered


class AbstractTargets(abc.ABC):
    """What the numbers of a target's column stand for. What is wrong with a block's is said with its data row.

    scaled   whether models may standardise what they learn from
    """

    scaled: ClassVar[bool] = True

    def sees(self, table: Any, name: str) -> "AbstractTargets":
        """What is known after the rows of this block, in the first pass over all of them."""
        return self

    @abc.abstractmethod
    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        """Those of a block, by which rows are divided too."""

    def learned(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """What a model learns from, of these numbers."""
        return y


class RealTargets(AbstractTargets):
    """Numbers as they are."""

    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        return target_column(table, name)


REAL = RealTargets()


class CountTargets(AbstractTargets):
    """Whole numbers of at least 0."""

    scaled: ClassVar[bool] = False

    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        y = target_column(table, name)
        refuse_targets(name, y, _no_counts(y), "counts are whole numbers of at least 0")
        return y


@dataclass(frozen=True, eq=False)
class ClassTargets(AbstractTargets):
    """The number of each label among `levels`, all that the files hold, sorted."""

    levels: Shaped[np.ndarray, " C"] | None = None  # None = no rows seen yet
    scaled: ClassVar[bool] = False

    def sees(self, table: Any, name: str) -> "ClassTargets":
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
        levels: Any = self.levels
        return np.searchsorted(levels, label_column(table, name)).astype(np.float64)


def refuse_targets(name: str, y: Float[np.ndarray, " N"], bad: Bool[np.ndarray, " N"], wanted: str) -> None:
    """Raises TableError, with the first data row, for targets of a block that cannot be learned."""
    if bad.any():
        row = int(np.argmax(bad))
        raise TableError(f"target column {name!r} holds {y[row]:g} at data row {row + 1}; {wanted}")


def target_column(table: Any, name: str, source: str = "the table") -> Float64[np.ndarray, " N"]:
    """The numeric column `name` of a data frame, as float64.

    Raises ValueError where it is absent (with the nearest name), holds text or dates, or has missing or infinite
    values (with the first data row and the count). `source` is what messages call the table.
    """
    column = _named_column(table, name, source)
    if column.kind == "text":
        texts = column.values.to_pylist()
        with _naming_target(source):
            refuse_foreign(name, texts)
        first = first_not_number(texts) or 0
        raise TableError(
            f"{source}, target column {name!r} holds text ({texts[first]!r} at data row {first + 1}); "
            "the target must be numbers"
        )
    if column.kind == "time":
        raise TableError(
            f"{source}, target column {name!r} holds dates or times; the target must be numbers, such as days since a start"
        )
    return column.values


def holds_classes(table: Any, name: str, source: str = "the table") -> bool:
    """Whether the column `name` holds labels of classes: text or booleans.

    Raises ValueError where it is absent, and for text that is mostly numbers or dates (with the first data row of another text), that
    is numbers or dates in a form that is not read, or that has more than 50 different values.
    """
    column = _named_column(table, name, source, allow_missing=True)
    if column.kind == "text":
        with _naming_target(source, LABELS):
            refuse_no_labels(column)
    return column.kind in ("text", "boolean")


def label_column(table: Any, name: str, source: str = "the table") -> Shaped[np.ndarray, " N"]:
    """The column `name` of a data frame as labels of classes: text as objects, booleans and whole numbers as integers, other numbers as float64.

    Raises ValueError where it is absent (with the nearest name), holds dates, or has missing values.
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
    with _naming_target(source):
        return read_column(name, columns[name], allow_missing)


@contextlib.contextmanager
def _naming_target(source: str, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except TableError as error:
        raise TableError(f"{source}, target {error}{remedy}") from error


def refuse_no_counts(y: np.ndarray) -> None:
    """Raises ValueError, giving the first, for targets that are no counts."""
    bad = _no_counts(y)
    if bad.any():
        first = y[int(np.argmax(bad))]
        raise ValueError(
            f"counts are whole numbers of at least 0, but {bad.sum()} of {bad.size} targets are not, such as {first:g}"
        )


def _no_counts(y: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Which are no whole numbers of at least 0."""
    return (y < 0) | (y != np.floor(y))
