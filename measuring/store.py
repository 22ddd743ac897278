"""Folders, and results on disk: one line of JSON for each finished cell."""

import json
import math
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS, BENCHMARKS = (ROOT / package / "results" for package in ("experiments", "benchmarks"))
Cell = dict[str, Any]
Record = dict[str, Any]


def shared(part: str) -> Path:
    """Return `part` of the shared folder, which is beside the checkout or in it."""
    places = [folder / "shared" / part for folder in (ROOT.parent, ROOT)]
    return next((place for place in places if place.exists()), places[0])


def key(cell: Cell) -> str:
    """Return the cell as text, independent of the order of its settings."""
    return json.dumps(cell, sort_keys=True)


def read(path: Path) -> list[Record]:
    """Return the last record of each cell in a file. Incomplete lines are skipped."""
    records = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[key(record["settings"])] = record
    return list(records.values())


def append(path: Path, record: Record) -> None:
    """Append one line to a file on disk. An incomplete last line is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(_finite(record), allow_nan=False) + "\n"
    if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        line = "\n" + line
    with path.open("ab") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def select(records: list[Record], **settings: Any) -> list[Record]:
    """Return the records whose cells have these settings."""
    return [r for r in records if all(r["settings"].get(k) == v for k, v in settings.items())]


def rows(records: list[Record]) -> list[dict[str, Any]]:
    """Return the settings and results of each record in one dictionary."""
    return [record["settings"] | record["results"] for record in records]


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by null, which is valid JSON."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
