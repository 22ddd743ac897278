"""The rules of a table that is read block by block, found in one pass over it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from .bad_rows import BadRows, good_blocks
from .blocks import Block, Blocks, TooNarrowError
from .columns import Column, TableError, read_column, table_columns
from .encoding import DROP, REMEDY, TableEncoder
from .file_targets import REAL, AbstractTargets
from .rules import ColumnRule, rule_of, with_dates_read
from .times import PARTS, part_of

MOST_TEXTS = 1_000  # different ones that are remembered: more than any rule takes
OF_A_BLOCK = 64  # values that a median is taken of


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
