"""From a table with text columns to a matrix of numbers, the same way at fit and at predict; the rules of a table in files are found in one pass."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float64

from stochgp.names import did_you_mean, lookup, quoted

from .blocks import BadRows, Block, Blocks, TooNarrowError, good_blocks
from .columns import Column, TableError, is_array, read_column, refuse_spans, table_columns
from .rules import ColumnRule, encode, rule_of, with_dates_read
from .targets import REAL, AbstractTargets
from .times import PARTS, part_of

REMEDY = '; fit with missing="impute" (--set missing=impute) to fill such values in'
DROP = "; drop it"
_MISSING = ("refuse", "impute")

MOST_TEXTS = 1_000  # different ones that are remembered: more than any rule takes
OF_A_BLOCK = 64  # values that a median is taken of


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


@dataclass
class _Seen:
    """What the blocks so far have shown of a column."""

    name: str
    shown: Column | None = None  # few values, which have the rule of all
    some: list[np.ndarray] = field(default_factory=list)  # values for the median
    is_missing: bool = False

    def add(self, column: Column) -> None:
        """Raises TooNarrowError where text joins other values."""
        column, there = with_dates_read(column), ~column.missing
        self.is_missing |= bool(column.missing.any())
        if not there.any():
            return
        if column.kind != "text":
            present = column.values[there]
            self.some.append(present[:: max(1, len(present) // OF_A_BLOCK)].copy())  # a view holds the block
        self.shown = _few(column, there) if self.shown is None else _joined(self.shown, _few(column, there))

    def rule(self, missing: str) -> ColumnRule:
        if self.shown is None:
            raise TableError(f"column {self.name!r} holds no values: all are missing; drop it")
        rule = rule_of(self.shown, False)
        if missing == "refuse":
            return rule
        if rule.kind == "text":
            return replace(rule, indicator=self.is_missing)
        median = np.median(np.concatenate(self.some))
        fill = int(median) if rule.kind == "time" else float(median)
        return replace(rule, fill=fill, indicator=self.is_missing)


def encoder_of(
    blocks: Blocks, target: str, missing: str, targets: AbstractTargets = REAL
) -> tuple[Blocks, TableEncoder, BadRows, AbstractTargets]:
    """(The blocks, their columns as wide as their values need; the rules that `TableEncoder.fit` finds for all their rows together; which are bad;

    `targets` that have seen all).

    Bad rows are refused, or left out, as the blocks say. What `missing="impute"` fills in is the median of at least 64 evenly spaced values of every block. Raises TableError as
    `TableEncoder.fit` does, with the file and the row in it.
    """
    while True:
        try:
            bad = BadRows()
            seen, known = _seen(blocks, target, missing, bad, targets)
            break
        except TooNarrowError as narrow:
            if blocks.types.get(narrow.name) == narrow.wider:
                raise TableError(
                    f"{blocks.path}: column {narrow.name!r} holds numbers or dates in some files and text in others"
                ) from None
            blocks = blocks.widened(narrow)
    try:
        encoder = TableEncoder(tuple(column.rule(missing) for column in seen), None, True, missing)
        return blocks, encoder, bad, known
    except TableError as error:
        raise TableError(f"{blocks.path}: {error}") from error


def _seen(
    blocks: Blocks, target: str, missing: str, bad: BadRows, targets: AbstractTargets
) -> tuple[list[_Seen], AbstractTargets]:
    seen: dict[str, _Seen] = {}
    for block in good_blocks(blocks, target, missing, bad):
        targets = targets_seen(block, targets, target)
        for name, raw in _inputs(block, blocks.inputs(block.table, target)):
            try:
                column = read_column(name, raw, missing == "impute", REMEDY, DROP)
            except TableError as error:
                raise block.placed(error) from error
            seen.setdefault(name, _Seen(name)).add(column)
    if not seen:
        raise TableError(f"{blocks.path}: there are no input columns with rows beside the target {target!r}")
    return list(seen.values()), targets


def targets_seen(block: Block, targets: AbstractTargets, target: str) -> AbstractTargets:
    """`targets` after this block. Raises TableError with the file in it."""
    try:
        return targets.sees(block.table, target)
    except ValueError as error:
        raise block.placed(TableError(str(error).removeprefix("the table, "))) from error


def _inputs(block: Block, names: list[str]) -> Iterator[tuple[str, Any]]:
    return ((name, raw) for name, raw in table_columns(block.table).items() if name in names)


def _few(column: Column, there: np.ndarray) -> Column:
    """Values of the column that have its rule: its texts once each, the ends of its numbers, of its times and of their parts."""
    if column.kind == "text":
        texts = column.values.drop_null().unique()[:MOST_TEXTS]
        return Column(column.name, "text", texts, np.zeros(len(texts), bool))
    present = column.values[there]
    scales = [present]
    if column.kind == "time":
        scales += [part_of(part, present, 0) for part in PARTS]
    rows = np.unique([end(values) for values in scales for end in (np.argmin, np.argmax)])
    return Column(column.name, column.kind, present[rows], np.zeros(len(rows), bool), column.zoned)


def _joined(a: Column, b: Column) -> Column:
    kind = a.kind if a.kind == b.kind else "number"
    if not ({a.kind, b.kind} <= {kind, "boolean"} and a.zoned == b.zoned):
        raise TooNarrowError(a.name, pa.string())
    is_text = a.kind == "text"
    chunks = (
        [chunk for part in (a.values, b.values) for chunk in getattr(part, "chunks", [part])]
        if is_text
        else []
    )
    values = pa.chunked_array(chunks) if is_text else np.concatenate([a.values, b.values])
    there = np.ones(len(values), bool)
    return _few(Column(a.name, kind, values, ~there, a.zoned), there)
