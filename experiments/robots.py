"""X9, X10: five methods on dynamics of robots (Cheng and Boots 2017, table 2).

`walking` is MuJoCo's Walker2d (`experiments.walking`) with 23 inputs and 9 targets, and `walking-46` adds the
previous frame. `sarcos` has 4,449 rows with 21 inputs and 7 targets. Each output is a separate model, and 90
% of the rows are training rows. The sizes are those of the paper (`online.Sizes`). After 100 steps with each
γ₀ of 0.1, 0.01 and 0.001, the best runs for 2,000 steps with rate γ₀/(1 + 0.1√t). "rate to 0" multiplies the
rate by a cosine that ends at 0. `spread` means functions with separate widths (generalised SE-ARD). The bound
is per training row, for targets with unit variance. The figure shows the stochastic methods on the ninth
walking output. `--slow` adds all outputs and `walking-46`.
"""

import importlib.util
from typing import Any

from experiments import online
from measuring import tables
from measuring.store import Cell, Record, select

NAMES = {
    "svdgp": "SVDGP",
    "svdgp-cosine": "SVDGP, rate to 0",
    "svi": "SVI",
    "ivsgpr": "iVSGPR",
    "vsgpr": "VSGPR",
    "gpr": "GPR",
}
METHODS = tuple(NAMES)
OUTPUTS = {"walking": 9, "walking-46": 9, "sarcos": 7}
DEFAULT_OUTPUTS = {"walking": (0, 4, 8), "walking-46": (0, 4, 8), "sarcos": (0, 3, 6)}
QUICK_FRAMES, ONE_CORE = 1_000, True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        sets = ("sarcos", "walking") if importlib.util.find_spec("gymnasium") else ("sarcos",)
        return [_cell(name, 0, method, False, "quick") for name in sets for method in METHODS]
    found = []
    for name in ("walking", "walking-46", "sarcos") if slow else ("walking", "sarcos"):
        for output in range(OUTPUTS[name]) if slow else DEFAULT_OUTPUTS[name]:
            usual = [method for method in METHODS if slow or name == "walking" or method != "svdgp-cosine"]
            found += [_cell(name, output, method, False, "paper") for method in usual]
            if slow:
                found.append(_cell(name, output, "svdgp", True, "paper"))
    return found


def _cell(name: str, output: int, method: str, spread: bool, sizes: str) -> Cell:
    return {"set": name, "output": output, "method": method, "spread": spread, "sizes": sizes}


def run(cell: Cell) -> dict:
    quick = cell["sizes"] == "quick"
    sizes = online.QUICK if quick else online.Sizes()
    data = online.load(cell["set"], cell["output"], QUICK_FRAMES if quick else online.walking.FRAMES)
    if cell["method"] in ("vsgpr", "gpr"):
        return online.run_batch(cell["method"], data, sizes)
    return online.run_stochastic(cell["method"], data, sizes, cell["spread"])


def page(records: list[Record]) -> list[str]:
    theirs = {
        (row["domain"], row["metric"], row["method"]): row["mean"]
        for row in tables.published("svdgp_kuka1_mujoco1")
    }
    headings = [
        "set", "method", "own widths", "outputs", "nMSE", "published (MUJOCO₁)", "published (KUKA₁)", "bound per row", "NLPD", "seconds",
    ]  # fmt: skip
    rows = []
    for name in OUTPUTS:
        for method in METHODS:
            for spread in (False, True):
                if not (runs := select(records, set=name, method=method, spread=spread)):
                    continue
                get: Any = lambda field, runs=runs: [r["results"][field] for r in runs]
                published = [theirs.get((d, "nmse", NAMES[method])) or "n/a" for d in ("MUJOCO1", "KUKA1")]
                rows.append(
                    [name, NAMES[method], "yes" if spread else "no", len(runs), tables.spread(get("nmse"))]
                    + published
                    + [
                        tables.spread(get("bound")),
                        tables.spread(get("nlpd")),
                        tables.spread(get("seconds"), 0),
                    ]
                )
    return [tables.table(headings, rows)]
