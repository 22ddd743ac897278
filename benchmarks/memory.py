"""`memory`: peak resident memory against batch size and against N, each cell in a fresh process.

`peak_bytes` is the process's high-water mark during the epoch; `above_data_bytes` subtracts the rows;
`working_bytes` is what the epoch added to what was resident before it (interpreter, libraries and rows).
`stochgp` reads the rows where they are, as an estimator does once a copy on the device is beyond its limit.
Linux only: elsewhere the mark cannot be reset.
"""

import functools
import gc
import json
import subprocess
import sys
from collections.abc import Callable

from benchmarks.problem import Problem, make_problem
from measuring.places import ROOT
from measuring.timing import can_reset_peak, reset_peak, resident

KEYS = ("side", "method", "n_rows", "batch_size")
BATCH_SIZES = (8, 32, 128, 512)
N_ROWS = (16_384, 65_536, 262_144, 1_048_576)
FIXED_BATCH, FIXED_ROWS = 32, 65_536


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per side, method and (N, B)."""
    if not can_reset_peak():
        raise RuntimeError("the memory benchmark needs Linux's /proc/self/clear_refs, which is not there")
    sizes = [(FIXED_ROWS, batch) for batch in BATCH_SIZES] + [
        (n, FIXED_BATCH) for n in N_ROWS if n != FIXED_ROWS
    ]
    if quick:
        sizes = [(4_096, 32), (4_096, 512), (65_536, 32)]
    rows = []
    for side in SIDES:
        for method in ("scgd", "minimax", "bsgd"):
            for n_rows, batch_size in sizes:
                report(f"{side}, {method}, N = {n_rows}, batch {batch_size}")
                rows.append(_in_fresh_process(side, method, n_rows, batch_size))
    return {"settings": {"max_steps": MAX_STEPS, "optimiser": "adam", "dtype": "float32"}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people, in megabytes (10⁶ bytes)."""
    headings = ["side", "method", "N", "batch", "peak MB", "above data MB", "working MB"]
    lines = []
    for row in result["rows"]:
        sizes = [round(row[name] / 1e6, 1) for name in ("peak_bytes", "above_data_bytes", "working_bytes")]
        lines.append([row["side"], row["method"], row["n_rows"], row["batch_size"], *sizes])
    return headings, lines


def measure(side: str, method: str, n_rows: int, batch_size: int) -> dict:
    """The row of one cell, measured in this process, which should be a fresh one."""
    problem = make_problem(n_rows)
    work = SIDES[side](problem, method, batch_size)
    gc.collect()
    reset_peak()
    before = resident("VmRSS")
    work()
    peak = resident("VmHWM")
    return {
        "side": side,
        "method": method,
        "n_rows": n_rows,
        "batch_size": batch_size,
        "data_bytes": problem.n_bytes,
        "peak_bytes": peak,
        "above_data_bytes": peak - problem.n_bytes,
        "working_bytes": peak - before,
    }


MAX_STEPS = 512
"""An epoch of PyTorch ends here, for time: its memory no longer changes."""


def _torch(problem: Problem, method: str, batch_size: int) -> Callable[[], None]:
    import torch

    from benchmarks import rivals_torch

    torch.set_num_threads(1)
    rival = rivals_torch.METHODS[method](problem, rivals_torch.adam)
    X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
    n_steps = min(len(y) // batch_size, MAX_STEPS)
    generator = torch.Generator().manual_seed(0)
    return lambda: rivals_torch.run_steps(rival, X, y, batch_size, n_steps, generator)


def _library(problem: Problem, method: str, batch_size: int, rows: str) -> Callable[[], None]:
    from benchmarks.library import LibrarySide
    from stochgp.data import streams

    return lambda: LibrarySide(problem, method, "adam", batch_size, getattr(streams, rows)).epoch()


SIDES: dict[str, Callable[[Problem, str, int], Callable[[], object]]] = {
    "stochgp": functools.partial(_library, rows="HostRows"),
    "stochgp, rows copied to the device": functools.partial(_library, rows="DeviceRows"),
    "torch": _torch,
}


def _in_fresh_process(side: str, method: str, n_rows: int, batch_size: int) -> dict:
    command = [sys.executable, "-m", "benchmarks.memory", side, method, str(n_rows), str(batch_size)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return json.loads(found.stdout)


if __name__ == "__main__":
    side, method, n_rows, batch_size = sys.argv[1:]
    json.dump(measure(side, method, int(n_rows), int(batch_size)), sys.stdout)
