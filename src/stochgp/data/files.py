"""Rows in files: reading in blocks, random splits and random samples."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import narwhals as nw
import numpy as np
import pyarrow as pa
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int, Shaped, UInt64

from stochgp.tables.columns import LARGEST, TableError, column_named, read_any, read_column, rewording
from stochgp.tables.encoding import TableEncoder
from stochgp.tables.files import TooNarrowError, column_names, files_of, tables_of
from stochgp.tables.targets import checked_weights, label_column, refuse_no_counts, target_column, with_labels

from .memory import Source, padded
from .rows import NO_ROWS, Data, Standardiser, Summary

_ROW = re.compile(r"data row (\d+)")
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Block(NamedTuple):
    """A block of rows of a file."""

    table: pa.Table
    file: Path
    rows: Int[np.ndarray, " N"]  # row numbers in the file, from 0

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """Add the file name and row numbers in the file to errors that occur in the block."""
        try:
            yield
        except ValueError as error:
            number = lambda found: f"data row {self.rows[int(found[1]) - 1] + 1}"
            raise TableError(f"{self.file}: {_ROW.sub(number, str(error))}") from error

    def filtered(self, kept: Bool[np.ndarray, " N"]) -> "Block":
        """Return the rows that the mask `kept` selects."""
        return Block(self.table.filter(pa.array(kept)), self.file, self.rows[kept])


@dataclass(frozen=True, eq=False)
class FileSource(Source):
    """A source that reads its rows from files in each pass. `FileSource.of` creates a source.

    Files are read in order of their names, in blocks of at most 65,536 rows. The first rows of a text file
    define the types of its columns. If a later value has another type, `fit` starts again with a wider type.

    Parameters
    ----------
    path : Path
        A .csv, .tsv, .csv.gz, .tsv.gz, .parquet or .feather file, or a folder. All files in a folder must
        have the same type and the same columns.
    columns : tuple of str, optional
        The columns to read. None: read all columns.
    part : (float, int, bool), optional
        The share of held-out rows, the seed of the split, and True for the held-out rows or False for the
        training rows. None: read all rows.
    types : mapping of str to Arrow type
        The types of some columns in text files.
    weight : str, optional
        The column of frequency weights. The column is not an input.
    split_by : tuple of str
        Columns that define groups of rows. A split never divides a group. The columns are also inputs, unless
        `columns` excludes them.
    target, kind, transform, labels, encoder, size, of_rows, scales, dtype, mesh
        `fit` sets these attributes.
    """

    path: Path
    columns: tuple[str, ...] | None = None
    part: tuple[float, int, bool] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    weight: str | None = None
    split_by: tuple[str, ...] = ()
    target: str = ""
    kind: Literal["real", "count", "class"] = "real"
    transform: Any = None
    labels: Shaped[np.ndarray, " C"] | None = None
    encoder: Any = None
    size: int = 0
    of_rows: Summary = NO_ROWS
    scales: tuple[Standardiser, Standardiser] | None = None
    dtype: str = "float64"
    mesh: Mesh | None = None

    @classmethod
    def of(
        cls, path: str | os.PathLike, *, weight: str | None = None, split_by: Sequence[str] = ()
    ) -> "FileSource":
        """Create a source; raise ValueError for missing files or columns, or mixed file types."""
        if isinstance(split_by, str):
            raise TypeError(f"split_by must be a tuple of names, such as ({split_by!r},), not a string")
        source = cls(Path(path), weight=weight, split_by=tuple(split_by))
        source.only(source.beside)
        return source

    def only(self, columns: tuple[str, ...]) -> "FileSource":
        """Return the source with only these columns; raise ValueError if the first file lacks any."""
        next(tables_of(files_of(self.path)[0], columns))
        return replace(self, columns=columns)

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns of weights and groups, which are read in addition to the inputs."""
        return self.split_by if self.weight is None else (self.weight, *self.split_by)

    def inputs(self, table: pa.Table) -> list[str]:
        """Return the names of the input columns of a block."""
        wanted = table.column_names if self.columns is None else self.columns
        others = (self.target, self.weight)
        return [name for name in table.column_names if name in wanted and name not in others]

    def divided(self, fraction: float, seed: int) -> tuple["FileSource", "FileSource"]:
        """Split the rows at random, using hashes; return the training and held-out sources."""
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"the test fraction must be between 0 and 1, but is {fraction!r}")
        return replace(self, part=(fraction, seed, False)), replace(self, part=(fraction, seed, True))

    def __iter__(self) -> Iterator[Block]:
        wanted = None if self.columns is None else tuple(dict.fromkeys((*self.columns, *self.beside)))
        for file in files_of(self.path):
            first = 0
            for table in tables_of(file, wanted, self.types):
                block = Block(table, file, first + np.arange(table.num_rows))
                first += table.num_rows
                if self.part is not None:  # hashes of the columns `split_by`, or of all columns
                    fraction, seed, is_aside = self.part
                    names = self.split_by or sorted(table.column_names)
                    with block.placing():
                        hashes = row_hashes(table, names, seed, not self.split_by)
                    block = block.filtered((hashes < np.uint64(fraction * 2.0**64)) == is_aside)
                if block.table.num_rows:
                    yield block

    @property
    def count(self) -> float:
        """The sum of the frequency weights of all rows."""
        return self.of_rows.count

    @property
    def scaled(self) -> bool:
        """True if models may standardise the targets."""
        return self.kind == "real" or self.transform is not None

    def read(self) -> Iterator[Data]:
        """Yield blocks of rows with positive weight; the groups are hashes of `split_by` columns."""
        for block in with_targets(self, self.target, self.encoder.missing):
            with block.placing():
                rows = self.numbers(block.table)
            if len(rows):
                yield rows

    def numbers(self, table: pa.Table) -> Data:
        """Return the rows with positive weight as numbers, standardised if `scales` is set."""
        key = row_hashes(table, self.split_by) if self.split_by else None
        X = self.encoder.encoded(table, new_categories=True)[0]  # the sample may lack some categories
        rows = Data(X, self.targets(table), self.weights(table), key).counted()
        if self.scales is None:
            return rows
        inputs, targets = self.scales
        X, y = inputs.transform(rows.X, self.dtype), targets.transform(rows.y, self.dtype)
        return replace(rows, X=X, y=y)

    def targets(self, table: pa.Table) -> Float[np.ndarray, " N"]:
        """Return the targets of a block; raise TableError for numbers that are stored as text."""
        if self.kind == "class":
            labels: Any = self.labels
            return np.searchsorted(labels, label_column(table, self.target)).astype(np.float64)
        y = target_column(table, self.target, reads_text=False)
        try:
            if self.kind == "count":
                refuse_no_counts(y)
            return self.learned(y)
        except ValueError as error:
            raise TableError(f"target column {self.target!r}: {error}") from error

    def learned(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Return the targets after the transform, if there is one."""
        if self.transform is None:
            return y
        self.transform.check(y)
        return np.asarray(self.transform(y), np.float64)

    def weights(self, table: pa.Table) -> Float[np.ndarray, " N"] | None:
        """Return the frequency weights of the rows of a block."""
        if self.weight is None:
            return None
        column = column_named(table, self.weight)
        if column.kind != "number":
            raise TableError(f"the weight column {self.weight!r} must contain numbers")
        return checked_weights(column.values, f"the weight column {self.weight!r}", "data row")

    def local_blocks(self, size: int) -> Iterator[Data]:
        """Yield all rows on the device in blocks of `size` rows, padded with rows of weight 0."""
        for rows in self.read():
            for start in range(0, len(rows), size):
                yield padded(rows.take(slice(start, start + size)), size, self.dtype)


def with_targets(
    blocks: Iterable[Block], target: str, missing: str, dropped: list[int] | None = None
) -> Iterator[Block]:
    """Remove rows whose target is missing, infinite or huge; "refuse" raises TableError."""
    for block in blocks:
        bad = np.zeros(block.table.num_rows, bool)
        if target in block.table.column_names:
            values = block.table[target]
            bad = values.is_null(nan_is_null=True).to_numpy()
            if pa.types.is_floating(values.type):
                bad |= ~(np.abs(values.to_numpy()) <= LARGEST)
        if bad.any() and missing == "refuse":
            what = f"target column {target!r} has {bad.sum()} missing or infinite value(s), the first at data row {np.argmax(bad) + 1}"
            with block.placing():
                raise TableError(f'{what}; missing="auto" (--set missing=auto) ignores rows with bad targets')
        if dropped is not None:
            dropped.append(int(bad.sum()))
        if not bad.all():
            yield block.filtered(~bad) if bad.any() else block


def row_hashes(
    table: pa.Table, names: Sequence[str], seed: int = 0, allow_missing: bool = False
) -> np.ndarray:
    """Hash the columns `names` of each row (SplitMix64; Steele, Lea and Flood 2014)."""
    found = mixed(np.full(table.num_rows, seed, np.uint64))
    for name in names:
        series = nw.from_native(table[name], series_only=True)
        column = read_any(name, series) if allow_missing else read_column(name, series)
        if column.kind == "text":
            coded = column.values.dictionary_encode()
            texts = (blake2b(text.encode(), digest_size=8).digest() for text in coded.dictionary.to_pylist())
            of_texts = np.array([*(int.from_bytes(text, "little") for text in texts), 0], np.uint64)
            bits = of_texts[coded.indices.fill_null(len(of_texts) - 1).to_numpy()]
        else:
            bits = (np.ascontiguousarray(column.values, np.float64) + 0.0).view(np.uint64)
        found = mixed(found ^ bits)
    return found


def mixed(x: UInt64[np.ndarray, "*N"]) -> UInt64[np.ndarray, "*N"]:
    """Return the outputs of SplitMix64 for the states x."""
    x = x + _GOLDEN  # modulo 2⁶⁴
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def open_files(
    source: FileSource, *, missing: str, seed: int, n_sample: Callable[[int], int]
) -> tuple[FileSource, Data, int]:
    """Add encoder and summary to a source; return it, a sample and the count of removed rows."""
    most = n_sample(len(column_names(source.path)))
    while True:
        try:
            source, hashes, table, n_dropped = _sampled(source, missing, seed, most)
            break
        except TooNarrowError as narrow:
            if source.types.get(narrow.name) == narrow.wider:
                what = f"column {narrow.name!r} contains numbers or dates in some files and text in others"
                raise TableError(f"{source.path}: {what}") from None
            source = replace(source, types={**source.types, narrow.name: narrow.wider})
    with rewording(lambda text: f"{source.path}: {text}"):
        encoder = TableEncoder.fit(table.select(source.inputs(table)), missing)
    source = replace(source, encoder=encoder)
    order = np.argsort(hashes, kind="stable")[: n_sample(len(encoder.output_names))]
    few, found, size = source.numbers(table.take(pa.array(order))), NO_ROWS, 0
    for rows in source.read() if len(order) < source.size else (few,):
        found = found.plus(np.column_stack([rows.X, rows.y]), rows.weight)
        size += len(rows)
    if not size:
        raise TableError(f"{source.path}: there are no rows to learn from")
    return replace(source, size=size, of_rows=found), few, n_dropped


def _sampled(
    source: FileSource, missing: str, seed: int, most: int
) -> tuple[FileSource, np.ndarray, pa.Table, int]:
    """Add size and labels to a source; return it, a sample with hashes and n_dropped."""
    parts: list[tuple[np.ndarray, pa.Table]] = []
    dropped, names, size, target = list[int](), list[str](), 0, source.target
    largest = np.uint64(2**64 - 1)
    for block in with_targets(source, target, missing, dropped):
        with block.placing():
            if source.kind == "class":
                source = replace(source, labels=with_labels(source.labels, block.table, target))
            source.targets(block.table)
            source.weights(block.table)
            names = sorted([*source.inputs(block.table), target])
            hashes = row_hashes(block.table, names, seed, missing != "refuse")
        near = hashes <= largest
        parts.append((hashes[near], block.table.filter(pa.array(near))))
        size += block.table.num_rows
        if sum(len(part[0]) for part in parts) > 2 * most:
            parts = [_smallest(parts, most)]
            largest = parts[0][0].max()
    if not size or len(names) == 1:
        raise TableError(f"{source.path}: there are no rows, or no column besides the target {target!r}")
    return replace(source, size=size), *_smallest(parts, most), sum(dropped)


def _smallest(parts: list[tuple[np.ndarray, pa.Table]], most: int) -> tuple[np.ndarray, pa.Table]:
    """Keep the rows with the smallest hashes; raise TooNarrowError if column types differ."""
    hashes = np.concatenate([part for part, _ in parts])
    kept = np.sort(np.argsort(hashes, kind="stable")[:most])
    try:
        table = pa.concat_tables([table for _, table in parts], promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise TooNarrowError(str(error).partition("Field ")[2].partition(" has incompatible")[0]) from error
    return hashes[kept], table.take(pa.array(kept))
