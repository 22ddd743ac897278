"""X12 (Lin et al. 2024, figure 2): estimators of the dual gradient, pol.

Random features (βN = 5·10⁻⁴), random coordinates (βN = 50) and two partly subsampled ones (at 50 and at 0.5), B = 512, ρ = 0.9, geometric
averaging with r = 100 / steps. 4,000 steps (--slow: 100,000, as in the paper: then r = 0.001).
"""

from matplotlib.figure import Figure

from experiments import ablations
from measuring import tables
from measuring.store import Cell, Record

STEPS = 4_000
BATCH, MOMENTUM = 512, 0.9
RUNS = (("coordinates", 50.0), ("features", 5e-4), ("part", 50.0), ("part", 0.5), ("part-fit", 50.0), ("part-fit", 0.5))  # fmt: skip
ESTIMATORS = {
    "coordinates": ablations.Coordinates(),
    "features": ablations.Features(),
    "part": ablations.PartCoordinates(),
    "part-fit": ablations.PartCoordinatesOfFit(),
}


def cells(quick: bool, slow: bool) -> list[Cell]:
    extent = ablations.extent(quick, slow, STEPS)
    return [{"estimator": name, "step_size": step_size, **extent} for name, step_size in RUNS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"] * (2 if cell["estimator"] == "features" else 1)


def run(cell: Cell) -> dict:
    plan = ablations.Plan.of(cell["steps"], BATCH)
    optimiser = ablations.Nesterov(cell["step_size"], MOMENTUM)
    return ablations.descend(ablations.load(cell["rows"]), ESTIMATORS[cell["estimator"]], optimiser, plan)


def label(settings: Cell) -> str:
    return f"{settings['estimator']}, βN = {settings['step_size']:g}"


def page(records: list[Record]) -> list[str]:
    return [tables.table(ablations.HEADINGS, ablations.ends(records, label, ("last", "geometric")))]


def figure(records: list[Record]) -> Figure:
    return ablations.draw_geometric(records, label)
