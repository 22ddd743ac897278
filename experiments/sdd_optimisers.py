"""X13 (Lin et al. 2024, figure 3): optimisers for random coordinates, pol.

AdaGrad (βN = 10), RMSprop and Adam (0.05), Nesterov's momentum (50, ρ = 0.9), B = 512, geometric averaging with r = 100 / steps. 4,000
steps (--slow: 100,000, as in the paper).
"""

import optax
from matplotlib.figure import Figure

from experiments import ablations
from measuring import tables
from measuring.store import Cell, Record

STEPS, BATCH = 4_000, 512
OPTIMISERS = {
    "nesterov": ablations.Nesterov(50.0, 0.9),
    "adagrad": ablations.Adaptive(10.0, optax.adagrad),
    "rmsprop": ablations.Adaptive(0.05, optax.rmsprop),
    "adam": ablations.Adaptive(0.05, optax.adam),
}


def cells(quick: bool, slow: bool) -> list[Cell]:
    extent = ablations.extent(quick, slow, STEPS)
    return [{"optimiser": name, **extent} for name in OPTIMISERS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"]


def run(cell: Cell) -> dict:
    plan = ablations.Plan.of(cell["steps"], BATCH)
    held = ablations.load(cell["rows"])
    return ablations.descend(held, ablations.Coordinates(), OPTIMISERS[cell["optimiser"]], plan)


def label(settings: Cell) -> str:
    return settings["optimiser"]


def page(records: list[Record]) -> list[str]:
    return [tables.table(ablations.HEADINGS, ablations.ends(records, label, ("last", "geometric")))]


def figure(records: list[Record]) -> Figure:
    return ablations.draw_geometric(records, label)
