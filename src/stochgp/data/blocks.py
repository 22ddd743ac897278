"""The rows of a file, or of all files of a folder, block by block: memory for a block, never for all rows."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from jaxtyping import Bool, Float, Int, UInt64

from stochgp.names import did_you_mean, lookup, quoted

from .columns import TableError
from .files import CSV_NULLS, DAMAGE, check_csv_start, checked_names, damaged, file_suffix
from .hashing import hash_again, hash_rows, is_below

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather", ".npy")
BLOCK_ROWS = 1 << 16
CSV_BYTES = 1 << 22  # of text that are parsed at a time
BUFFER_BYTES = 1 << 20  # of a column of parquet that are read at a time

_WIDER = {"null": pa.float64(), "int64": pa.float64()}  # all else becomes text
_ROW = re.compile(r"data row (\d+)")
_NARROW = re.compile(r"In CSV column #(\d+): .*conversion error to (\w+)")


class Block(NamedTuple):
    """Some rows of a file that follow one another."""

    table: pa.Table
    file: Path
    first_row: int  # in its file, from 0
    kept: Int[np.ndarray, " N"] | None = (
        None  # numbers of the rows that were not left out, from 0; None = of all
    )

    def placed(self, error: TableError) -> TableError:
        """The fault, with the name of the file and the rows' numbers in it."""
        read = lambda row: row if self.kept is None else int(self.kept[row - 1]) + 1
        number = lambda found: f"data row {read(int(found[1])) + self.first_row}"
        return TableError(f"{self.file}: {_ROW.sub(number, str(error))}")


class Part(NamedTuple):
    """Rows of a random division by the values of the rows, or of some of their columns: a `fraction` of them is set aside."""

    fraction: float
    seed: int
    set_aside: bool  # whether these are the rows set aside, or the others

    def holds(
        self,
        X: Float[np.ndarray, "N D"],
        y: Float[np.ndarray, " N"],
        key: UInt64[np.ndarray, " N"] | None = None,
    ) -> Bool[np.ndarray, " N"]:
        """Which of the rows belong to it: by their numbers as the encoder makes them, and their targets; or by `key` (`hash_keys`) alone."""
        hashes = hash_rows(X, y, self.seed) if key is None else hash_again(key, self.seed)
        return is_below(hashes, self.fraction) == self.set_aside


class TooNarrowError(ValueError):
    """A column of text files holds values of a wider type than its first rows."""

    def __init__(self, name: str, wider: pa.DataType):
        super().__init__(f"column {name!r} needs {wider}")
        self.name, self.wider = name, wider


@dataclass(frozen=True)
class Blocks:
    """Rows that are read from files whenever they are iterated over, in the same order: files by their names, at most 65,536 rows at a time.

    `path` is a .csv, .csv.gz, .parquet, .feather or .npy file (an array [N, D], its columns x0 … x(D−1)), or a folder whose files are all of
    one of these types and have the same columns. `columns` are the ones to read, None = all.

    Of text files a column has the type that its first rows show. Iterating raises TooNarrowError where later ones need another: go on
    with `widened`.

    `weight` names a column of weights, which is no input: a row of weight ρ counts as ρ rows. `split_by` names columns whose values belong
    together, such as patients or months: rows that agree in them are on the same side of every division. They are inputs unless `columns`
    leaves them out.

    `bad_rows` says what becomes of rows that cannot be learned from (`bad_rows.good_blocks`): "refuse" or "skip". Iterating gives all rows.
    """

    path: Path
    columns: tuple[str, ...] | None = None
    part: Part | None = None  # of the rows that a reader is to keep
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    bad_rows: str = "refuse"
    weight: str | None = None
    split_by: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        path: str | os.PathLike,
        *,
        bad_rows: str = "refuse",
        weight: str | None = None,
        split_by: Sequence[str] = (),
    ) -> "Blocks":
        """Raises ValueError, in one line, where there is no such file or folder, it holds no tables of one type, or lacks a column that is named."""
        lookup(bad_rows, dict.fromkeys(("refuse", "skip")), "bad_rows")
        if isinstance(split_by, str):
            raise TypeError(f"split_by must be names of columns, such as ({split_by!r},), not one text")
        blocks = cls(Path(path), bad_rows=bad_rows, weight=weight, split_by=tuple(split_by))
        blocks.files()
        return blocks._checked(blocks.beside)

    def files(self) -> tuple[Path, ...]:
        """The file, or those of the folder and of folders in it, sorted by their names."""
        if not self.path.is_dir():
            file_suffix(self.path, SUFFIXES)
            if not self.path.is_file():
                raise ValueError(f"{self.path}: no such file")
            return (self.path,)
        found = [path for path in self.path.rglob("*") if path.is_file() and path.name[0] not in "._"]
        files = tuple(sorted(found, key=lambda path: path.relative_to(self.path).as_posix()))
        suffixes = sorted({file_suffix(path, SUFFIXES) for path in files})
        if not files:
            raise ValueError(f"{self.path}: the folder holds no files")
        if len({suffix.removesuffix(".gz") for suffix in suffixes}) > 1:
            raise ValueError(f"{self.path}: the folder holds files of more than one type: {quoted(suffixes)}")
        return files

    def names(self) -> list[str]:
        """Of all columns of the first file. Raises ValueError, with its name, where it cannot be read."""
        first = self.files()[0]
        try:
            block = next(_reader(first)(first, None, {}), None)
        except DAMAGE as error:
            raise self._fault(first, error) from error
        if block is None:
            raise ValueError(f"{first}: the file holds no rows")
        return checked_names(first, block.table)

    def only(self, columns: tuple[str, ...]) -> "Blocks":
        """These columns. Raises ValueError for a name that the first file does not have, with the nearest."""
        return replace(self._checked(columns), columns=columns)

    def _checked(self, columns: tuple[str, ...]) -> "Blocks":
        names = self.names() if columns else []
        for name in columns:
            if name not in names:
                raise ValueError(f"no column {name!r} in {self.path}; {did_you_mean(name, names)}")
        return self

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that are read whether they are inputs or not."""
        return self.split_by if self.weight is None else (self.weight, *self.split_by)

    def inputs(self, table: pa.Table, target: str) -> list[str]:
        """Names of the columns of a block that are inputs."""
        wanted = table.column_names if self.columns is None else self.columns
        return [name for name in table.column_names if name in wanted and name not in (target, self.weight)]

    def divided(self, fraction: float, seed: int) -> tuple["Blocks", "Blocks"]:
        """(All but, and) the rows set aside: a row is one of them if the hash of its numbers says so, in whatever order or files rows are.

        Raises ValueError unless 0 < fraction < 1.
        """
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"the test fraction must lie between 0 and 1, not {fraction!r}")
        return replace(self, part=Part(fraction, seed, False)), replace(self, part=Part(fraction, seed, True))

    def widened(self, narrow: TooNarrowError) -> "Blocks":
        """With the type that the column needs."""
        return replace(self, types={**self.types, narrow.name: narrow.wider})

    def __iter__(self) -> Iterator[Block]:
        wanted = None if self.columns is None else tuple(dict.fromkeys((*self.columns, *self.beside)))
        for file in self.files():
            try:
                yield from _whole(file, _reader(file)(file, wanted, self.types), wanted)
            except DAMAGE as error:
                if isinstance(error, TableError):
                    raise
                raise self._fault(file, error) from error

    def _fault(self, file: Path, error: Exception) -> Exception:
        """A type that the first rows of a text file did not show, or damage."""
        narrow = _NARROW.search(str(error))
        if narrow is None:
            return error if str(error).startswith(str(file)) else damaged(file, error)
        name = _csv_names(file)[int(narrow[1])].strip()
        return TooNarrowError(name, _WIDER.get(narrow[2], pa.string()))


def _reader(file: Path) -> Any:
    return _READERS[file_suffix(file, SUFFIXES)]


def _whole(file: Path, blocks: Iterator[Block], columns: tuple[str, ...] | None) -> Iterator[Block]:
    """The blocks, cut to the usual size, of files that have the columns."""
    for block in blocks:
        names = checked_names(file, block.table)
        table = block.table.rename_columns(names)
        absent = [name for name in columns or () if name not in names]
        if absent:
            raise TableError(f"{file}: there is no column {quoted(absent)}; {did_you_mean(absent[0], names)}")
        table = table if columns is None else table.select(list(columns))
        for start in range(0, table.num_rows, BLOCK_ROWS):
            yield Block(table.slice(start, BLOCK_ROWS), file, block.first_row + start)


def _of_parquet(file: Path, columns: tuple[str, ...] | None, types: Any) -> Iterator[Block]:
    # pre_buffer would hold all columns of the file in memory.
    with pa_parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False) as parquet:
        wanted, first = None if columns is None else _own_names(parquet.schema_arrow.names, columns), 0
        if parquet.metadata.num_rows == 0:
            yield Block(parquet.schema_arrow.empty_table(), file, 0)
        for batch in parquet.iter_batches(batch_size=BLOCK_ROWS, columns=wanted):
            yield Block(pa.Table.from_batches([batch]), file, first)
            first += batch.num_rows


def _own_names(names: list[str], columns: tuple[str, ...]) -> list[str]:
    """Those of the columns as the file spells them: blanks around names do not count."""
    return [name for name in names if name.strip() in columns]


def _of_feather(file: Path, columns: tuple[str, ...] | None, types: Any) -> Iterator[Block]:
    with pa.OSFile(str(file)) as opened, pa.ipc.open_file(opened) as batches:
        first = 0
        for number in range(batches.num_record_batches):
            table = pa.Table.from_batches([batches.get_batch(number)])
            yield Block(table, file, first)
            first += table.num_rows


def _of_csv(file: Path, columns: tuple[str, ...] | None, types: Mapping[str, pa.DataType]) -> Iterator[Block]:
    """All columns are read, since messages number them as they are in the file."""
    with pa.input_stream(str(file)) as stream:
        check_csv_start(file, stream.read(1 << 16))
    typed = {name: types[name.strip()] for name in _csv_names(file) if name.strip() in types}
    first = 0
    with _open_csv(file, typed) as batches:
        for batch in batches:
            yield Block(pa.Table.from_batches([batch]), file, first)
            first += batch.num_rows


def _csv_names(file: Path) -> list[str]:
    with _open_csv(file, {}) as batches:
        checked_names(file, batches.schema.empty_table())
        return batches.schema.names


def _open_csv(file: Path, types: Mapping[str, pa.DataType]) -> Any:
    return pa_csv.open_csv(
        file,
        read_options=pa_csv.ReadOptions(block_size=CSV_BYTES),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=types, null_values=CSV_NULLS, strings_can_be_null=True
        ),
    )


def _of_npy(file: Path, columns: tuple[str, ...] | None, types: Any) -> Iterator[Block]:
    """By reading: pages of a memory map would count as memory in use."""
    with open(file, "rb") as opened:
        version = np.lib.format.read_magic(opened)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read_header(opened)
        if len(shape) != 2 or fortran or dtype.kind not in "biuf":
            raise TableError(f"{file}: expected an array of numbers [N, D] in C order, not {dtype} {shape}")
        for first in range(0, shape[0], BLOCK_ROWS):
            values = np.empty((min(BLOCK_ROWS, shape[0] - first), shape[1]), dtype)
            if opened.readinto(values.data.cast("B")) != values.nbytes:
                raise TableError(f"{file}: the file ends before its {shape[0]} rows")
            names = [f"x{j}" for j in range(shape[1])]
            yield Block(pa.table([pa.array(values[:, j]) for j in range(shape[1])], names), file, first)


_READERS = {
    ".csv": _of_csv,
    ".csv.gz": _of_csv,
    ".parquet": _of_parquet,
    ".feather": _of_feather,
    ".npy": _of_npy,
}
