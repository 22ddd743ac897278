"""Benchmarks of many cells that go on where they were stopped: a line for each finished cell, and none is run twice."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from measuring import store
from measuring.places import ROOT


class Outcome(NamedTuple):
    """All records of the cells asked for, and how many cells failed."""

    records: list[store.Record]
    failed: int


def apart(module: str, cell: store.Cell, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """What `python -m module CELL` answers, in JSON, in a process of its own with these variables; `RuntimeError` with its last line where it fails or is killed."""
    paths = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    given = os.environ | {"PYTHONPATH": paths} | (variables or {})
    command = [sys.executable, "-m", module, json.dumps(cell)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=given)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise RuntimeError(f"exit status {done.returncode}: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def run(
    benchmark: Any,
    cells: list[store.Cell],
    path: Path | None,
    common: dict[str, Any],
    report: Callable[[str], object],
) -> Outcome:
    """Runs the cells that `path` does not hold, in their order, and appends a line for each; without a path no line is kept.

    The benchmark says of a cell why it cannot be run here (`lacking`), what it takes from the results of others (`depends`; None where these are missing), and
    what it measures (`measure`). `common` is what all lines say. A cell that fails is reported, and run again by the next call.
    """
    records = [] if path is None else store.read(path)
    done = {store.key(record["settings"]) for record in records}
    waiting = [cell for cell in cells if store.key(cell) not in done]
    report(f"{len(waiting)} cells to run, {len(cells) - len(waiting)} done")
    said: set[str] = set()
    failed = 0
    for cell in waiting:
        why = benchmark.lacking(cell)
        others = None if why else benchmark.depends(cell, records)
        if others is None:
            why = why or f"waits for other cells: {json.dumps(cell)}"
            if why not in said:
                report(f"skipped: {why}")
            said.add(why)
            continue
        begun = time.perf_counter()
        try:
            results = benchmark.measure(cell | others)
        except RuntimeError as error:
            report(f"FAILED {json.dumps(cell)}: {error}")
            failed += 1
            continue
        report(f"{time.perf_counter() - begun:7.1f} s {json.dumps(cell | others)} {json.dumps(results)}")
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        records.append(
            {"settings": cell, "from_others": others, "results": results, **common, "finished": finished}
        )
        if path is not None:
            store.append(path, records[-1])
    keys = {store.key(cell) for cell in cells}
    return Outcome([record for record in records if store.key(record["settings"]) in keys], failed)
