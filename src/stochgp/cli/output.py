"""Reports on stdout, and whether a result can be written: what is asked before anything heavy is loaded."""

import contextlib
import json
import math
import numbers
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stochgp.names import lookup

STDIO = "-"


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """Names and values on stdout: lines for what is known, or one JSON object (None and numbers that are not finite as null)."""
    if as_json:
        sys.stdout.write(
            json.dumps({name: plain(value) for name, value in report.items()}, ensure_ascii=False) + "\n"
        )
        return
    known = {name: value for name, value in report.items() if value is not None}
    width = max(len(name) for name in known)
    for name, value in known.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{name:{width}}  {text}\n")


@contextlib.contextmanager
def table_on_stdout() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """`data.table_writer` as CSV text on the standard output."""
    import pyarrow as pa
    from pyarrow import csv

    writers: list[Any] = []

    def write(columns: Mapping[str, Any]) -> None:
        table = pa.table(dict(columns))
        if not writers:
            writers.append(csv.CSVWriter(sys.stdout.buffer, table.schema))
        writers[0].write_table(table)

    yield write


def with_stdin(arguments: Sequence[str], stack: contextlib.ExitStack) -> list[str]:
    """The arguments with a file in the place of -: the standard input as CSV text, until the stack ends. That of --out means the standard output."""
    found: list[str] = []
    for one in arguments:
        if one != STDIO:
            found.append(one)
        elif found[-1:] == ["--out"]:
            found[-1] = f"--out={STDIO}"
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stochgp-")))
            with (folder / "stdin.csv").open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            found.append(str(folder / "stdin.csv"))
    return found


def check_picture(out: str, *inputs: str) -> None:
    """Refuses before the work a picture that could not be written after it, or that would replace one of the input files."""
    from stochgp.storage.files import check_can_write

    check_can_write(out, inputs)
    lookup(Path(out).suffix, dict.fromkeys((".png", ".pdf", ".svg")), "type of picture")


def write_picture(figure: Any, out: str) -> None:
    """Whole or not at all."""
    from stochgp.storage.files import replacing

    with replacing(out) as partial:
        figure.savefig(partial, format=Path(out).suffix[1:])


def plain(value: Any) -> Any:
    """A JSON value."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value
