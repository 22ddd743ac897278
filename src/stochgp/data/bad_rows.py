"""Rows in files that cannot be learned from: which they are, how many, and where the first ones stand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from .blocks import Block, Blocks
from .columns import TableError

LARGEST = 1e150  # whose square is still a number
NAMED = 5  # bad rows that a message names
REMEDY = 'bad_rows="skip" (--bad-rows skip) leaves such rows out, and missing="impute" (--set missing=impute) fills missing inputs in'


class Fault(NamedTuple):
    """The first column of a bad row that makes it one."""

    file: str
    row: int  # of the data in its file, from 1
    column: str
    value: str  # or "" where it is missing

    def __str__(self) -> str:
        held = f"holds {self.value}" if self.value else "has a missing value"
        return f"{self.file}: column {self.column!r} {held} at data row {self.row}"


@dataclass
class BadRows:
    """What a pass over all rows has shown."""

    n_rows: int = 0
    count: int = 0
    first: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        named = "; ".join(map(str, self.first))
        return f"{self.count} of {self.n_rows} rows cannot be used, the first: {named}"

    def refuse(self) -> TableError:
        """What is raised where bad rows are not left out."""
        return TableError(f"{self.first[0] if self.count == 1 else self}; {REMEDY}")


def good_blocks(blocks: Blocks, target: str, missing: str, bad: BadRows) -> Iterator[Block]:
    """The blocks without their bad rows, which `bad` counts.

    A row is bad where a value is missing (of inputs only where `missing` is "refuse"), infinite or beyond 1e150, and where a weight is
    negative. Raises TableError at the end where bad rows are refused, or no other ones are there: with the number of all, and file, row, column
    and value of the first five.
    """
    for block in blocks:
        is_bad = are_bad(block.table, blocks, target, missing)
        bad.n_rows += len(is_bad)
        if not is_bad.any():
            yield block
            continue
        bad.count += int(is_bad.sum())
        rows = np.flatnonzero(is_bad)[: NAMED - len(bad.first)]
        bad.first += [_fault(block, int(row), blocks, target, missing) for row in rows]
        if not is_bad.all():
            kept = np.flatnonzero(~is_bad)
            yield block._replace(table=block.table.filter(pa.array(~is_bad)), kept=kept)
    if bad.count and (blocks.bad_rows == "refuse" or bad.count == bad.n_rows):
        raise bad.refuse()


def are_bad(table: pa.Table, blocks: Blocks, target: str, missing: str) -> Bool[np.ndarray, " N"]:
    """Which rows of a table of the blocks are bad."""
    found, needed = np.zeros(table.num_rows, bool), (target, *blocks.beside)
    for name in table.column_names:
        found |= _is_bad(table[name], name not in needed and missing == "impute")
    if blocks.weight in table.column_names and _is_numeric(table[blocks.weight].type):
        found |= pc.fill_null(pc.call_function("less", [table[blocks.weight], 0]), False).to_numpy()
    return found


def _is_bad(values: Any, may_be_missing: bool) -> Bool[np.ndarray, " N"]:
    if not _is_numeric(values.type):
        absent = values.is_null().to_numpy()
        return np.zeros_like(absent) if may_be_missing else absent
    numbers = pc.cast(values, pa.float64(), safe=False).to_numpy()
    return np.abs(numbers) > LARGEST if may_be_missing else ~(np.abs(numbers) <= LARGEST)


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _fault(block: Block, row: int, blocks: Blocks, target: str, missing: str) -> Fault:
    one = block.table.slice(row, 1)
    name = next(name for name in one.column_names if are_bad(one.select([name]), blocks, target, missing)[0])
    value: Any = one[name][0].as_py()
    held = "" if value is None or value != value else f"{value:g}"
    return Fault(str(block.file), block.first_row + row + 1, name, held)
