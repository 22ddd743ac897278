"""What is to be known of rows in files before a model learns from them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .bad_rows import BadRows, good_blocks
from .blocks import Block, Blocks
from .columns import TableError
from .columns_of_blocks import encoder_of
from .encoding import TableEncoder, target_column
from .hashing import hash_rows
from .standardise import Standardiser
from .streams import Rows, on_device_padded
from .summaries import Summary

SAMPLE_SEED = 0x5EED  # added to the user's, so that a sample does not follow the division


@dataclass(frozen=True, eq=False)
class FileRows:
    """The numbers of rows in files: inputs as `encoder` makes them, and the column `target`."""

    blocks: Blocks
    encoder: TableEncoder
    target: str

    def read(self) -> Iterator[tuple[Float[np.ndarray, "N D"], Float[np.ndarray, " N"], Block]]:
        """(X, y, the block they are of), block by block. Raises TableError, with file and row, for what cannot be used."""
        part = self.blocks.part
        for block in good_blocks(self.blocks, self.target, self.encoder.missing, BadRows()):
            try:
                X, y = self.encoder.transform(block.table), _targets(block, self.target)
            except TableError as error:
                raise block.placed(error) from error
            if part is not None:
                among = part.holds(X, y)
                X, y = X[among], y[among]
            if len(y):
                yield X, y, block


class Sample:
    """The rows of the smallest hashes: a uniform random sample, without replacement, of rows that come in any order."""

    def __init__(self, size: int, seed: int):
        self.size, self.seed = size, seed
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._largest = np.uint64(2**64 - 1)

    def add(self, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"]) -> None:
        hashes = hash_rows(X, y, self.seed)
        near = hashes <= self._largest
        self._parts.append((hashes[near], X[near], y[near]))
        if sum(len(part[0]) for part in self._parts) > 2 * self.size:
            self._shrink()

    def rows(self) -> tuple[Float[np.ndarray, "N D"], Float[np.ndarray, " N"]]:
        """In the order of their hashes."""
        self._shrink()
        _, X, y = self._parts[0]
        return X, y

    def _shrink(self) -> None:
        hashes, X, y = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        kept = np.argsort(hashes, kind="stable")[: self.size]
        self._parts = [(hashes[kept], X[kept], y[kept])]
        self._largest = hashes[kept[-1]] if len(kept) == self.size else self._largest


@dataclass(frozen=True, eq=False)
class Survey:
    """All rows, what standardises them, and a sample of them."""

    rows: FileRows
    size: int  # of all rows
    inputs: Summary
    targets: Summary
    sample: tuple[Float[np.ndarray, "m D"], Float[np.ndarray, " m"]]
    bad: BadRows  # which are left out


def survey(blocks: Blocks, target: str, *, missing: str, seed: int, sample: Callable[[int], int]) -> Survey:
    """Two passes over the rows: what the columns hold; their numbers' summaries, and a sample of them.

    `sample` says for a number of inputs how many rows at most. Memory for a block, the sample and its like: none that grows with the
    rows. Raises TableError, with file and row, for what cannot be used.
    """
    blocks, encoder, bad = encoder_of(blocks, target, missing)
    rows, taken = (
        FileRows(blocks, encoder, target),
        Sample(sample(len(encoder.output_names)), seed + SAMPLE_SEED),
    )
    inputs: Summary | None = None
    targets: Summary | None = None
    for X, y, _ in rows.read():
        of_X, of_y = Summary.of(X), Summary.of(y[:, None])
        inputs = of_X if inputs is None else inputs.merged(of_X)
        targets = of_y if targets is None else targets.merged(of_y)
        taken.add(X, y)
    if inputs is None or targets is None:
        raise TableError(f"{blocks.path}: there are no rows to learn from")
    return Survey(rows, inputs.count, inputs, targets, taken.rows(), bad)


@dataclass(frozen=True, eq=False)
class StandardisedRows:
    """The rows of files as a model sees them, in chunks, for one pass after another."""

    rows: FileRows
    size: int
    inputs: Standardiser
    targets: Standardiser
    dtype: str

    def chunks(self, size: int) -> Iterator[Rows]:
        """All rows in order, in chunks of `size` rows on the device, the last of a block filled up by rows of count 0."""
        for X, y, block in self.rows.read():
            for start in range(0, len(y), size):
                part = slice(start, start + size)
                try:
                    Z, t = (
                        self.inputs.transform(X[part], self.dtype),
                        self.targets.transform(y[part], self.dtype),
                    )
                except ValueError as error:
                    raise ValueError(f"{block.file}: {error}") from error
                yield on_device_padded(Z, t, size, self.dtype)


def _targets(block: Block, target: str) -> Float[np.ndarray, " N"]:
    try:
        return target_column(block.table, target)
    except ValueError as error:
        raise TableError(str(error).removeprefix("the table, ")) from error
