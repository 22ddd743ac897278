"""X15 (Lin et al. 2024, figures 6 to 8): step sizes (B = 512) and batch sizes (βN = 50) for two estimators, pol.

Random coordinates, whose noise is multiplicative, and the partly subsampled estimator (N/B) Σ e_i (Kz − b)_i + λz, whose noise is
additive; ρ = 0.9, geometric averaging with r = 100 / steps. 2,000 steps (--slow: 100,000). Seconds are those of the steps, with K in
memory, on one core.
"""

from matplotlib.figure import Figure

from experiments import ablations
from measuring import tables
from measuring.store import Cell, Record, select

STEPS = 2_000
STEP_SIZES, BATCHES, STEP_SIZE, BATCH, MOMENTUM = (1.0, 5.0, 20.0, 50.0, 100.0), (32, 128, 512, 1024), 50.0, 512, 0.9  # fmt: skip
ESTIMATORS = {"coordinates": ablations.Coordinates(), "part-fit": ablations.PartCoordinatesOfFit()}


def cells(quick: bool, slow: bool) -> list[Cell]:
    extent = ablations.extent(quick, slow, STEPS)
    pairs = [(s, BATCH) for s in STEP_SIZES] + [(STEP_SIZE, b) for b in BATCHES if b != BATCH]
    return [
        {"estimator": name, "step_size": step_size, "batch": batch, **extent}
        for name in ESTIMATORS
        for step_size, batch in pairs
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"] * cell["batch"]


def run(cell: Cell) -> dict:
    plan = ablations.Plan.of(cell["steps"], cell["batch"])
    optimiser = ablations.Nesterov(cell["step_size"], MOMENTUM)
    return ablations.descend(ablations.load(cell["rows"]), ESTIMATORS[cell["estimator"]], optimiser, plan)


def label(settings: Cell) -> str:
    return f"{settings['estimator']}, βN = {settings['step_size']:g}, B = {settings['batch']}"


def page(records: list[Record]) -> list[str]:
    ordered = sorted(records, key=lambda r: label(r["settings"]))
    return [tables.table(ablations.HEADINGS, ablations.ends(ordered, label, ("geometric",)))]


def figure(records: list[Record]) -> Figure:
    """RMSE of the geometric averages against steps and against seconds: step sizes above, batch sizes below."""
    drawing = Figure(figsize=(11, 8), layout="constrained")
    panels = drawing.subplots(2, 2, sharey=True)
    for row, (fixed, moving) in enumerate((({"batch": BATCH}, "step_size"), ({"step_size": STEP_SIZE}, "batch"))):  # fmt: skip
        for name, line in zip(ESTIMATORS, ("-", "--"), strict=True):
            for i, record in enumerate(select(records, estimator=name, **fixed)):
                curve, results = record["results"]["curves"]["geometric"], record["results"]
                if not curve:
                    continue
                steps, rmse = [point[0] for point in curve], [point[3] for point in curve]
                seconds = [s * results["seconds_of_steps"] / results["steps"] for s in steps]
                text = f"{name}, {moving} {record['settings'][moving]:g}"
                for panel, x in zip(panels[row], (steps, seconds), strict=True):
                    panel.loglog(x, rmse, line, color=f"C{i}", label=text, linewidth=1.0)
        panels[row, 0].set_ylabel("test RMSE")
        panels[row, 0].set_ylim(0.05, 20)  # what diverges leaves at the top
        panels[row, 1].legend(fontsize=6)
    for panel, text in zip(panels[1], ("steps", "seconds"), strict=True):
        panel.set_xlabel(text)
    return drawing
