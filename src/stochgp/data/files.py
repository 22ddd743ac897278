"""Tables from files, whole or some rows at a time, and predictions to files: .csv, .csv.gz, .parquet, .feather, .npz, .npy.

A text table has a header line and is separated by commas. Every fault of the file is one line of ValueError
that begins with the path.
"""

import contextlib
import functools
import math
import os
import secrets
import zipfile
import zlib
from collections import Counter
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

from .columns import TableError

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather", ".npz")
BLOCK_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather", ".npy")
WRITABLE_SUFFIXES = (".csv", ".parquet", ".feather")
MISSING_VALUES = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "None")
CSV_NULLS = [*MISSING_VALUES, *(f" {text}" for text in MISSING_VALUES)]  # as after a comma and a blank
BLOCK_ROWS = 1 << 16
CSV_BYTES = 1 << 22  # of text that are parsed at a time
BUFFER_BYTES = 1 << 20  # of a column of parquet that are read at a time

_WRITERS = {
    ".csv": pa_csv.CSVWriter,
    ".parquet": pa_parquet.ParquetWriter,
    ".feather": functools.partial(pa.ipc.new_file, options=pa.ipc.IpcWriteOptions(compression="lz4")),
}

# What the readers raise on a damaged file; pyarrow's own errors are OSError or ValueError.
DAMAGE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def read_table(path: str | os.PathLike, memory_limit: Any = None) -> pa.Table:
    """The table in a file, by its suffix. An npz file whose arrays would exceed `memory_limit` (as of the estimators) is refused unread.

    csv: first line the names; empty cells and ?, NA, n/a, NaN, null, None are missing; numbers, true/false, ISO dates
    and times are recognised, all else is text. npz: a one-dimensional array becomes a column of its name, an
    array X [N, D] the columns X0 … X(D-1). Blanks around names are left out.

    Raises ValueError, in one line, where the file is missing, of unknown suffix, empty, without rows, ragged,
    truncated or damaged, or where a column has no name or shares one.
    """
    path = Path(path)
    suffix = file_suffix(path, SUFFIXES)
    if not path.is_file():
        raise ValueError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    if suffix in (".csv", ".csv.gz"):
        table = _read_csv(path)
    elif suffix == ".npz":
        table = _read_npz(path, Budget.of(memory_limit))
    else:
        table = _read_arrow(path, suffix)
    table = table.rename_columns(checked_names(path, table))
    if table.num_rows == 0:
        raise ValueError(f"{path}: the table has column names ({quoted(table.column_names)}) but no rows")
    return table


def write_table(path: str | os.PathLike, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns of equal length to a .csv, .parquet or .feather file, as `table_writer` does."""
    with table_writer(path) as write:
        write(columns)


@contextlib.contextmanager
def table_writer(path: str | os.PathLike) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """What writes columns of equal length to a .csv, .parquet or .feather file: each call more rows of the same columns, at least one call.

    The rows go to a temporary file in the same folder, which takes the name at the end: after a failure, whatever was at `path` is as
    before. csv numbers have the digits that give the same number back.

    Raises ValueError for an unknown suffix, unequal lengths, or a path that cannot be written.
    """
    path = Path(path)
    suffix = file_suffix(path, WRITABLE_SUFFIXES)
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, not a file")
    resolved = path.resolve()
    temporary = resolved.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with contextlib.ExitStack() as stack:
            opened: list[Any] = []

            def write(columns: Mapping[str, np.ndarray]) -> None:
                table = _to_table(path, columns)
                with _naming_failures(path):
                    if not opened:
                        sink = stack.enter_context(open(temporary, "xb"))
                        opened.append(stack.enter_context(_WRITERS[suffix](sink, table.schema)))
                    opened[0].write_table(table)

            yield write
        with _naming_failures(path):
            os.replace(temporary, resolved)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _naming_failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({_one_line(error)})") from error


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


def _read_csv(path: Path) -> pa.Table:
    try:
        with pa.input_stream(str(path)) as stream:
            start = stream.read(1 << 16)
    except DAMAGE as error:
        raise damaged(path, error) from error
    _check_csv_start(path, start)
    try:
        return _parse_csv(path, use_threads=True)
    except DAMAGE as error:
        raise damaged(path, _with_row_number(path, error)) from error


def _parse_csv(path: Path, use_threads: bool) -> pa.Table:
    return pa_csv.read_csv(path, read_options=pa_csv.ReadOptions(use_threads=use_threads), **_csv_options())


def _csv_options(**converting: Any) -> dict[str, Any]:
    converted = pa_csv.ConvertOptions(null_values=CSV_NULLS, strings_can_be_null=True, **converting)
    return {"parse_options": pa_csv.ParseOptions(newlines_in_values=True), "convert_options": converted}


def _with_row_number(path: Path, error: Exception) -> Exception:
    """The same fault read again on one thread, where the reader knows which line it is on."""
    try:
        _parse_csv(path, use_threads=False)
    except DAMAGE as numbered:
        return numbered
    return error


def _check_csv_start(path: Path, start: bytes) -> None:
    lines = start.removeprefix(b"\xef\xbb\xbf").strip().splitlines()
    if not lines:
        raise ValueError(f"{path}: the file is empty")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{path}: the text is UTF-16; save it as UTF-8")
    header = lines[0].decode("utf-8", "replace")
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if separator in header and "," not in header:
            raise ValueError(f"{path}: the columns are separated by {name}; save them with commas")
    cells = [cell.strip().strip('"') for cell in header.split(",")]
    if all(_is_number(cell) for cell in cells) and not all(cell.isdigit() for cell in cells):
        raise ValueError(
            f"{path}: the first line holds numbers ({header[:40]}); it must hold the column names"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
    """The names without blanks around them."""
    try:
        names = [name.strip() for name in table.column_names]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: the column names are not in UTF-8") from error
    for position, name in enumerate(names, start=1):
        if not name:
            raise ValueError(f"{path}: column {position} has no name (a row index? leave it out or name it)")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{path}: more than one column is called {quoted(repeated)}")
    return names


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
    """The rows of a .csv, .csv.gz, .parquet, .feather or .npy file, in tables of at most 65,536 rows: memory for one of them, never for all.

    `columns` are the ones that are wanted, None = all; further ones may be among those read. `types` are of columns of text files.
    """
    for table in _READERS[file_suffix(file, BLOCK_SUFFIXES)](file, columns, types):
        for start in range(0, max(1, table.num_rows), BLOCK_ROWS):
            yield table.slice(start, BLOCK_ROWS)


def csv_names(file: Path) -> list[str]:
    """The names in the first line, as they are."""
    with _open_csv(file, {}) as batches:
        checked_names(file, batches.schema.empty_table())
        return batches.schema.names


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
    with pa.input_stream(str(file)) as stream:
        _check_csv_start(file, stream.read(1 << 16))
    typed = {name: types[name.strip()] for name in csv_names(file) if name.strip() in types}
    with _open_csv(file, typed) as batches:
        for batch in batches:
            yield pa.Table.from_batches([batch])


def _open_csv(file: Path, types: Mapping[str, pa.DataType]) -> Any:
    read_options = pa_csv.ReadOptions(block_size=CSV_BYTES)
    return pa_csv.open_csv(file, read_options=read_options, **_csv_options(column_types=types))


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
    ".csv": _of_csv,
    ".csv.gz": _of_csv,
    ".parquet": _of_parquet,
    ".feather": _of_feather,
    ".npy": _of_npy,
}
