"""X13 (Lin et al. 2024, figure 3): optimisers for random coordinates, pol.

AdaGrad (βN = 10), RMSprop and Adam (0.05), Nesterov's momentum (50, ρ = 0.9), B = 512, geometric averaging with r = 100 / steps. 4,000
steps (--slow: 100,000, as in the paper).
"""

import optax
from matplotlib.figure import Figure

from experiments import ablations
from measuring import tables
from measuring.store import Cell, Record

STEPS, SLOW_STEPS, QUICK, BATCH = 4_000, 100_000, {"steps": 50, "rows": 400}, 512
OPTIMISERS = {
    "nesterov": ablations.Nesterov(50.0, 0.9),
    "adagrad": ablations.Adaptive(10.0, optax.adagrad),
    "rmsprop": ablations.Adaptive(0.05, optax.rmsprop),
    "adam": ablations.Adaptive(0.05, optax.adam),
}


def cells(quick: bool, slow: bool) -> list[Cell]:
    extent = QUICK if quick else {"steps": SLOW_STEPS if slow else STEPS, "rows": None}
    return [{"optimiser": name, **extent} for name in OPTIMISERS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"]


def run(cell: Cell) -> dict:
    plan = ablations.Plan(cell["steps"], BATCH, 100 / max(cell["steps"], 100), cell["steps"] * 7 // 10)
    held = ablations.load(cell["rows"])
    return ablations.descend(held, ablations.Coordinates(), OPTIMISERS[cell["optimiser"]], plan)


def label(settings: Cell) -> str:
    return settings["optimiser"]


def page(records: list[Record]) -> list[str]:
    return [tables.table(ablations.HEADINGS, ablations.ends(records, label, ("last", "geometric")))]


def figure(records: list[Record]) -> Figure:
    """The geometric averages."""
    drawing = Figure(figsize=(12, 4), layout="constrained")
    panels = drawing.subplots(1, 3)
    for record in records:
        ablations.draw(panels, record["results"]["curves"]["geometric"], label(record["settings"]))
    panels[2].legend(fontsize=7)
    return drawing
