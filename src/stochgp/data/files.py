"""Rows in files as a source: read block by block, divided by hashes, a sample of them, and all of them as numbers."""

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

from stochgp.budget import Budget
from stochgp.context import FitContext
from stochgp.names import did_you_mean, lookup
from stochgp.tables.columns import (
    LARGEST,
    TableError,
    read_any,
    read_column,
    rewording,
    row_of_first,
    table_columns,
    whole,
)
from stochgp.tables.encoding import TableEncoder
from stochgp.tables.files import TooNarrowError, column_names, files_of, tables_of
from stochgp.tables.molecules import Encoder, name_inputs
from stochgp.tables.targets import (
    checked_targets,
    checked_weights,
    label_column,
    refuse_no_counts,
    target_column,
    with_labels,
)
from stochgp.warning import warn

from .memory import Source, padded
from .rows import NO_ROWS, Data, Standardiser, Summary
from .time_order import groups_in_time
from .training import TrainingData

MAX_SAMPLE = 1_000_000  # rows to learn θ from: more change it by less than 0.01 nats per row
SAMPLE_SHARE = 0.1  # of the free memory, for the rows of a sample
SAMPLE_SEED = 0x5EED  # added to the user's, so that a sample does not follow the division
_ROW = re.compile(r"data row (\d+)")
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Block(NamedTuple):
    """Some rows of a file."""

    table: pa.Table
    file: Path
    rows: Int[np.ndarray, " N"]  # their numbers in the file, from 0

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """Add the name of the file, and the rows' numbers in it, to errors of the block."""
        try:
            yield
        except TooNarrowError:
            raise
        except ValueError as error:
            number = lambda found: f"data row {self.rows[int(found[1]) - 1] + 1}"
            raise TableError(f"{self.file}: {_ROW.sub(number, str(error))}") from error

    def filtered(self, kept: Bool[np.ndarray, " N"]) -> "Block":
        """Return these rows."""
        return Block(self.table.filter(pa.array(kept)), self.file, self.rows[kept])


@dataclass(frozen=True, eq=False)
class FileSource(Source):
    """Rows that are read from files at each pass, in the same order: files by their names, at most 65,536 rows at a time.

    A column of text files has the type that its first rows show. Iterating raises TooNarrowError where later ones need another: go on
    with the wider type among `types`. Made by `FileSource.of`, which checks that the files are there.

    Parameters
    ----------
    path : Path
        A .csv, .tsv (both also with .gz), .parquet or .feather file, or a folder whose files are all of one of these types and have the same columns.
    columns : tuple of str, optional
        The ones to read; None = all.
    part : (float, int, bool), optional
        The share that a random division sets aside, its seed, and whether to read the rows set aside, or the others; None = all.
    types : mapping of str to Arrow types
        Of columns of text files whose first rows do not show their type.
    weight : str, optional
        A column of weights, which is no input: a row of weight ρ counts as ρ rows.
    split_by : tuple of str
        Columns whose values belong together, such as patients: rows that agree in them are on the same side of every division. They are inputs
        unless `columns` leaves them out.
    target, kind, transform : str, "real" or "count" or "class", AbstractTransform or None
        Set by `fit`, as all below: the target's column, its numbers and their transform without parameters to learn.
    labels, encoder, size, of_inputs, of_targets, scales, dtype, mesh
        All classes, sorted; how inputs become numbers; of all rows the number and summaries; what a model sees.
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
    of_inputs: Summary = NO_ROWS
    of_targets: Summary = NO_ROWS
    scales: tuple[Standardiser, Standardiser] | None = None
    dtype: str = "float64"
    mesh: Mesh | None = None

    @classmethod
    def of(
        cls, path: str | os.PathLike, *, weight: str | None = None, split_by: Sequence[str] = ()
    ) -> "FileSource":
        """Raise ValueError, in one line, where there is no such file or folder, it holds no tables of one type, or lacks a column that is named."""
        if isinstance(split_by, str):
            raise TypeError(f"split_by must be names of columns, such as ({split_by!r},), not one text")
        source = cls(Path(path), weight=weight, split_by=tuple(split_by))
        files_of(path)
        source.only(source.beside)
        return source

    def names(self) -> list[str]:
        """Return the names of all columns of the first file."""
        return column_names(self.path)

    def only(self, columns: tuple[str, ...]) -> "FileSource":
        """Return these columns. Raises ValueError for a name that the first file does not have, with the nearest."""
        names = self.names() if columns else []
        for name in columns:
            if name not in names:
                raise ValueError(f"no column {name!r} in {self.path}; {did_you_mean(name, names)}")
        return replace(self, columns=columns)

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that are read even if they are no inputs."""
        return self.split_by if self.weight is None else (self.weight, *self.split_by)

    def inputs(self, table: pa.Table) -> list[str]:
        """Names of the columns of a block that are inputs."""
        wanted = table.column_names if self.columns is None else self.columns
        return [
            name for name in table.column_names if name in wanted and name not in (self.target, self.weight)
        ]

    def divided(self, fraction: float, seed: int) -> tuple["FileSource", "FileSource"]:
        """Return the other rows, and those set aside: a row is set aside if the hash of its values says so.

        Raises ValueError unless 0 < fraction < 1.
        """
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"the test fraction must lie between 0 and 1, not {fraction!r}")
        return replace(self, part=(fraction, seed, False)), replace(self, part=(fraction, seed, True))

    def __iter__(self) -> Iterator[Block]:
        wanted = None if self.columns is None else tuple(dict.fromkeys((*self.columns, *self.beside)))
        for file in files_of(self.path):
            first = 0
            for table in tables_of(file, wanted, self.types):
                block = Block(table, file, first + np.arange(table.num_rows))
                if self.part is not None:  # by the values in `split_by`, or in all columns that are read
                    fraction, seed, is_aside = self.part
                    with block.placing():
                        names = self.split_by or sorted(table.column_names)
                        hashes = hash_again(hash_keys(table, names, not self.split_by), seed)
                    block = block.filtered(is_below(hashes, fraction) == is_aside)
                if block.table.num_rows:
                    yield block
                first += table.num_rows

    @property
    def count(self) -> float:
        """Σρ of all rows."""
        return self.of_inputs.count

    @property
    def limits(self) -> Float[np.ndarray, "2 D"]:
        """The smallest and the largest value of each input."""
        return np.stack([self.of_inputs.low, self.of_inputs.high])

    def read(self) -> Iterator[tuple[Data, Block]]:
        """Yield rows of positive weight with their block; the hash of the `split_by` columns is their group."""
        for block in with_targets(self, self.target, self.encoder.missing):
            with block.placing():
                rows = self.numbers(block.table)
            if len(rows):
                yield rows, block

    def numbers(self, table: pa.Table) -> Data:
        """Return the rows of positive weight of a part of the files."""
        y, weight = self.targets(table), self.weights(table)
        key = hash_keys(table, self.split_by) if self.split_by else None
        X = self.encoder.encoded(table, new_categories=True)[0]  # a sample may lack some
        rows = Data(X, y, weight, key).counted()
        return replace(rows, y=self.learned(rows.y))

    @property
    def scaled(self) -> bool:
        """True if models may standardise the targets."""
        return self.kind == "real" or self.transform is not None

    def targets(self, table: pa.Table) -> Float[np.ndarray, " N"]:
        """Return the targets of a block before the transform. Text is refused: other blocks may write it otherwise."""
        if self.kind == "class":
            labels: Any = self.labels
            return np.searchsorted(labels, label_column(table, self.target)).astype(np.float64)
        y = target_column(table, self.target, reads_text=False)
        try:
            if self.kind == "count":
                refuse_no_counts(y)
            self.learned(y)
        except ValueError as error:
            raise TableError(f"target column {self.target!r}: {error}") from error
        return y

    def learned(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Return the targets of a model, of these numbers."""
        if self.transform is None:
            return y
        self.transform.check(y)
        return np.asarray(self.transform(y), np.float64)

    def weights(self, table: pa.Table) -> Float[np.ndarray, " N"] | None:
        """Return the column of weights of a block."""
        if self.weight is None:
            return None
        column = read_column(self.weight, table_columns(table)[self.weight])
        if column.kind != "number":
            raise TableError(f"the column of weights {self.weight!r} holds no numbers")
        return checked_weights(column.values, f"the column of weights {self.weight!r}", "data row")

    def local_blocks(self, size: int) -> Iterator[Data]:
        """Yield all rows in order, in blocks of `size` rows on the device; rows of weight 0 fill up the last of a file's block."""
        assert self.scales is not None  # as `read_files` returns it
        for rows, block in self.read():
            for start in range(0, len(rows), size):
                with block.placing():
                    part = rows.take(slice(start, start + size)).standardised(*self.scales, self.dtype)
                yield padded(part, size, self.dtype)


def with_targets(
    blocks: Iterable[Block], target: str, missing: str, dropped: list[int] | None = None
) -> Iterator[Block]:
    """Yield the blocks without rows whose target is missing, infinite or beyond 1e150; add their numbers to `dropped`.

    Raises TableError, with file and row, for such a row if `missing` is "refuse".
    """
    for block in blocks:
        bad = np.zeros(block.table.num_rows, bool)
        if target in block.table.column_names:
            values = block.table[target]
            bad = values.is_null(nan_is_null=True).to_numpy()
            if pa.types.is_floating(values.type):
                bad |= ~(np.abs(values.to_numpy()) <= LARGEST)
        if bad.any() and missing == "refuse":
            what = f"target column {target!r} has {bad.sum()} missing or infinite value(s), the first at data row {row_of_first(bad)}"
            with block.placing():
                raise TableError(f'{what}; missing="auto" (--set missing=auto) leaves such rows out')
        if dropped is not None:
            dropped.append(int(bad.sum()))
        if not bad.all():
            yield block.filtered(~bad) if bad.any() else block


def hash_keys(table: pa.Table, names: Sequence[str], allow_missing: bool = False) -> UInt64[np.ndarray, " N"]:
    """Return 64 bits of the values of each row in these columns by SplitMix64 (Steele, Lea and Flood 2014); −0 is 0."""
    found = np.zeros(table.num_rows, np.uint64)
    for name in names:
        series = nw.from_native(table[name], series_only=True)
        column = read_any(name, series) if allow_missing else read_column(name, series)
        if column.kind == "text":
            coded = whole(column.values).dictionary_encode()
            digests = [
                blake2b(text.encode(), digest_size=8).digest() for text in coded.dictionary.to_pylist()
            ]
            of_texts = np.frombuffer(b"".join([*digests, bytes(8)]), "<u8")  # the last of no text
            bits = of_texts.astype(np.uint64)[coded.indices.fill_null(len(digests)).to_numpy()]
        else:
            bits = (np.ascontiguousarray(column.values, np.float64) + 0.0).view(np.uint64)
        found = _mixed(found ^ bits)
    return found


def hash_again(keys: UInt64[np.ndarray, " N"], seed: int) -> UInt64[np.ndarray, " N"]:
    """Further 64 bits of what has these."""
    return _mixed(_mixed(np.array([seed], np.uint64)) ^ keys)


def is_below(hashes: UInt64[np.ndarray, " N"], fraction: float) -> np.ndarray:
    """Rows whose hash, as a share of 2⁶⁴, is below `fraction`: a random part of them."""
    return hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


def _mixed(x: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    x = x + _GOLDEN  # modulo 2⁶⁴
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def open_files(
    source: FileSource, *, missing: str, seed: int, n_sample: Callable[[int], int]
) -> tuple[FileSource, Data, int]:
    """Return the source with its encoder, labels and summaries; a uniform sample; the number of rows without a target.

    Memory is for a block and twice the sample. Raises TableError, with file and row, for values that cannot be used.
    """
    most = n_sample(len(source.names()))
    while True:
        try:
            source, hashes, table, n_dropped = _sampled(source, missing, seed, most)
            break
        except TooNarrowError as narrow:
            if source.types.get(narrow.name) == narrow.wider:
                what = f"column {narrow.name!r} holds numbers or dates in some files and text in others"
                raise TableError(f"{source.path}: {what}") from None
            source = replace(source, types={**source.types, narrow.name: narrow.wider})
    with rewording(lambda text: f"{source.path}: {text}"):
        encoder = TableEncoder.fit(table.select(source.inputs(table)), missing)
    source = replace(source, encoder=encoder)
    order = np.argsort(hashes, kind="stable")[: n_sample(len(encoder.output_names))]
    few = source.numbers(table.take(pa.array(order)))
    parts = (part for part, _ in source.read()) if len(order) < source.size else (few,)
    X, y, size = NO_ROWS, NO_ROWS, 0
    for part in parts:
        X = X.merged(Summary.of(part.X, part.weight))
        y = y.merged(Summary.of(part.y[:, None], part.weight))
        size += len(part)
    if not size:
        raise TableError(f"{source.path}: there are no rows to learn from")
    return replace(source, size=size, of_inputs=X, of_targets=y), few, n_dropped


def _sampled(
    source: FileSource, missing: str, seed: int, most: int
) -> tuple[FileSource, np.ndarray, pa.Table, int]:
    """Return the source with its size and labels; hashes and table of the rows of smallest hashes; rows without a target."""
    parts: list[tuple[np.ndarray, pa.Table]] = []
    dropped, size, largest, target = list[int](), 0, np.uint64(2**64 - 1), source.target
    for block in with_targets(source, target, missing, dropped):
        with block.placing():
            if source.kind == "class":
                source = replace(source, labels=with_labels(source.labels, block.table, target))
            source.targets(block.table)
            source.weights(block.table)
            names = sorted([*source.inputs(block.table), target])
            hashes = hash_again(hash_keys(block.table, names, missing != "refuse"), seed)
        near = hashes <= largest
        parts.append((hashes[near], block.table.filter(pa.array(near))))
        size += block.table.num_rows
        if sum(len(part[0]) for part in parts) > 2 * most:
            parts = [_smallest(parts, most)]
            largest = parts[0][0].max()
    if not size or len(names) == 1:
        raise TableError(f"{source.path}: there are no input columns with rows beside the target {target!r}")
    return replace(source, size=size), *_smallest(parts, most), sum(dropped)


def _smallest(parts: list[tuple[np.ndarray, pa.Table]], most: int) -> tuple[np.ndarray, pa.Table]:
    """Raise TooNarrowError for a column that holds text in some parts, and other values in others."""
    hashes = np.concatenate([part for part, _ in parts])
    kept = np.sort(np.argsort(hashes, kind="stable")[:most])
    try:
        table = pa.concat_tables([table for _, table in parts], promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise TooNarrowError(str(error).partition("Field ")[2].partition(" has incompatible")[0]) from error
    return hashes[kept], table.take(pa.array(kept))


def read_files(
    estimator: Any,
    X: Any,
    target: Any,
    others: dict[str, Any],
    context: FitContext,
    *,
    keeps_all: bool,
    kind: Literal["real", "count", "class"] = "real",
    transform: Any = None,
) -> tuple[TrainingData, FileSource]:
    """Return a uniform sample of the rows in files, standardised by all of them, with the source of all.

    `others` are arguments of `fit` for rows in memory, which are refused. Raises ValueError or TypeError, with file and row, for values that
    cannot be used, and if a family that `keeps_all` rows has no memory for them.
    """
    lookup(estimator.missing, dict.fromkeys(("auto", "refuse")), "missing")
    if not isinstance(target, str):
        what = (
            f"y must be the name of the target's column where X names files, but is {type(target).__name__}"
        )
        raise TypeError(what)
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} is for rows in memory: X names files")

    source = X if isinstance(X, FileSource) else FileSource.of(X)
    source = replace(source, target=target, kind=kind, transform=transform)
    seed = context.sample_seed + SAMPLE_SEED
    n_sample = lambda n_inputs: _sample_size(n_inputs, context.budget, keeps_all)
    source, rows, n_dropped = open_files(source, missing=estimator.missing, seed=seed, n_sample=n_sample)
    encoder, n_inputs = source.encoder, len(source.encoder.output_names)
    if source.scaled and (
        said := checked_targets(rows.y, None, estimator.target_outliers, leaves_out=False)[1]
    ):
        warn(f"of {len(rows)} rows of the files: {said}", UserWarning, stacklevel=2)
    if keeps_all and source.size > len(rows):
        need, what = 2 * source.size * _row_bytes(n_inputs), f"{source.size} rows of {n_inputs} inputs"
        context.budget.refuse(need, f"a model that keeps {what}")
    names = [column.name for column in encoder.columns]
    name_inputs(estimator, len(names), names)
    if rows.group is None:  # without `split_by`
        place = estimator.time_order
        group = groups_in_time(rows.X, rows.y, encoder, place, context.record, in_order=False)
    else:
        group = np.unique(rows.group, return_inverse=True)[1].astype(np.int32)
        if group.max() == 0:
            raise ValueError("split_by puts all rows into one group; at least two are needed")
    data = _standardised(source, replace(rows, group=group), estimator)
    if n_dropped:
        why = "of the files are not learned from: they have no target"
        warn(f"{n_dropped} rows {why}", UserWarning, stacklevel=2)
        context.record("unused_rows", n_dropped, why)
    note_columns(encoder, context)
    return data, source


def note_columns(encoder: Encoder | None, context: FitContext) -> None:
    """Record columns of the training table that are not taken as they are, and warn of values that may be wrong."""
    if not isinstance(encoder, TableEncoder):
        return
    if encoder.notes:
        context.record("columns", encoder.notes, "columns of the table that are not taken as they are")
    for rule in encoder.columns:
        if rule.caution:
            warn(f"column {rule.name!r}: {rule.caution}", UserWarning, stacklevel=5)


def _standardised(source: FileSource, rows: Data, estimator: Any) -> TrainingData:
    """Return the sample, standardised by all rows unless targets are classes or counts; with the source of all rows if there are others."""
    is_whole, scaled, standardize = source.size == len(rows), source.scaled, bool(estimator.standardize)
    mean = getattr(estimator, "mean", None) if scaled else None
    mean = None if mean is None else float(source.learned(np.array([mean], np.float64))[0])
    rows = rows.merged() if is_whole else rows
    data = TrainingData.of(rows, standardize, mean, estimator.dtype, leaves_targets=not scaled)
    data = replace(data, encoder=source.encoder)
    if is_whole:
        return data
    if standardize:
        data = replace(data, inputs=source.of_inputs.standardiser())
    if standardize and scaled:
        of_y = source.of_targets.standardiser()
        center = of_y.mean[0] if mean is None else np.float64(mean)
        data = replace(data, targets=Standardiser(np.asarray(center), np.asarray(of_y.scale[0])))
    return replace(data, everything=replace(source, scales=(data.inputs, data.targets), dtype=data.dtype))


def _sample_size(n_inputs: int, budget: Budget, keeps_all: bool) -> int:
    """As many rows as memory holds; fewer to learn θ from if a posterior takes in the others one by one."""
    free = budget.free() / _row_bytes(n_inputs)
    return max(1, int(free / 2)) if keeps_all else min(MAX_SAMPLE, max(1, int(SAMPLE_SHARE * free)))


def _row_bytes(n_inputs: int) -> int:
    """In float64, with its hash, twice while a sample grows; and once in float32 on the device."""
    return 2 * 8 * (n_inputs + 2) + 4 * (n_inputs + 2)
