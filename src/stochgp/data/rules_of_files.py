"""The rules of a table in files, found in one pass over its blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from stochgp.tables.columns import Column, TableError, table_columns
from stochgp.tables.encoding import DROP, TableEncoder, column_of
from stochgp.tables.readings import (
    DIGITS,
    FEWEST_DATES,
    day_first_of,
    decimal_mark,
    different_of,
    numbers_as_dates,
)
from stochgp.tables.rules import WHOLE_DATES, ColumnRule, rule_of, with_dates_read
from stochgp.tables.targets import REAL, AbstractTargets
from stochgp.tables.times import PARTS, part_of
from stochgp.warning import warn

from .blocks import BadRows, Block, Blocks, TooNarrowError, good_blocks

MOST_TEXTS = (
    1_000  # different ones that are remembered: more than are levels, and enough to see how they are read
)
OF_A_BLOCK = 64  # values that a median is taken of


@dataclass
class _Seen:
    """What the blocks so far have shown of a column."""

    name: str
    shown: Column | None = None  # few values, which have the rule of all
    some: list[np.ndarray] = field(default_factory=list)  # values for the median
    is_missing: bool = False
    dates: "_Seen | None" = None  # the same numbers as dates, as long as all are such as 20141013
    different: np.ndarray = field(default_factory=lambda: np.zeros(0))  # few of these numbers

    def add(self, column: Column) -> None:
        """Raises TooNarrowError where text joins other values."""
        column, there = with_dates_read(column), ~column.missing
        self.is_missing |= bool(column.missing.any())
        if not there.any():
            return
        self._add_dates(column, there)
        if column.kind != "text":
            present = column.values[there]
            self.some.append(present[:: max(1, len(present) // OF_A_BLOCK)].copy())  # a view holds the block
        self.shown = _few(column, there) if self.shown is None else _joined(self.shown, _few(column, there))

    def _add_dates(self, column: Column, there: np.ndarray) -> None:
        found = numbers_as_dates(column, 1)
        if self.shown is None and found is not None:
            self.dates = _Seen(self.name)
        if self.dates is None or found is None:
            self.dates = None
            return
        self.dates.add(found)
        self.different = np.unique(np.append(self.different, column.values[there]))[:FEWEST_DATES]

    def rule(self, missing: str, mark: str = "", day_first: bool | None = None) -> ColumnRule:
        """As `TableEncoder.fit` finds it, but that no column is left out that has values, and none is bounded."""
        if self.dates is not None and missing != "refuse" and len(self.different) == FEWEST_DATES:
            rule = replace(self.dates.rule(missing), reading=DIGITS, indicator=self.is_missing)
            warn(f"column {self.name!r}: {WHOLE_DATES}", UserWarning, stacklevel=2)
            return rule.noting(WHOLE_DATES)
        if self.shown is None:
            nothing = Column(self.name, "number", np.full(1, np.nan), np.ones(1, bool))
            return rule_of(nothing, missing != "refuse")[0]
        rule = rule_of(self.shown, missing != "refuse", mark=mark, day_first=day_first)[0]
        if missing == "refuse" or rule.kind == "dropped":
            return rule
        rule = replace(rule, indicator=rule.indicator or self.is_missing)
        if rule.kind == "text" or rule.reading is not None:
            return rule
        median = np.median(np.concatenate(self.some))
        return replace(rule, fill=int(median) if rule.kind == "time" else float(median))


def encoder_of(
    blocks: Blocks, target: str, missing: str, targets: AbstractTargets = REAL
) -> tuple[Blocks, TableEncoder, BadRows, AbstractTargets]:
    """(The blocks, their columns as wide as their values need; the rules that `TableEncoder.fit` finds for all their rows together; which are bad;

    `targets` that have seen all).

    Bad rows are refused, or left out, as the blocks say. What `missing="auto"` fills in is the median of at least 64 evenly spaced values of every block. Raises TableError as
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
        shown = [column.shown for column in seen if column.shown is not None]
        mark = decimal_mark(different_of(column) for column in shown if column.kind == "text")
        day_first = day_first_of(shown)
        encoder = TableEncoder(
            tuple(column.rule(missing, mark, day_first) for column in seen), None, True, missing
        )
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
                column = column_of(name, raw, missing != "refuse", DROP)
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
        texts = column.values.drop_null().unique()
        if len(texts) > MOST_TEXTS:
            texts = texts.take(pa.array(np.linspace(0, len(texts) - 1, MOST_TEXTS).astype(int)))
        return Column(column.name, "text", texts, np.zeros(len(texts), bool), category=column.category)
    present = column.values[there]
    scales = [present]
    if column.kind == "time":
        scales += [part_of(part, present, 0) for part in PARTS]
    rows = np.unique([end(values) for values in scales for end in (np.argmin, np.argmax)])
    return Column(
        column.name, column.kind, present[rows], np.zeros(len(rows), bool), column.zoned, column.note
    )


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
