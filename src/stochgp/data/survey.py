"""What is to be known of rows in files before a model learns from them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from jax.sharding import Mesh
from jaxtyping import Float

from stochgp.tables.columns import Column, TableError, read_column, table_columns
from stochgp.tables.encoding import DROP, TableEncoder, column_of
from stochgp.tables.readings import (
    day_first_of,
)
from stochgp.tables.rules import ColumnRule, rule_of, with_dates_read
from stochgp.tables.targets import REAL, FileTargets
from stochgp.tables.times import PARTS, part_of

from .blocks import Block, Blocks, TooNarrowError, with_targets
from .rows import Rows
from .splits import hash_keys, hash_rows
from .standardise import Standardiser, Summary
from .streams import AbstractPasses, Batch, on_device_padded

LARGEST_WEIGHT = 1e30  # its product with a precision is still a float32
SAMPLE_SEED = 0x5EED  # added to the user's, so that a sample does not follow the division


@dataclass(frozen=True, eq=False)
class FileRows:
    """The numbers of rows in files: inputs as `encoder` makes them, and the column `target` as `targets` does."""

    blocks: Blocks
    encoder: TableEncoder
    target: str
    targets: FileTargets = REAL

    def read(self) -> Iterator[tuple[Rows, Block]]:
        """(Rows, with the hash of what each belongs with as its group, the block they are of), block by block, without rows of weight 0. Raises TableError, with file and row, for what cannot be used."""
        for block in with_targets(self.blocks, self.target, self.encoder.missing):
            try:
                rows = self._numbers(block)
            except TableError as error:
                raise block.placed(error) from error
            if self.blocks.part is not None:
                rows = rows.some(self.blocks.holds(rows.X, rows.y, rows.group))
            if rows.weight is not None:
                rows = rows.some(rows.weight > 0)
            if len(rows):
                yield replace(rows, y=self.targets.learned(rows.y)), block

    def _numbers(self, block: Block) -> Rows:
        blocks = self.blocks
        return Rows(
            self.encoder.transform(block.table),
            self._targets(block),
            None if blocks.weight is None else _weights(block, blocks.weight),
            hash_keys(block.table, blocks.split_by) if blocks.split_by else None,
        )

    def _targets(self, block: Block) -> Float[np.ndarray, " N"]:
        try:
            return self.targets.numbers(block.table, self.target)
        except ValueError as error:
            raise TableError(str(error).removeprefix("the table, ")) from error


class Sample:
    """The rows of the smallest hashes: a uniform random sample, without replacement, of rows that come in any order."""

    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self._parts: list[tuple[np.ndarray, Rows]] = []
        self._largest = np.uint64(2**64 - 1)

    def add(self, rows: Rows) -> None:
        hashes = hash_rows(rows.X, rows.y, self.seed)
        near = hashes <= self._largest
        self._parts.append((hashes[near], rows.some(near)))
        if sum(len(part[0]) for part in self._parts) > 2 * self.size:
            self._shrink()

    def rows(self) -> Rows:
        """In the order of their hashes."""
        self._shrink()
        return self._parts[0][1]

    def _shrink(self) -> None:
        """Keeps the `size` rows of the smallest hashes; rows of hashes above `_largest` can no longer be among them."""
        hashes = np.concatenate([hashes for hashes, _ in self._parts])
        rows = Rows.joined([rows for _, rows in self._parts])
        kept = np.argsort(hashes, kind="stable")[: self.size]
        self._parts = [(hashes[kept], rows.some(kept))]
        self._largest = hashes[kept[-1]] if len(kept) == self.size else self._largest


@dataclass(frozen=True, eq=False)
class Survey:
    """All rows, what standardises them, and a sample of them."""

    rows: FileRows
    size: int  # of all rows
    inputs: Summary
    targets: Summary
    sample: Rows
    n_dropped: int  # rows without a target, which are left out


def survey(
    blocks: Blocks,
    target: str,
    *,
    missing: str,
    seed: int,
    sample: Callable[[int], int],
    targets: FileTargets = REAL,
) -> Survey:
    """Two passes over the rows: what the columns hold; their numbers' summaries, and a sample of them.

    `sample` says for a number of inputs how many rows at most. Memory for a block, the sample and its like: none that grows with the
    rows. Raises TableError, with file and row, for what cannot be used.
    """
    blocks, encoder, n_dropped, known = encoder_of(blocks, target, missing, targets)
    rows = FileRows(blocks, encoder, target, known)
    taken = Sample(sample(len(encoder.output_names)), seed + SAMPLE_SEED)
    inputs: Summary | None = None
    of_targets: Summary | None = None
    size = 0
    for found, _ in rows.read():
        of_X, of_y = Summary.of(found.X, found.weight), Summary.of(found.y[:, None], found.weight)
        inputs = of_X if inputs is None else inputs.merged(of_X)
        of_targets = of_y if of_targets is None else of_targets.merged(of_y)
        size += len(found.y)
        taken.add(found)
    if inputs is None or of_targets is None:
        raise TableError(f"{blocks.path}: there are no rows to learn from")
    return Survey(rows, size, inputs, of_targets, taken.rows(), n_dropped)


@dataclass(frozen=True, eq=False)
class StandardisedRows(AbstractPasses):
    """The rows of files as a model sees them, in chunks, for one pass after another."""

    rows: FileRows
    size: int
    count: float
    limits: Float[np.ndarray, "2 D"]  # the smallest and the largest value of each input
    inputs: Standardiser
    targets: Standardiser
    dtype: str
    mesh: Mesh | None = None

    def read(self, size: int) -> Iterator[Batch]:
        """All rows in order, in chunks of `size` rows on the device, the last of a block filled up by rows of weight 0."""
        for rows, block in self.rows.read():
            for start in range(0, len(rows), size):
                part = rows.some(slice(start, start + size))
                try:
                    part = part.standardised(self.inputs, self.targets, self.dtype)
                except ValueError as error:
                    raise ValueError(f"{block.file}: {error}") from error
                yield on_device_padded(part, size, self.dtype)


def _weights(block: Block, name: str) -> Float[np.ndarray, " N"]:
    column = read_column(name, table_columns(block.table)[name])
    if column.kind != "number":
        raise TableError(f"the column of weights {name!r} holds no numbers")
    if (negative := column.values < 0).any():
        raise TableError(f"the column of weights {name!r} is negative: {column.first(negative)}")
    if (column.values > LARGEST_WEIGHT).any():
        raise TableError(
            f"the column of weights {name!r} holds {np.nanmax(column.values):g}; a weight is the number of rows that a row stands for, at most "
            f"{LARGEST_WEIGHT:g}"
        )
    return column.values


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

    def rule(self, missing: str, day_first: bool | None = None) -> ColumnRule:
        """As `TableEncoder.fit` finds it, but that no column is left out that has values, and none is bounded."""
        if self.shown is None:
            nothing = Column(self.name, "number", np.full(1, np.nan), np.ones(1, bool))
            return rule_of(nothing, missing != "refuse")[0]
        rule = rule_of(self.shown, missing != "refuse", dates=False, day_first=day_first)[0]
        if missing == "refuse" or rule.kind == "dropped":
            return rule
        rule = replace(rule, indicator=rule.indicator or self.is_missing)
        if rule.kind == "text" or rule.reading is not None:
            return rule
        median = np.median(np.concatenate(self.some))
        return replace(rule, fill=int(median) if rule.kind == "time" else float(median))


def encoder_of(
    blocks: Blocks, target: str, missing: str, targets: FileTargets = REAL
) -> tuple[Blocks, TableEncoder, int, FileTargets]:
    """(The blocks, their columns as wide as their values need; the rules that `TableEncoder.fit` finds for all their rows together; how many rows have no target;

    `targets` that have seen all).

    What `missing="auto"` fills in is the median of at least 64 evenly spaced values of every block. Raises TableError as
    `TableEncoder.fit` does, with the file and the row in it.
    """
    while True:
        try:
            dropped: list[int] = []
            seen, known = _seen(blocks, target, missing, dropped, targets)
            break
        except TooNarrowError as narrow:
            if blocks.types.get(narrow.name) == narrow.wider:
                raise TableError(
                    f"{blocks.path}: column {narrow.name!r} holds numbers or dates in some files and text in others"
                ) from None
            blocks = blocks.widened(narrow)
    try:
        shown = [column.shown for column in seen if column.shown is not None]
        day_first = day_first_of(shown)
        encoder = TableEncoder(tuple(column.rule(missing, day_first) for column in seen), None, True, missing)
        return blocks, encoder, sum(dropped), known
    except TableError as error:
        raise TableError(f"{blocks.path}: {error}") from error


def _seen(
    blocks: Blocks, target: str, missing: str, dropped: list[int], targets: FileTargets
) -> tuple[list[_Seen], FileTargets]:
    seen: dict[str, _Seen] = {}
    for block in with_targets(blocks, target, missing, dropped):
        names = blocks.inputs(block.table, target)
        try:
            targets = targets.sees(block.table, target)
        except ValueError as error:
            raise block.placed(TableError(str(error).removeprefix("the table, "))) from error
        for name, raw in table_columns(block.table).items():
            if name not in names:
                continue
            try:
                column = column_of(name, raw, missing != "refuse", DROP)
            except TableError as error:
                raise block.placed(error) from error
            seen.setdefault(name, _Seen(name)).add(column)
    if not seen:
        raise TableError(f"{blocks.path}: there are no input columns with rows beside the target {target!r}")
    return list(seen.values()), targets


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
