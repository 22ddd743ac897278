"""The rows of a file, or of all files of a folder, block by block: memory for a block, never for all rows; and their random division by hashes."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import narwhals as nw
import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int, UInt64

from stochgp.names import did_you_mean, quoted
from stochgp.tables.columns import LARGEST, TableError, read_any, read_column, row_of_first, whole
from stochgp.tables.files import SUFFIXES, TooNarrowError, file_suffix, tables_of

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
        """These rows."""
        return Block(self.table.filter(pa.array(kept)), self.file, self.rows[kept])


@dataclass(frozen=True)
class Blocks:
    """Rows that are read from files whenever they are iterated over, in the same order: files by their names, at most 65,536 rows at a time.

    Of text files a column has the type that its first rows show. Iterating raises TooNarrowError where later ones need another: go on
    with the wider type among `types`. Made by `Blocks.of`, which checks that the files are there.

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
    """

    path: Path
    columns: tuple[str, ...] | None = None
    part: tuple[float, int, bool] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    weight: str | None = None
    split_by: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, path: str | os.PathLike, *, weight: str | None = None, split_by: Sequence[str] = ()
    ) -> "Blocks":
        """Raises ValueError, in one line, where there is no such file or folder, it holds no tables of one type, or lacks a column that is named."""
        if isinstance(split_by, str):
            raise TypeError(f"split_by must be names of columns, such as ({split_by!r},), not one text")
        blocks = cls(Path(path), weight=weight, split_by=tuple(split_by))
        blocks.files()
        blocks.only(blocks.beside)
        return blocks

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
        return next(tables_of(self.files()[0])).column_names

    def only(self, columns: tuple[str, ...]) -> "Blocks":
        """These columns. Raises ValueError for a name that the first file does not have, with the nearest."""
        names = self.names() if columns else []
        for name in columns:
            if name not in names:
                raise ValueError(f"no column {name!r} in {self.path}; {did_you_mean(name, names)}")
        return replace(self, columns=columns)

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that are read whether they are inputs or not."""
        return self.split_by if self.weight is None else (self.weight, *self.split_by)

    def inputs(self, table: pa.Table, target: str) -> list[str]:
        """Names of the columns of a block that are inputs."""
        wanted = table.column_names if self.columns is None else self.columns
        return [name for name in table.column_names if name in wanted and name not in (target, self.weight)]

    def divided(self, fraction: float, seed: int) -> tuple["Blocks", "Blocks"]:
        """(All but, and) the rows set aside: a row is one of them if the hash of its values says so, in whatever order or files rows are.

        Raises ValueError unless 0 < fraction < 1.
        """
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"the test fraction must lie between 0 and 1, not {fraction!r}")
        return replace(self, part=(fraction, seed, False)), replace(self, part=(fraction, seed, True))

    def __iter__(self) -> Iterator[Block]:
        wanted = None if self.columns is None else tuple(dict.fromkeys((*self.columns, *self.beside)))
        for file in self.files():
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


def with_targets(
    blocks: Iterable[Block], target: str, missing: str, dropped: list[int] | None = None
) -> Iterator[Block]:
    """The blocks without rows whose target is missing, infinite or beyond 1e150, whose numbers are added to `dropped`.

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
    """64 bits of the values that a row has in these columns: SplitMix64 (Steele, Lea and Flood 2014) over the bits of numbers and times in float64, −0 as 0, and over 64 bits of texts."""
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
    """Which rows are among a random `fraction` of all: those whose hash is below it, as a share of 2⁶⁴."""
    return hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


def _mixed(x: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    x = x + _GOLDEN  # modulo 2⁶⁴
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
