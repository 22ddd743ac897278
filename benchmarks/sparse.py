"""`sparse`: steps of the sparse family beside GPyTorch's SVGP and SGPR, seconds of a step of SVDGP against its number of functions, and fits by SoftKI.

Every cell runs in a process of its own and is a line of results; `--only part=softki on=bike` chooses.
`svgp`: SVGP on all training rows, batches of 1,024, Adam at 0.01, epochs after the first, which compiles. `sgpr`: an evaluation of the
collapsed bound of all rows with its gradient. `deep`: SVGP on a network, 32 points and batches of 32. `svdgp`: its step at so many functions of
the mean, 128 of the covariance, batches of 1,024, plain functions and generalised ones; and our SVI step of 1,024 points (`svi`) beside it.
`softki`: whole fits by SoftKI in PyTorch, a Matérn-3/2 kernel, batches of 1,024 and Adam at 0.01 for 150 s, then its solve with all rows.
All sides start at the same random rows, at lengthscales √D, variance 1 and noise 0.1, rows standardised. GPyTorch and SoftKI run in float32 at the better
of 1 and 2 threads. RMSE, NLPD and coverage (of 95 %) are of test rows of unit variance, noise included. `peak_bytes` is of the process, `steps` are those that
were timed, of `softki` all.
"""

import importlib.util
import json
import sys
from typing import Any

from benchmarks.resuming import apart
from measuring import store

KEYS = ("part", "on", "size", "side")
SETS, SIZES, SIDES = ("bike", "protein"), (512, 1024), ("ours", "gpytorch")
FUNCTIONS = (1_024, 4_096, 16_384, 65_536)
EPOCHS = {"bike": 6, "protein": 3}
ITERATIONS = 4
DEEP_EPOCHS = 40
FITTED = ("bike", "elevators", "pol", "kin40k", "protein", "keggdirected")
FIT_SECONDS = dict.fromkeys(FITTED, 150.0) | {"quick": 2.0}
QUICK = (
    ("svgp", "quick", 32, "ours"),
    ("sgpr", "quick", 32, "ours"),
    ("svdgp", "plain", 256, "ours"),
    ("softki", "quick", 32, "torch"),
)
MODULES = {"ours": "sparse_ours", "gpytorch": "rivals_gpytorch", "torch": "rivals_softki"}
SCORES = {"rmse": 4, "nlpd": 3, "coverage95": 3}  # with their digits


def cells(quick: bool) -> list[store.Cell]:
    """A cell for each part, set or kind of functions, size and side."""
    fits = [(part, on, M, side) for part in ("svgp", "sgpr") for on in SETS for M in SIZES for side in SIDES]
    deep = [("deep", "bike", 32, side) for side in SIDES]
    steps = [("svdgp", kind, M, "ours") for kind in ("plain", "generalised") for M in FUNCTIONS]
    softki = [("softki", on, 512, "torch") for on in FITTED]
    every = [*fits, *deep, *steps, ("svi", "plain", 1_024, "ours"), *softki]
    return [{"dtype": "float32"} | dict(zip(KEYS, cell, strict=True)) for cell in (QUICK if quick else every)]


def lacking(cell: store.Cell) -> str | None:
    """Why the cell cannot be run here; None where it can."""
    if cell["side"] == "ours" or importlib.util.find_spec("gpytorch") is not None:
        return None
    return "the package gpytorch is not installed: pip install 'stochgp[bench]'"


def depends(cell: store.Cell, records: list[store.Record]) -> dict[str, float]:
    """Nothing."""
    return {}


def measure(cell: store.Cell) -> dict[str, Any]:
    """Of a process of its own; `RuntimeError` with its last line where it fails."""
    return apart("benchmarks.sparse", cell)


def table(result: dict) -> tuple[list[str], list[list]]:
    """Milliseconds of a step, how many times GPyTorch's they go into, and scores where there are any."""
    theirs = {
        (r["part"], r["on"], r["size"]): r["step_seconds"] for r in result["rows"] if r["side"] == "gpytorch"
    }
    lines = []
    for r in result["rows"]:
        rival = theirs.get((r["part"], r["on"], r["size"])) if r["side"] == "ours" else None
        ratio = "" if rival is None else round(rival / r["step_seconds"], 2)
        scores = [round(r[score], digits) if score in r else "" for score, digits in SCORES.items()]
        memory = round(r["peak_bytes"] / 1e6)
        lines.append([*(r[k] for k in KEYS), round(1e3 * r["step_seconds"], 2), ratio, *scores, memory])
    return [*KEYS, "step ms", "times faster", "RMSE", "NLPD", "coverage", "peak MB"], lines


def _one(cell: store.Cell) -> dict[str, Any]:
    """One cell in this process."""
    side = importlib.import_module(f"benchmarks.{MODULES[cell['side']]}")
    return getattr(side, cell["part"])(cell["on"], cell["size"])


if __name__ == "__main__":
    json.dump(_one(json.loads(sys.argv[1])), sys.stdout)
