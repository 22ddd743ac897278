"""`sparse`: steps of the sparse family beside GPyTorch's SVGP and SGPR, and seconds of a step of SVDGP against its number of functions.

Every cell runs in a process of its own and is one line of JSON; `python -m benchmarks.sparse svgp bike 512 ours` runs one alone.
`svgp`: SVGP on all training rows, batches of 1,024, Adam at 0.01, epochs after the first, which compiles. `sgpr`: an evaluation of the
collapsed bound of all rows with its gradient. `deep`: SVGP on a network, 32 points and batches of 32. `svdgp`: its step at so many functions of
the mean, 128 of the covariance, batches of 1,024, plain functions and generalised ones; and our SVI step of 1,024 points (`svi`) beside it.
Both sides start at the same random rows, at lengthscales √D, variance 1 and noise 0.1, rows standardised. GPyTorch runs in float32 at the better
of 1 and 2 threads. NLPD is of test rows of unit variance, noise included. `peak_bytes` is of the process, `steps` are those that were timed.
"""

import json
import subprocess
import sys
from collections.abc import Callable

from measuring.places import ROOT

KEYS = ("part", "on", "size", "side")
SETS, SIZES, SIDES = ("bike", "protein"), (512, 1024), ("ours", "gpytorch")
FUNCTIONS = (1_024, 4_096, 16_384, 65_536)
EPOCHS = {"bike": 6, "protein": 3}
ITERATIONS = 4
DEEP_EPOCHS = 40
QUICK = (("svgp", "quick", 32, "ours"), ("sgpr", "quick", 32, "ours"), ("svdgp", "plain", 256, "ours"))


def cells(quick: bool) -> list[tuple[str, str, int, str]]:
    """(part, set or kind of functions, size, side)."""
    if quick:
        return list(QUICK)
    fits = [(part, on, M, side) for part in ("svgp", "sgpr") for on in SETS for M in SIZES for side in SIDES]
    deep = [("deep", "bike", 32, side) for side in SIDES]
    steps = [("svdgp", kind, M, "ours") for kind in ("plain", "generalised") for M in FUNCTIONS]
    return [*fits, *deep, *steps, ("svi", "plain", 1_024, "ours")]


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """A row for each cell."""
    rows = []
    for cell in cells(quick):
        command = [sys.executable, "-m", "benchmarks.sparse", *map(str, cell)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
        if found.returncode:
            report(f"{cell}: failed with code {found.returncode}")
            continue
        rows.append(json.loads(found.stdout))
        report(json.dumps(rows[-1]))
    return {"settings": {"dtype": "float32"}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Milliseconds of a step, and how many times GPyTorch's they go into."""
    theirs = {
        (r["part"], r["on"], r["size"]): r["step_seconds"] for r in result["rows"] if r["side"] == "gpytorch"
    }
    lines = []
    for r in result["rows"]:
        rival = theirs.get((r["part"], r["on"], r["size"])) if r["side"] == "ours" else None
        ratio = "" if rival is None else round(rival / r["step_seconds"], 2)
        nlpd = round(r["nlpd"], 3) if "nlpd" in r else ""
        memory = round(r["peak_bytes"] / 1e6)
        lines.append([*(r[k] for k in KEYS), round(1e3 * r["step_seconds"], 2), ratio, nlpd, memory])
    return [*KEYS, "step ms", "times faster", "NLPD", "peak MB"], lines


def measure(part: str, on: str, size: int, side: str) -> dict:
    """One cell in this process."""
    if side == "ours":
        from benchmarks import sparse_ours as sides
    else:
        from benchmarks import rivals_gpytorch as sides
    found = getattr(sides, part)(on, size)
    return dict(zip(KEYS, (part, on, size, side), strict=True)) | found


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]), sys.stdout)
