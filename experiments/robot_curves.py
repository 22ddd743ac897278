"""X10: bound and nMSE against steps and seconds on the ninth output of the walking data (Cheng and Boots 2017, figure 2).

SVDGP, SVI and iVSGPR at the paper's sizes and tuning (see `robots`), scored on 2,048 test rows about fifty times on the way. The paper's claim:
iVSGPR is fastest at first, SVDGP overtakes it, SVI stalls.
"""

from matplotlib.figure import Figure

from experiments import online, robots
from measuring import tables
from measuring.store import Cell, Record

METHODS, OUTPUT = ("svdgp", "svi", "ivsgpr"), 8


def cells(quick: bool, slow: bool) -> list[Cell]:
    name, sizes = ("sarcos", "quick") if quick else ("walking", "paper")
    return [{"set": name, "output": 6 if quick else OUTPUT, "method": m, "sizes": sizes} for m in METHODS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return robots.COSTS[cell["method"]]


def run(cell: Cell) -> dict:
    sizes = online.QUICK if cell["sizes"] == "quick" else online.Sizes()
    data = online.load(cell["set"], cell["output"])
    return online.run_stochastic(cell["method"], data, sizes, False)


def page(records: list[Record]) -> list[str]:
    headings = ["method", "rate", "steps", "nMSE", "bound per row", "seconds"]
    rows = []
    for record in records:
        found = record["results"]
        for place in (0, len(found["curve"]) // 4, len(found["curve"]) // 2, -1):
            step, seconds, nmse, bound = found["curve"][place]
            rows.append(
                [record["settings"]["method"], found["rate"], step, nmse, bound, tables.number(seconds, 0)]
            )
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    """nMSE and bound against steps, and against seconds."""
    drawing = Figure(figsize=(9, 6), layout="constrained")
    panels = drawing.subplots(2, 2, sharey="row")
    for record in records:
        step, seconds, nmse, bound = zip(*record["results"]["curve"], strict=True)
        for column, across in enumerate((step, seconds)):
            for row, values in enumerate((nmse, bound)):
                panels[row, column].plot(across, values, label=record["settings"]["method"])
    panels[0, 0].set_yscale("log")
    panels[0, 0].set_ylabel("nMSE")
    panels[1, 0].set_ylabel("bound per row")
    panels[1, 0].set_xlabel("steps")
    panels[1, 1].set_xlabel("seconds")
    panels[0, 0].legend()
    return drawing
