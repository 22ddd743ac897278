"""Text tables as they come: separated by commas, semicolons, tabs or bars, in UTF-8 or Latin-1, with or without a byte-order mark."""

import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv

from .columns import MISSING_VALUES, TableError, is_number
from .readings import DECIMAL, decimal_mark

CSV_BYTES = 1 << 22  # of text that are parsed at a time
START = 1 << 16  # bytes by which a file is known
LINES = 50
NULLS = [*MISSING_VALUES, *(f" {text}" for text in MISSING_VALUES if text)]  # as after a comma and a blank
NO_TYPES: Mapping[str, pa.DataType] = MappingProxyType({})


class Form(NamedTuple):
    """How a text table is written."""

    delimiter: str = ","
    encoding: str = "utf8"
    decimal: str = ""  # "" if unknown: then a number has a point
    n_before: int = 0  # lines before that of the names

    def options(self, types: Mapping[str, pa.DataType] = NO_TYPES) -> dict[str, Any]:
        """For pyarrow's readers."""
        converted = pa_csv.ConvertOptions(null_values=NULLS, strings_can_be_null=True, column_types=types)
        converted.decimal_point = self.decimal or "."
        parsed = pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        return {"parse_options": parsed, "convert_options": converted}


def form_of(file: Path) -> Form:
    """By the first bytes. Raises ValueError where the file is empty, in UTF-16, or has no line of names."""
    with pa.input_stream(str(file)) as stream:
        start = stream.read(START)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{file}: the text is UTF-16; save it as UTF-8")
    text, encoding = _decoded(start.removeprefix(b"\xef\xbb\xbf"), len(start) == START)
    lines = text.strip().splitlines()
    if not lines:
        raise ValueError(f"{file}: the file is empty")
    says = re.fullmatch("sep=(.)", lines[0], re.IGNORECASE)  # as a first line for Excel
    lines = lines[1:] if says and len(lines) > 1 else lines
    delimiter = says[1] if says else "\t" if ".tsv" in file.suffixes[-2:] else None
    delimiter = delimiter or _delimiter(lines[: -1 if len(start) == START else None][:LINES] or lines)
    cells = next(csv.reader(lines[:1], delimiter=delimiter))
    if all(map(is_number, cells)) and not all(cell.strip().isdigit() for cell in cells):
        raise ValueError(
            f"{file}: the first line holds numbers ({lines[0][:40]}); it must hold the column names"
        )
    rows = csv.reader(lines[1 : -1 if len(start) == START else None], delimiter=delimiter)
    columns = itertools.zip_longest(*rows, fillvalue="")
    different = (pa.array(cells, pa.large_string()).unique() for cells in columns)
    return Form(delimiter, encoding, decimal_mark(different, delimiter), int(says is not None))


def read_csv(file: Path) -> pa.Table:
    """All rows. Raises pyarrow's errors, with the row where the reader knows it."""
    form = form_of(file)
    try:
        found = _parsed(file, form, use_threads=True)
    except pa.ArrowInvalid as error:
        raise _with_row_number(file, form, error) from error
    if form.encoding == "utf8" and any(pa.types.is_binary(kind) for kind in found.schema.types):
        found = _parsed(file, form._replace(encoding="latin1"), use_threads=True)
    return found.replace_schema_metadata({DECIMAL: form.decimal}) if form.decimal else found


def csv_tables(file: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """All columns, some rows at a time; `types` are of columns by their names without blanks around them."""
    form = form_of(file)
    typed = {name: types[name.strip()] for name in _names(file, form) if name.strip() in types}
    with _opened(file, form, typed) as batches:
        for batch in batches:
            yield pa.Table.from_batches([batch])


def csv_names(file: Path) -> list[str]:
    """The names in the first line, as they are."""
    return _names(file, form_of(file))


def _names(file: Path, form: Form) -> list[str]:
    with _opened(file, form, {}) as batches:
        try:
            return list(batches.schema.names)
        except UnicodeDecodeError as error:
            raise TableError(f"{file}: the column names are not in UTF-8") from error


def _opened(file: Path, form: Form, types: Mapping[str, pa.DataType]) -> Any:
    read = pa_csv.ReadOptions(block_size=CSV_BYTES, encoding=form.encoding, skip_rows=form.n_before)
    return pa_csv.open_csv(file, read_options=read, **form.options(types))


def _parsed(file: Path, form: Form, use_threads: bool) -> pa.Table:
    read = pa_csv.ReadOptions(use_threads=use_threads, encoding=form.encoding, skip_rows=form.n_before)
    return pa_csv.read_csv(file, read_options=read, **form.options())


def _with_row_number(file: Path, form: Form, error: Exception) -> Exception:
    """The same fault read again on one thread, where the reader knows which line it is on."""
    try:
        _parsed(file, form, use_threads=False)
    except pa.ArrowInvalid as numbered:
        return numbered
    return error


def _decoded(start: bytes, is_cut: bool) -> tuple[str, str]:
    """(The text, its encoding): Latin-1 where it is not UTF-8."""
    try:
        return start.decode(), "utf8"
    except UnicodeDecodeError as error:
        if is_cut and error.start > len(start) - 4:  # within a letter
            return start[: error.start].decode(), "utf8"
    try:  # Latin-1 as Windows has it, with €
        return start.decode("cp1252"), "cp1252"
    except UnicodeDecodeError:
        return start.decode("latin-1"), "latin1"


def _delimiter(lines: list[str]) -> str:
    """What divides all lines into as many cells as the first, and most; of none a comma."""
    best, most = ",", 1
    for delimiter in (",", ";", "\t", "|"):
        counts = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        if counts and counts[0] > most and counts.count(counts[0]) >= 0.9 * len(counts):
            best, most = delimiter, counts[0]
    return best
