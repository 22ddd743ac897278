"""X9 and X10: five methods on a robot's dynamics (Cheng and Boots 2017, table 2, figure 2): nMSE and bound after 2,000 steps, and on the way.

`walking`: Walker2d of MuJoCo under a stated policy (`experiments.walking`), 23 inputs and 9 targets; `walking-46` with the frame before;
`sarcos`: 4,449 rows of an arm's inverse dynamics, 21 inputs and 7 targets. Each output is a model of its own; 90 % of the rows to train on. The
paper's sizes: SVDGP M_α = 16,384, no more than rows, and M_β = 128, SVI M = 1,024, iVSGPR M = 256, VSGPR M = 1,024 on 4,096 rows, GPR on 1,024; batches of 1,024.
γ₀ of 0.1, 0.01 and 0.001 for 100 steps each, then 2,000 at the best, falling as γ₀/(1 + 0.1√t); "rate to 0": times a cosine that ends at 0. `spread`: functions with widths of their own (generalised SE-ARD), as the
paper has them, and 128 columns of K_α in a step, where the others draw 1,024. The bound is N_train times the mean expected log likelihood of test rows less the divergence, per training row, of unit-variance
targets. The figure has the curves of the stochastic methods on the ninth output of the walking data; the paper's claim: iVSGPR is fastest at first, SVDGP
overtakes it, SVI stalls. --slow: all outputs, and `walking-46`.
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
