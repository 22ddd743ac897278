"""From a table with text columns to a matrix of numbers, the same way at fit and at predict."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from stochgp.names import did_you_mean, lookup, quoted

from .columns import Column, TableError, first_not_number, is_array, read_column, refuse_spans, table_columns
from .rules import ColumnRule, encode, refuse_foreign, refuse_no_labels, rule_of

REMEDY = '; fit with missing="impute" (--set missing=impute) to fill such values in'
LABELS = "; if its values are labels of classes, give --task classes"
DROP = "; drop it"
_MISSING = ("refuse", "impute")


@dataclass(frozen=True)
class TableEncoder:
    """A table's columns as a float64 matrix [N, D], by rules found on the training table.

    Numbers stay, booleans become 0 and 1, text and categories with at most 50 levels become one 0/1 column per
    level, levels in alphabetical order. Dates and times, also as text of ISO 8601, become days since the first of the
    training rows, and month, weekday and hour where these vary. `named` says that columns are matched by name; where the
    training table was an array, they are matched by position.

    `missing` is "refuse" or "impute": then a missing number or time becomes the median of the training column, a missing
    text has no level, and where the training column had missing values, a further 0/1 column says which they are.
    """

    columns: tuple[ColumnRule, ...]
    target: str | None = None
    named: bool = True
    missing: str = "refuse"

    @classmethod
    def fit(cls, table: Any, target: str | None = None, missing: str = "refuse") -> "TableEncoder":
        """The rules for every column but `target` of a data frame (pandas, polars, pyarrow) or array [N, D].

        Raises TableError, a ValueError, naming the column, for times of day and durations, text with more than 50 levels,
        infinite values and, unless they are imputed, missing ones (with the first data row and the count), columns without
        any value, and types that are neither numbers, dates nor text.
        """
        lookup(missing, dict.fromkeys(_MISSING), "missing")
        columns = table_columns(table)
        inputs = {name: raw for name, raw in columns.items() if name != target}
        if not inputs:
            raise TableError(f"the table has no input columns beside the target {target!r}")
        with _naming_columns_of(table):
            refuse_spans(inputs)
            rules = tuple(
                rule_of(_column(name, raw, missing, DROP), missing == "impute")
                for name, raw in inputs.items()
            )
        return cls(rules, target, not is_array(table), missing)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the D columns of the matrix."""
        return tuple(name for rule in self.columns for name in rule.output_names)

    def transform(self, table: Any) -> Float64[np.ndarray, "N D"]:
        """The matrix of a table: columns by name, in any order; further columns are passed over (`unknown`).

        Raises TableError, naming the column, for a missing column, a level not seen at fit or text that is no date (with the
        row), another kind of values than at fit, infinite values and, unless they are imputed, missing ones.
        """
        inputs = self._matched(table)
        refuse_spans(inputs)
        n_rows = len(next(iter(inputs.values())))
        X = np.zeros((n_rows, len(self.output_names)), np.float64)
        start = 0
        for rule in self.columns:
            stop = start + len(rule.output_names)
            with _naming_columns_of(table):
                encode(rule, _column(rule.name, inputs[rule.name], self.missing), X[:, start:stop])
            start = stop
        return X

    def unknown(self, table: Any) -> tuple[str, ...]:
        """Names of columns that `transform` passes over; the target is not among them."""
        if not self.named or is_array(table):
            return ()
        known = {rule.name for rule in self.columns} | {self.target}
        return tuple(name for name in table_columns(table) if name not in known)

    def _matched(self, table: Any) -> dict[str, Any]:
        columns = table_columns(table)
        names = [rule.name for rule in self.columns]
        if not self.named or is_array(table):
            inputs = [raw for name, raw in columns.items() if is_array(table) or name != self.target]
            if len(inputs) != len(names):
                raise TableError(f"expected {len(names)} columns ({quoted(names)}), got {len(inputs)}")
            return dict(zip(names, inputs, strict=True))
        absent = [name for name in names if name not in columns]
        if absent:
            others = [name for name in columns if name not in names]
            near = (
                f"for {absent[0]!r}, {did_you_mean(absent[0], others)}"
                if others
                else f"it has {quoted(columns)}"
            )
            plural = "s" if len(absent) > 1 else ""
            raise TableError(f"the table lacks the column{plural} {quoted(absent)}; {near}")
        return {name: columns[name] for name in names}


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


@contextlib.contextmanager
def _naming_columns_of(table: Any) -> Iterator[None]:
    """Says which columns of an array the names in messages are."""
    try:
        yield
    except TableError as error:
        if not is_array(table):
            raise
        raise TableError(f"{error}; the columns of an array are called x0, x1, … in their order") from error


def _column(name: str, raw: Any, missing: str, without_values: str = "") -> Column:
    return read_column(name, raw, missing == "impute", REMEDY, without_values)
