"""A column of files, whose blocks come one after the other: few values, from which its rule is found."""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from .columns import Column
from .rules import ColumnRule, rule_of, with_dates_read
from .times import PARTS, part_of

MOST_TEXTS = 1_000  # different ones that are kept: more than levels, and enough to see how they are read
OF_A_BLOCK = 64  # values that a median is taken of


class MixedKindsError(ValueError):
    """Blocks of a column hold values of different kinds."""


@dataclass
class ColumnSummary:
    """A column of the blocks so far: `shown` has few values, for which `rule_of` finds the rule of all."""

    name: str
    shown: Column | None = None
    some: list[np.ndarray] = field(default_factory=list)  # values for the median
    is_missing: bool = False

    def add(self, column: Column) -> None:
        """Take in a block. Raises MixedKindsError if text joins other values."""
        column = with_dates_read(column)
        self.is_missing |= bool(column.missing.any())
        if column.missing.all():
            return
        if column.kind != "text":
            present = column.values[~column.missing]
            self.some.append(present[:: max(1, len(present) // OF_A_BLOCK)].copy())  # a view holds the block
        few = _few(column)
        self.shown = few if self.shown is None else _few(_joined(self.shown, few))

    def rule(self, missing: str, day_first: bool | None = None) -> ColumnRule:
        """The rule that `TableEncoder.fit` finds, except that a column with values is neither left out nor bounded."""
        imputes = missing != "refuse"
        if self.shown is None:
            nothing = Column(self.name, "number", np.full(1, np.nan), np.ones(1, bool))
            return rule_of(nothing, imputes)[0]
        rule = rule_of(self.shown, imputes, dates=False, day_first=day_first)[0]
        if not imputes or rule.kind == "dropped":
            return rule
        rule = replace(rule, indicator=rule.indicator or self.is_missing)
        if rule.kind == "text" or rule.reading is not None:
            return rule
        median = np.median(np.concatenate(self.some))
        return replace(rule, fill=int(median) if rule.kind == "time" else float(median))


def _few(column: Column) -> Column:
    """Its texts once each, or the ends of its numbers, of its times and of their parts: values with the rule of all."""
    if column.kind == "text":
        values = column.values.drop_null().unique()
        if len(values) > MOST_TEXTS:
            values = values.take(pa.array(np.linspace(0, len(values) - 1, MOST_TEXTS).astype(int)))
    else:
        present = column.values[~column.missing]
        scales = [present]
        if column.kind == "time":
            scales += [part_of(part, present, 0) for part in PARTS]
        values = present[np.unique([end(scale) for scale in scales for end in (np.argmin, np.argmax)])]
    return replace(column, values=values, missing=np.zeros(len(values), bool), caution="")


def _joined(a: Column, b: Column) -> Column:
    kind = a.kind if a.kind == b.kind else "number"
    if not ({a.kind, b.kind} <= {kind, "boolean"} and a.zoned == b.zoned):
        raise MixedKindsError(a.name)
    if kind == "text":
        chunks = [chunk for part in (a.values, b.values) for chunk in getattr(part, "chunks", [part])]
        values = pa.chunked_array(chunks)
    else:
        values = np.concatenate([a.values, b.values])
    return Column(a.name, kind, values, np.zeros(len(values), bool), a.zoned)
