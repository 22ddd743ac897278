"""Reading and writing of table files. Error messages begin with the path."""

import codecs
import contextlib
import csv
import functools
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from stochgp.names import did_you_mean, quoted
from stochgp.storage.writing import replacing

from .columns import MISSING_VALUES, TableError, is_number

TEXT_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet", ".feather")
WRITABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".feather")
BLOCK_ROWS = 1 << 16
BUFFER_BYTES = 1 << 20  # bytes of a parquet column to read at a time
CSV_BYTES = 1 << 22  # bytes of text to parse at a time
START = 1 << 16  # first bytes, which show the form of a text file
LINES = 50
NULLS = [*MISSING_VALUES, *(f" {text}" for text in MISSING_VALUES if text)]  # also with a leading blank
TEXT = pa.string()
_WIDER = {"null": pa.float64(), "int64": pa.float64()}  # other types become text
_NARROW = re.compile(r"In CSV column #(\d+): .*conversion error to (\w+)")

_WRITERS = {
    ".csv": pa_csv.CSVWriter,
    ".tsv": functools.partial(pa_csv.CSVWriter, write_options=pa_csv.WriteOptions(delimiter="\t")),
    ".parquet": pa_parquet.ParquetWriter,
    ".feather": functools.partial(pa.ipc.new_file, options=pa.ipc.IpcWriteOptions(compression="lz4")),
}

# Errors of the readers for a damaged file; pyarrow's errors are OSError or ValueError.
DAMAGE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, zlib.error)


def read_table(path: str | os.PathLike) -> pa.Table:
    """Return the table in a .csv, .tsv (both also with .gz), .parquet or .feather file.

    In text files, empty cells and ?, -, NA, n/a, NaN, null, None are missing values. Numbers, true/false, and
    ISO dates and times are recognised.

    Raises ValueError for a file that is missing, empty, ragged or damaged, or has an unknown suffix.

    Parameters
    ----------
    path : path
        The file.
    """
    path, types = Path(path), dict[str, pa.DataType]()
    if path.is_dir():
        raise ValueError(f"{path}: is not a file")
    files_of(path)
    while True:
        try:
            table = pa.concat_tables(tables_of(path, types=types))
            break
        except TooNarrowError as narrow:
            types[narrow.name] = narrow.wider
    if table.num_rows == 0:
        raise ValueError(f"{path}: the table has column names ({quoted(table.column_names)}) but no rows")
    return table


def write_table(path: str | os.PathLike, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns of equal length to a .csv, .tsv, .parquet or .feather file.

    Parameters
    ----------
    path : path
        The file. An existing file is replaced.
    columns : mapping of str to array [N]
        The values of each column, by name.
    """
    with table_writer(path) as write:
        write(columns)


@contextlib.contextmanager
def table_writer(path: str | os.PathLike) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """Return a function that appends columns of equal length to a file; "-" prints CSV.

    A failure does not change an existing file. Raises ValueError for an unknown suffix or unequal lengths.
    """
    is_text, path = os.fspath(path) == "-", Path(path)
    suffix = ".csv" if is_text else file_suffix(path, WRITABLE_SUFFIXES)
    try:
        with contextlib.ExitStack() as stack:
            partial, opened = None if is_text else stack.enter_context(replacing(path)), list[Any]()

            def write(columns: Mapping[str, np.ndarray]) -> None:
                if not columns:
                    raise ValueError(f"{path}: no columns to write")
                try:
                    table = pa.table({str(name): pa.array(np.asarray(x)) for name, x in columns.items()})
                except pa.ArrowException as error:
                    what = f"these columns cannot be written ({_one_line(error)})"
                    raise ValueError(f"{path}: {what}") from error
                if not opened:
                    sink: Any = None if partial is None else stack.enter_context(partial.open("wb"))
                    sink = sys.stdout.buffer if sink is None else sink
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
    """Return the suffix of `path` in lower case. Raises ValueError for unknown suffixes."""
    name = Path(path).name.lower()
    found = [suffix for suffix in known if name.endswith(suffix)]
    if found:
        return max(found, key=len)
    suffix = "".join(Path(name).suffixes[-1:])
    what = f"unknown file type {suffix!r}" if suffix else "the name has no file type"
    raise ValueError(f"{path}: {what}; {did_you_mean(suffix, known)}")


def files_of(path: str | os.PathLike) -> tuple[Path, ...]:
    """Return the file, or all files in a folder, sorted. Raises ValueError for mixed types."""
    path = Path(path)
    if not path.is_dir():
        file_suffix(path, SUFFIXES)
        if not path.is_file():
            raise ValueError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
        return (path,)
    found = [file for file in path.rglob("*") if file.is_file() and file.name[0] not in "._"]
    suffixes = sorted({file_suffix(file, SUFFIXES) for file in found})
    if not found:
        raise ValueError(f"{path}: the folder contains no files")
    if len({suffix.removesuffix(".gz") for suffix in suffixes}) > 1:
        raise ValueError(f"{path}: the folder contains files of more than one type: {quoted(suffixes)}")
    return tuple(sorted(found, key=lambda file: file.relative_to(path).as_posix()))


def column_names(path: str | os.PathLike) -> list[str]:
    """Return the column names of the first file. Raises ValueError if it cannot be read."""
    return next(tables_of(files_of(path)[0])).column_names


class TooNarrowError(Exception):
    """Error for a column of a text file whose later values need a wider type."""

    def __init__(self, name: str, wider: pa.DataType = TEXT):
        super().__init__(f"column {name!r} needs {wider}")
        self.name, self.wider = name, wider


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _named(table: pa.Table) -> pa.Table:
    """Return the table with stripped, complete and unique column names, as in pandas."""
    names, found = [name.strip() or f"Unnamed: {j}" for j, name in enumerate(table.column_names)], list[str]()
    for name in names:
        others = (other for n in range(1, len(names)) if (other := f"{name}.{n}") not in (*names, *found))
        found.append(next(others) if name in found else name)
    return table.rename_columns(found)


def tables_of(
    file: Path, columns: tuple[str, ...] | None = None, types: Mapping[str, pa.DataType] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a file in tables of at most 65,536 rows; `columns` None = all."""
    suffix = file_suffix(file, SUFFIXES)
    try:
        if suffix in TEXT_SUFFIXES:  # all columns, because messages number them as in the file
            tables = _of_csv(file, types or {})
        else:
            tables = _of_parquet(file, columns) if suffix == ".parquet" else _of_feather(file)
        for table in tables:
            table = _named(table)
            names = table.column_names
            for name in columns or ():
                if name not in names:
                    raise TableError(f"{file}: there is no column {name!r}; {did_you_mean(name, names)}")
            table = table if columns is None else table.select(list(columns))
            for start in range(0, max(1, table.num_rows), BLOCK_ROWS):
                yield table.slice(start, BLOCK_ROWS)
    except DAMAGE as error:
        if str(error).startswith(str(file)):
            raise
        raise ValueError(f"{file}: cannot be read; is the file damaged? ({_one_line(error)})") from error


def _of_parquet(file: Path, columns: tuple[str, ...] | None) -> Iterator[pa.Table]:
    # pre_buffer would hold all columns of the file in memory.
    with pa_parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False) as parquet:
        empty = parquet.schema_arrow.empty_table()  # ignores blanks around names
        wanted = None if columns is None else [name for name in empty.column_names if name.strip() in columns]
        yield empty if wanted is None else empty.select(wanted)
        for batch in parquet.iter_batches(BLOCK_ROWS, columns=wanted):
            yield pa.Table.from_batches([batch])


def _of_feather(file: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(file)) as opened, pa.ipc.open_file(opened) as batches:
        yield batches.schema.empty_table()
        for number in range(batches.num_record_batches):
            yield pa.Table.from_batches([batches.get_batch(number)])


def _of_csv(file: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """Yield tables of all columns; the keys of `types` are stripped column names."""
    form, names = _csv_form(file)
    typed = {name: types[name.strip()] for name in names if name.strip() in types}
    form["convert_options"].column_types = typed
    try:
        with pa_csv.open_csv(file, **form) as batches:
            yield batches.schema.empty_table()
            for batch in batches:
                yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        narrow = _NARROW.search(str(error))
        if narrow is None:
            raise
        raise TooNarrowError(names[int(narrow[1])].strip(), _WIDER.get(narrow[2], TEXT)) from error


def _csv_form(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return options for pyarrow's readers, and the names, from the first bytes of a file."""
    with pa.input_stream(str(file)) as stream:
        start = stream.read(START)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{file}: the text is UTF-16; save it as UTF-8")
    is_cut, encoding = len(start) == START, _encoding(file, file.stat().st_size, file.stat().st_mtime_ns)
    text = start.removeprefix(b"\xef\xbb\xbf").decode(encoding, "ignore")
    lines = text.strip().splitlines()
    if not lines:
        raise ValueError(f"{file}: the file is empty")
    says = re.fullmatch("sep=(.)", lines[0], re.IGNORECASE)  # a first line for Excel
    lines = lines[1:] if says and len(lines) > 1 else lines
    delimiter = says[1] if says else "\t" if ".tsv" in file.suffixes[-2:] else None
    delimiter = delimiter or _delimiter(lines[: -1 if is_cut else None][:LINES] or lines)
    cells = next(csv.reader(lines[:1], delimiter=delimiter))
    if all(map(is_number, cells)) and not all(cell.strip().isdigit() for cell in cells):
        what = f"the first line contains numbers ({lines[0][:40]})"
        raise ValueError(f"{file}: {what}; it must contain the column names")
    rows = csv.reader(lines[1 : -1 if is_cut else None], delimiter=delimiter)
    has_comma = delimiter == ";" and any(re.fullmatch(r"[-+]?\d+,\d+", cell) for row in rows for cell in row)
    mark, skipped = "," if has_comma else ".", int(bool(says))
    convert = pa_csv.ConvertOptions(null_values=NULLS, strings_can_be_null=True, decimal_point=mark)
    # Without threads, errors include the row.
    read = pa_csv.ReadOptions(use_threads=False, block_size=CSV_BYTES, encoding=encoding, skip_rows=skipped)
    parse = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    return {"read_options": read, "parse_options": parse, "convert_options": convert}, cells


@functools.lru_cache
def _encoding(file: Path, size: int, changed: int) -> str:
    for encoding in ("utf8", "cp1252"):
        decoder = codecs.getincrementaldecoder(encoding)()
        with contextlib.suppress(UnicodeDecodeError), pa.input_stream(str(file)) as stream:
            while chunk := stream.read(CSV_BYTES):
                decoder.decode(chunk)
            decoder.decode(b"", True)
            return encoding
    return "latin1"


def _delimiter(lines: list[str]) -> str:
    """Return the delimiter that gives lines the same, largest number of cells; else a comma."""
    best, most = ",", 1
    for delimiter in (",", ";", "\t", "|"):
        counts = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        if counts and counts[0] > most and counts.count(counts[0]) >= 0.9 * len(counts):
            best, most = delimiter, counts[0]
    return best
