"""From a table with text columns to a matrix of numbers, the same way at fit and at predict."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import narwhals as nw
import numpy as np
from jaxtyping import Float64

from stochgp.names import did_you_mean, quoted

from .columns import (
    Column,
    first_not_number,
    is_array,
    read_column,
    refuse_times,
    row_of_first,
    table_columns,
)

MAX_LEVELS = 50


@dataclass(frozen=True)
class ColumnRule:
    """How one column becomes numbers: itself (number; boolean as 0 and 1), or one 0/1 column per level."""

    name: str
    kind: Literal["number", "boolean", "text"]
    levels: tuple[str, ...] = ()

    @property
    def output_names(self) -> tuple[str, ...]:
        """The column's own name, or name=level for every level."""
        return tuple(f"{self.name}={level}" for level in self.levels) if self.kind == "text" else (self.name,)


@dataclass(frozen=True)
class TableEncoder:
    """A table's columns as a float64 matrix [N, D], by rules found on the training table.

    Numbers stay, booleans become 0 and 1, text and categories with at most 50 levels become one 0/1 column per
    level, levels in alphabetical order. `named` says that columns are matched by name; where the training table
    was an array, they are matched by position.
    """

    columns: tuple[ColumnRule, ...]
    target: str | None = None
    named: bool = True

    @classmethod
    def fit(cls, table: Any, target: str | None = None) -> "TableEncoder":
        """The rules for every column but `target` of a data frame (pandas, polars, pyarrow) or array [N, D].

        Raises ValueError, naming the column, for dates and times, text with more than 50 levels, missing or
        infinite values (with the first data row and the count) and types that are neither numbers nor text.
        """
        columns = table_columns(table)
        inputs = {name: raw for name, raw in columns.items() if name != target}
        if not inputs:
            raise ValueError(f"the table has no input columns beside the target {target!r}")
        refuse_times(inputs)
        rules = tuple(_rule(read_column(name, raw)) for name, raw in inputs.items())
        return cls(rules, target, not is_array(table))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the D columns of the matrix."""
        return tuple(name for rule in self.columns for name in rule.output_names)

    def transform(self, table: Any) -> Float64[np.ndarray, "N D"]:
        """The matrix of a table: columns by name, in any order; further columns are passed over (`unknown`).

        Raises ValueError, naming the column, for a missing column, a level not seen at fit (with its row), text
        where numbers were, missing or infinite values.
        """
        inputs = self._matched(table)
        refuse_times(inputs)
        n_rows = len(next(iter(inputs.values())))
        X = np.zeros((n_rows, len(self.output_names)), np.float64)
        start = 0
        for rule in self.columns:
            stop = start + len(rule.output_names)
            _encode(rule, read_column(rule.name, inputs[rule.name]), X[:, start:stop])
            start = stop
        return X

    def unknown(self, table: Any) -> tuple[str, ...]:
        """Names of columns that `transform` passes over; the target is not among them."""
        if not self.named or is_array(table):
            return ()
        known = {rule.name for rule in self.columns} | {self.target}
        return tuple(name for name in table_columns(table) if name not in known)

    def to_dict(self) -> dict[str, Any]:
        """A JSON value from which `from_dict` restores an equal encoder."""
        columns = [asdict(rule) | {"levels": list(rule.levels)} for rule in self.columns]
        return {"columns": columns, "target": self.target, "named": self.named}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TableEncoder":
        """The inverse of `to_dict`; ValueError where the value is not one of its results."""
        try:
            rules = [
                ColumnRule(rule["name"], rule["kind"], tuple(rule["levels"])) for rule in value["columns"]
            ]
            encoder = cls(tuple(rules), value["target"], bool(value["named"]))
        except (KeyError, TypeError) as error:
            raise ValueError("a stored table encoder needs 'columns', 'target' and 'named'") from error
        kinds = {rule.kind for rule in rules}
        if not kinds or not kinds <= {"number", "boolean", "text"}:
            raise ValueError(f"a stored table encoder has the column kinds {quoted(map(str, kinds))}")
        return encoder

    def _matched(self, table: Any) -> dict[str, Any]:
        columns = table_columns(table)
        names = [rule.name for rule in self.columns]
        if not self.named or is_array(table):
            inputs = [raw for name, raw in columns.items() if is_array(table) or name != self.target]
            if len(inputs) != len(names):
                raise ValueError(f"expected {len(names)} columns ({quoted(names)}), got {len(inputs)}")
            return dict(zip(names, inputs, strict=True))
        missing = [name for name in names if name not in columns]
        if missing:
            plural = "s" if len(missing) > 1 else ""
            near = did_you_mean(missing[0], [name for name in columns if name not in names])
            raise ValueError(
                f"the table lacks the column{plural} {quoted(missing)}; for {missing[0]!r}, {near}"
            )
        return {name: columns[name] for name in names}


def target_column(table: Any, name: str, source: str = "the table") -> Float64[np.ndarray, " N"]:
    """The numeric column `name` of a data frame, as float64.

    Raises ValueError where it is absent (with the nearest name), holds text, dates or times, or has missing or
    infinite values (with the first data row and the count). `source` is what messages call the table.
    """
    columns = table_columns(table)
    if name not in columns:
        raise ValueError(f"no column {name!r} in {source}; {did_you_mean(name, columns)}")
    try:
        column = read_column(name, columns[name])
    except ValueError as error:
        raise ValueError(f"{source}, target {error}") from error
    if column.kind == "text":
        texts = column.values.to_list()
        first = first_not_number(texts) or 0
        raise ValueError(
            f"{source}, target column {name!r} holds text ({texts[first]!r} at data row {first + 1}); "
            "the target must be numbers"
        )
    return column.values


def _rule(column: Column) -> ColumnRule:
    if column.kind != "text":
        return ColumnRule(column.name, column.kind)
    levels = sorted(column.values.unique().to_list())
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"column {column.name!r} holds text with {len(levels)} different values{_stray_text(column)}; at most "
            f"{MAX_LEVELS} are encoded: group them, give numbers, or drop the column"
        )
    return ColumnRule(column.name, "text", tuple(levels))


def _stray_text(column: Column) -> str:
    """For a column of numbers that a few texts spoil: the first of them."""
    texts = column.values.to_list()
    first = first_not_number(texts)
    sample = texts[:1000]
    if first is None or 2 * sum(first_not_number([text]) is None for text in sample) < len(sample):
        return ""
    return f" (most are numbers, but {texts[first]!r} at data row {first + 1} is not)"


def _encode(rule: ColumnRule, column: Column, out: np.ndarray) -> None:
    """Write the column's numbers into out: [N, 1], or zeros [N, levels]."""
    if rule.kind == "text":
        _encode_levels(rule, column, out)
        return
    if column.kind == "text":
        texts = column.values.to_list()
        first = first_not_number(texts) or 0
        raise ValueError(
            f"column {rule.name!r} held numbers at fit and holds text now: {texts[first]!r} at data row {first + 1}"
        )
    strange = (column.values != 0.0) & (column.values != 1.0)
    if rule.kind == "boolean" and strange.any():
        value = column.values[np.argmax(strange)]
        raise ValueError(
            f"column {rule.name!r} held true and false at fit and holds {value:g} now at data row {row_of_first(strange)}"
        )
    out[:, 0] = column.values


def _encode_levels(rule: ColumnRule, column: Column, out: np.ndarray) -> None:
    texts = column.values if column.kind == "text" else _number_texts(column)
    for j, level in enumerate(rule.levels):
        out[:, j] = (texts == level).to_numpy()
    unseen = out.sum(axis=1) == 0
    if unseen.any():
        row = row_of_first(unseen)
        raise ValueError(
            f"column {rule.name!r} has the level {texts[row - 1]!r} at data row {row}, which was not in the training "
            f"data ({int(unseen.sum())} such rows; known: {quoted(rule.levels)})"
        )


def _number_texts(column: Column) -> nw.Series:
    """Numbers given where text was at fit, as text: 1.0 as "1", booleans as "true" and "false"."""
    values, codes = np.unique(column.values, return_inverse=True)
    return nw.new_series(column.name, [_number_text(v, column.kind) for v in values], backend="pyarrow")[
        codes
    ]


def _number_text(value: float, kind: str) -> str:
    if kind == "boolean":
        return "true" if value else "false"
    return str(int(value)) if value.is_integer() else str(float(value))
