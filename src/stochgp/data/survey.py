"""What is to be known of rows in files before a model learns from them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from stochgp.tables.columns import TableError, read_column, table_columns
from stochgp.tables.encoding import TableEncoder
from stochgp.tables.targets import REAL, AbstractTargets

from .blocks import BadRows, Block, Blocks, good_blocks
from .hashing import hash_keys, hash_rows
from .rows import Rows
from .rules_of_files import encoder_of
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
    targets: AbstractTargets = REAL

    def read(self) -> Iterator[tuple[Rows, Block]]:
        """(Rows, with the hash of what each belongs with as its group, the block they are of), block by block, without rows of weight 0. Raises TableError, with file and row, for what cannot be used."""
        part = self.blocks.part
        for block in good_blocks(self.blocks, self.target, self.encoder.missing, BadRows()):
            try:
                rows = self._numbers(block)
            except TableError as error:
                raise block.placed(error) from error
            if part is not None:
                rows = rows.some(part.holds(rows.X, rows.y, rows.group))
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
    bad: BadRows  # which are left out


def survey(
    blocks: Blocks,
    target: str,
    *,
    missing: str,
    seed: int,
    sample: Callable[[int], int],
    targets: AbstractTargets = REAL,
) -> Survey:
    """Two passes over the rows: what the columns hold; their numbers' summaries, and a sample of them.

    `sample` says for a number of inputs how many rows at most. Memory for a block, the sample and its like: none that grows with the
    rows. Raises TableError, with file and row, for what cannot be used.
    """
    blocks, encoder, bad, known = encoder_of(blocks, target, missing, targets)
    rows, taken = (
        FileRows(blocks, encoder, target, known),
        Sample(sample(len(encoder.output_names)), seed + SAMPLE_SEED),
    )
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
    return Survey(rows, size, inputs, of_targets, taken.rows(), bad)


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

    def chunks(self, size: int) -> Iterator[Batch]:
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
    if (column.values > LARGEST_WEIGHT).any():
        raise TableError(
            f"the column of weights {name!r} holds {np.nanmax(column.values):g}; a weight is the number of rows that a row stands for, at most "
            f"{LARGEST_WEIGHT:g}"
        )
    return column.values
