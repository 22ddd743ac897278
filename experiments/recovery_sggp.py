"""X19: recovery of two variances of a kernel GP by mini-batches (the sgGP paper, figure 1).

Uniform batches of m rows without replacement, 25 epochs of plain SGD in the raw variances, α_k = α₁/k with α₁ = 9, 9, 6, from the three
starts; s₁ = 3 log m for the signal variance (`theory`) or s₁ = m (`plain`), s₂ = m. Ten draws of rows and targets each. A rerun by other
code at m = 128 found no negative iterate, σ_ε² = 1.00 ± 0.05, and σ_f² = 4.12 ± 1.04, 4.00 ± 1.01, 4.05 ± 1.04 from the three starts; with
s₁ = m, σ_f² = 4.78 ± 0.24 from (5, 3), too slow. Ten draws say little of σ_f²: its exact maximum likelihood spreads as much, and stands
beside it.
"""

from typing import Any

from matplotlib.figure import Figure

from experiments import kernel_recovery
from experiments.recovery import STARTS, TRUTH
from measuring import tables
from measuring.store import Cell, Record, select

BATCHES, EPOCHS, SEEDS, POINTS = (32, 64, 128, 256), 25, 10, 25
TAU = 3.0


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [_cell("theory", "5.0/3.0", 32, seeds=2, rows=128)]
    found = [_cell("theory", start, batch) for start in kernel_recovery.FIRST_STEP for batch in BATCHES]
    return found + [_cell("plain", start, 128) for start in kernel_recovery.FIRST_STEP]


def _cell(scale: str, start: str, batch: int, seeds: int = SEEDS, rows: int = kernel_recovery.ROWS) -> Cell:
    return {"scale": scale, "start": start, "batch": batch, "seeds": seeds, "rows": rows}


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["seeds"] * cell["batch"]


def run(cell: Cell) -> dict:
    m, start = cell["batch"], cell["start"]
    scale = TAU if cell["scale"] == "theory" else None
    learner = kernel_recovery.learner(m, EPOCHS, start, scale)
    steps = EPOCHS * (cell["rows"] // m)
    every = max(1, steps // POINTS)
    runs = [_one(cell, learner, steps // every * every, every, seed) for seed in range(cell["seeds"])]
    fields = (
        "variance",
        "noise_variance",
        "optimum_variance",
        "optimum_noise_variance",
        "lowest_iterate",
        "path",
    )
    return {name: [values[i] for values in runs] for i, name in enumerate(fields)}


def _one(cell: Cell, learner: Any, steps: int, every: int, seed: int) -> tuple:
    problem = kernel_recovery.make(seed, cell["rows"])
    path = kernel_recovery.follow(
        learner, problem, STARTS[cell["start"]], steps=steps, every=every, seed=seed
    )
    lowest = min(min(place[1:]) for place in path)
    short = [[step, round(v, 5), round(s2, 5)] for step, v, s2 in path]
    return *path[-1][1:], problem.variance, problem.noise_variance, lowest, short


def page(records: list[Record]) -> list[str]:
    headings = ["s₁", "m", "start", "draws", "σ_f²", "its optimum", "σ_ε²", "its optimum", "lowest iterate"]
    rows = []
    for record in sorted(records, key=_order):
        cell, found = record["settings"], record["results"]
        estimates = ("variance", "optimum_variance", "noise_variance", "optimum_noise_variance")
        rows.append(
            [
                "3 log m" if cell["scale"] == "theory" else "m",
                cell["batch"],
                cell["start"],
                cell["seeds"],
                *(tables.spread(found[name]) for name in estimates),
                tables.number(min(found["lowest_iterate"])),
            ]
        )
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    """Paths of m = 128, truth dashed."""
    drawing = Figure(figsize=(9, 6), layout="constrained")
    panels: Any = drawing.subplots(
        2, len(kernel_recovery.FIRST_STEP), sharex=True, sharey="row", squeeze=False
    )
    for column, start in enumerate(kernel_recovery.FIRST_STEP):
        for scale, colour in (("plain", "C1"), ("theory", "C0")):
            for record in select(records, start=start, scale=scale, batch=128):
                for path in record["results"]["path"]:
                    step, v, s2 = zip(*path, strict=True)
                    for row, values in enumerate((v, s2)):
                        panels[row, column].plot(step, values, color=colour, alpha=0.4, linewidth=0.8)
        for row, truth in enumerate(TRUTH):
            panels[row, column].axhline(truth, color="black", linestyle="--", linewidth=0.8)
        panels[0, column].set_title(f"start ({start})")
        panels[1, column].set_xlabel("steps, m = 128")
    for scale, colour in (("s₁ = 3 log m", "C0"), ("s₁ = m", "C1")):
        panels[0, 0].plot([], [], color=colour, label=scale)
    panels[0, 0].legend(fontsize=7)
    panels[0, 0].set_ylabel("σ_f²")
    panels[1, 0].set_ylabel("σ_ε²")
    return drawing


def _order(record: Record) -> tuple:
    cell = record["settings"]
    return cell["scale"] != "theory", cell["batch"], list(kernel_recovery.FIRST_STEP).index(cell["start"])
