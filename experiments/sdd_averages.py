"""X14 (Lin et al. 2024, figure 4): momentum and averages for random coordinates, pol.

With ρ = 0.9 and without momentum, βN = 50, B = 128; of each run the last iterate, the arithmetic average of the last 30 % of the steps
and the geometric average with r = 100 / steps. 10,000 steps (--slow: 100,000, as in the paper: then the arithmetic average begins at
70,000).
"""

from matplotlib.figure import Figure

from experiments import ablations
from measuring import tables
from measuring.store import Cell, Record

STEPS = 10_000
BATCH, STEP_SIZE, MOMENTA = 128, 50.0, (0.9, 0.0)


def cells(quick: bool, slow: bool) -> list[Cell]:
    extent = ablations.extent(quick, slow, STEPS)
    return [{"momentum": momentum, **extent} for momentum in MOMENTA]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"]


def run(cell: Cell) -> dict:
    plan = ablations.Plan.of(cell["steps"], BATCH)
    optimiser = ablations.Nesterov(STEP_SIZE, cell["momentum"])
    return ablations.descend(ablations.load(cell["rows"]), ablations.Coordinates(), optimiser, plan)


def label(settings: Cell) -> str:
    return f"ρ = {settings['momentum']:g}"


def page(records: list[Record]) -> list[str]:
    return [tables.table(ablations.HEADINGS, ablations.ends(records, label))]


def figure(records: list[Record]) -> Figure:
    drawing = Figure(figsize=(12, 4), layout="constrained")
    panels = drawing.subplots(1, 3)
    for i, record in enumerate(records):
        for name, line in zip(ablations.CURVES, (":", "--", "-"), strict=True):
            text = f"{label(record['settings'])}, {name}"
            ablations.draw(panels, record["results"]["curves"][name], text, color=f"C{i}", linestyle=line)
    panels[2].legend(fontsize=7)
    return drawing
