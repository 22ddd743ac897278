"""Tables from files, whole or some rows at a time, and predictions to files: .csv, .tsv (both also with .gz), .parquet, .feather, .npz, .npy.

A text table has a header line (`csv_files`). Every fault of the file is one line of ValueError that begins with the path.
"""

import contextlib
import functools
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as pa_feather
import pyarrow.parquet as pa_parquet

from stochgp.budget import Budget, format_bytes
from stochgp.names import did_you_mean, quoted
from stochgp.storage.files import replacing

from .columns import TableError
from .csv_files import csv_tables, read_csv

TEXT_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet", ".feather", ".npz")
BLOCK_SUFFIXES = (*TEXT_SUFFIXES, ".parquet", ".feather", ".npy")
WRITABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".feather")
BLOCK_ROWS = 1 << 16
_NOTES = b"stochgp.notes"  # of a schema's metadata
BUFFER_BYTES = 1 << 20  # of a column of parquet that are read at a time

_WRITERS = {
    ".csv": pa_csv.CSVWriter,
    ".tsv": functools.partial(pa_csv.CSVWriter, write_options=pa_csv.WriteOptions(delimiter="\t")),
    ".parquet": pa_parquet.ParquetWriter,
    ".feather": functools.partial(pa.ipc.new_file, options=pa.ipc.IpcWriteOptions(compression="lz4")),
}

# What the readers raise on a damaged file; pyarrow's own errors are OSError or ValueError.
DAMAGE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def read_table(path: str | os.PathLike, memory_limit: Any = None) -> pa.Table:
    """The table in a file, by its suffix.

    csv: first line the names; cells are separated by commas, semicolons, tabs or bars; empty ones and ?, -, NA, n/a, NaN, null, None are missing;
    numbers, true/false, ISO dates and times are recognised, all else is text. npz: a one-dimensional array becomes a column of its name, an
    array X [N, D] the columns X0 … X(D-1). Blanks around names are left out.

    Raises ValueError, in one line, where the file is missing, of unknown suffix, empty, without rows, ragged,
    truncated or damaged.

    Parameters
    ----------
    path : path
        A .csv, .tsv (both also with .gz), .parquet, .feather or .npz file.
    memory_limit : str or int, optional
        As of the estimators: an npz file whose arrays would exceed it is refused unread.
    """
    path = Path(path)
    suffix = file_suffix(path, SUFFIXES)
    if not path.is_file():
        raise ValueError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    if suffix in TEXT_SUFFIXES:
        try:
            table = read_csv(path)
        except DAMAGE as error:
            raise error if str(error).startswith(str(path)) else damaged(path, error) from error
    elif suffix == ".npz":
        table = _read_npz(path, Budget.of(memory_limit))
    else:
        table = _read_arrow(path, suffix)
    names = checked_names(path, table)
    table = _noting_names(table.rename_columns(names), table)
    if table.num_rows == 0:
        raise ValueError(f"{path}: the table has column names ({quoted(table.column_names)}) but no rows")
    return table


def write_table(path: str | os.PathLike, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns of equal length to a .csv, .tsv, .parquet or .feather file, as `table_writer` does.

    Parameters
    ----------
    path : path
        The file, which is made anew.
    columns : mapping of str to array [N]
        The values of each column by its name.
    """
    with table_writer(path) as write:
        write(columns)


@contextlib.contextmanager
def table_writer(path: str | os.PathLike) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """What writes columns of equal length to a .csv, .tsv, .parquet or .feather file: each call more rows of the same columns, at least one call.

    The file is written by `storage.files.replacing`: after a failure, whatever was at `path` is as before. csv numbers have the digits that give the same number back.

    Raises ValueError for an unknown suffix, unequal lengths, or a path that cannot be written.

    Parameters
    ----------
    path : path
        The file, which is made anew.
    """
    path = Path(path)
    suffix = file_suffix(path, WRITABLE_SUFFIXES)
    try:
        with replacing(path) as partial, contextlib.ExitStack() as stack:
            opened: list[Any] = []

            def write(columns: Mapping[str, np.ndarray]) -> None:
                table = _to_table(path, columns)
                if not opened:
                    sink = stack.enter_context(partial.open("wb"))
                    opened.append(stack.enter_context(_WRITERS[suffix](sink, table.schema)))
                opened[0].write_table(table)

            yield write
            if not opened:
                raise ValueError(f"{path}: there are no rows to write")
    except OSError as error:
        if error.filename != str(path):
            raise
        raise ValueError(f"{path}: cannot be written ({error.strerror})") from error


def file_suffix(path: str | os.PathLike, known: tuple[str, ...]) -> str:
    """The suffix of `path` among `known`, in lower case; ValueError with the nearest one otherwise."""
    name = Path(path).name.lower()
    found = [suffix for suffix in known if name.endswith(suffix)]
    if found:
        return max(found, key=len)
    suffix = "".join(Path(name).suffixes[-1:])
    what = f"unknown file type {suffix!r}" if suffix else "the name has no file type"
    near = did_you_mean(suffix, known) if suffix else f"valid: {quoted(known)}"
    raise ValueError(f"{path}: {what}; {near}")


def _read_arrow(path: Path, suffix: str) -> pa.Table:
    try:
        if suffix == ".feather":
            return pa_feather.read_table(path, memory_map=False)
        with pa_parquet.ParquetFile(path) as file:
            return file.read()
    except DAMAGE as error:
        raise damaged(path, error) from error


def _read_npz(path: Path, budget: Budget) -> pa.Table:
    try:
        # np.load also reads a single array and a pickle, which are no tables.
        with zipfile.ZipFile(path) as archive:
            size = sum(_npy_bytes(archive, name) for name in archive.namelist())
    except DAMAGE as error:
        raise damaged(path, error) from error
    with_columns = 2 * size
    budget.require(with_columns, f"{path}: reading its arrays, of {format_bytes(size)},")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except DAMAGE as error:
        raise damaged(path, error) from error
    columns = [column for name, array in arrays.items() for column in _npz_columns(path, name, array)]
    lengths = {name: len(values) for name, values in columns}
    if not columns:
        raise ValueError(f"{path}: the archive holds no arrays")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: arrays of unequal length: {_lengths(lengths)}")
    return pa.Table.from_arrays([pa.array(values) for _, values in columns], [name for name, _ in columns])


def _npy_bytes(archive: zipfile.ZipFile, name: str) -> int:
    """Of an array, as its header says. ValueError for a file in the archive that is none."""
    with archive.open(name) as file:
        shape, _, dtype = _npy_header(file, f"{name!r} in it is no array")
    return math.prod(shape) * dtype.itemsize


def _npy_header(file: Any, otherwise: str | None = None) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(Shape, whether in Fortran's order, dtype) of an array. ValueError for what is none."""
    form = np.lib.format
    try:
        version = form.read_magic(file)
    except ValueError as error:
        raise ValueError(otherwise or str(error)) from error
    return (form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0)(file)


def _npz_columns(path: Path, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if array.dtype.kind not in "biufUM" or array.dtype.itemsize > 8 and array.dtype.kind == "f":
        raise ValueError(f"{path}: array {name!r} has dtype {array.dtype}, which is no column type")
    if array.ndim == 1:
        return [(name, array)]
    if array.ndim == 2 and array.shape[1] == 1:
        return [(name, array[:, 0])]
    if array.ndim == 2 and array.shape[1] > 1:
        return [(f"{name}{j}", array[:, j]) for j in range(array.shape[1])]
    raise ValueError(f"{path}: array {name!r} has shape {array.shape}; expected [N] or [N, D]")


def _to_table(path: Path, columns: Mapping[str, np.ndarray]) -> pa.Table:
    arrays = {str(name): np.asarray(values) for name, values in columns.items()}
    if not arrays:
        raise ValueError(f"{path}: no columns to write")
    for name, values in arrays.items():
        if values.ndim != 1:
            raise ValueError(f"{path}: column {name!r} has shape {values.shape}; expected one dimension")
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: columns of unequal length: {_lengths(lengths)}")
    try:
        return pa.table({name: pa.array(values) for name, values in arrays.items()})
    except pa.ArrowException as error:
        raise ValueError(
            f"{path}: a column has values that no file type holds ({_one_line(error)})"
        ) from error


def checked_names(path: Path, table: pa.Table) -> list[str]:
    """The names without blanks around them; of columns without one "Unnamed: 3", of the second of a name "a.1", as pandas has them."""
    try:
        names = [name.strip() for name in table.column_names]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: the column names are not in UTF-8") from error
    found: list[str] = []
    for position, name in enumerate(names):
        name = name or f"Unnamed: {position}"
        others = [f"{name}.{n}" for n in range(1, len(names)) if f"{name}.{n}" not in names]
        found.append(name if name not in found else next(other for other in others if other not in found))
    return found


def notes_of(table: Any) -> dict[str, str]:
    """What `read_table` has to say of columns, by name."""
    metadata = getattr(getattr(table, "schema", None), "metadata", None)
    return json.loads(metadata[_NOTES]) if isinstance(metadata, dict) and _NOTES in metadata else {}


def _noting_names(table: pa.Table, before: pa.Table) -> pa.Table:
    """With notes of columns that share their name with an earlier one."""
    pairs = zip(table.column_names, before.column_names, strict=True)
    said = {
        new: f"a further column called {old.strip()!r}" for new, old in pairs if old.strip() not in ("", new)
    }
    notes = {_NOTES: json.dumps(said)} if said else {}
    return table.replace_schema_metadata({**(before.schema.metadata or {}), **notes} or None)


def _lengths(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} has {length}" for name, length in list(lengths.items())[:8])


def damaged(path: Path, error: Exception) -> ValueError:
    """The error of a file that a reader gave up on."""
    return ValueError(f"{path}: cannot be read; truncated or damaged? ({_one_line(error)})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def tables_of(
    file: Path,
    columns: tuple[str, ...] | None = None,
    types: Mapping[str, pa.DataType] = MappingProxyType({}),
) -> Iterator[pa.Table]:
    """The rows of a .csv, .tsv (both also with .gz), .parquet, .feather or .npy file, in tables of at most 65,536 rows: memory for one of them, never for all.

    `columns` are the ones that are wanted, None = all; further ones may be among those read. `types` are of columns of text files.
    """
    for table in _READERS[file_suffix(file, BLOCK_SUFFIXES)](file, columns, types):
        for start in range(0, max(1, table.num_rows), BLOCK_ROWS):
            yield table.slice(start, BLOCK_ROWS)


def _of_parquet(file: Path, columns: tuple[str, ...] | None, types: Any) -> Iterator[pa.Table]:
    # pre_buffer would hold all columns of the file in memory.
    with pa_parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False) as parquet:
        names = parquet.schema_arrow.names  # as the file spells them: blanks around names do not count
        wanted = None if columns is None else [name for name in names if name.strip() in columns]
        if parquet.metadata.num_rows == 0:
            yield parquet.schema_arrow.empty_table()
        for batch in parquet.iter_batches(batch_size=BLOCK_ROWS, columns=wanted):
            yield pa.Table.from_batches([batch])


def _of_feather(file: Path, columns: Any, types: Any) -> Iterator[pa.Table]:
    with pa.OSFile(str(file)) as opened, pa.ipc.open_file(opened) as batches:
        for number in range(batches.num_record_batches):
            yield pa.Table.from_batches([batches.get_batch(number)])


def _of_csv(file: Path, columns: Any, types: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """All columns are read, since messages number them as they are in the file."""
    return csv_tables(file, types)


def _of_npy(file: Path, columns: Any, types: Any) -> Iterator[pa.Table]:
    """By reading: pages of a memory map would count as memory in use."""
    with open(file, "rb") as opened:
        shape, fortran, dtype = _npy_header(opened)
        if len(shape) != 2 or fortran or dtype.kind not in "biuf":
            raise TableError(f"{file}: expected an array of numbers [N, D] in C order, not {dtype} {shape}")
        for first in range(0, shape[0], BLOCK_ROWS):
            values = np.empty((min(BLOCK_ROWS, shape[0] - first), shape[1]), dtype)
            if opened.readinto(values.data.cast("B")) != values.nbytes:
                raise TableError(f"{file}: the file ends before its {shape[0]} rows")
            names = [f"x{j}" for j in range(shape[1])]
            yield pa.table([pa.array(values[:, j]) for j in range(shape[1])], names)


_READERS = {
    **dict.fromkeys(TEXT_SUFFIXES, _of_csv),
    ".parquet": _of_parquet,
    ".feather": _of_feather,
    ".npy": _of_npy,
}
