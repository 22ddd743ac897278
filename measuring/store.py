"""Results on disk: one JSON line per finished cell, appended whole or not at all."""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
Record = dict[str, Any]
Group = dict[str, tuple[str, ...]]
"""Settings by name, each with the values that are wanted, as text."""


def key(cell: Cell) -> str:
    """The cell as text, whatever the order of its settings."""
    return json.dumps(cell, sort_keys=True)


def read(path: Path) -> list[Record]:
    """The records of a file, the last one of each cell; a line cut short by a kill is passed over."""
    if not path.exists():
        return []
    records = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[key(record["settings"])] = record
    return list(records.values())


def append(path: Path, record: Record) -> None:
    """One line more, on disk when this returns. A line cut short before it is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(_finite(record), allow_nan=False) + "\n"
    if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        line = "\n" + line
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def select(records: list[Record], **settings: Any) -> list[Record]:
    """The records whose cells have these settings."""
    return [r for r in records if all(r["settings"].get(k) == v for k, v in settings.items())]


def add_only(parser: argparse.ArgumentParser) -> None:
    """The option --only, whose words `conditions` reads."""
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="only cells with these settings; VALUE,VALUE is or",
    )


def conditions(words: list[str]) -> Group:
    """`key=value,value` as {key: (value, value)}."""
    pairs = [word.partition("=") for word in words]
    return {name: tuple(values.split(",")) for name, _, values in pairs}


def wanted(cell: Cell, only: Group) -> bool:
    """Whether every setting named has one of its values."""
    return all(str(cell.get(name)) in values for name, values in only.items())


def _finite(value: Any) -> Any:
    """Numbers that are not finite become null, which every reader of JSON takes."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
