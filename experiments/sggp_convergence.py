"""X20: convergence of the full gradient under mini-batches of a kernel GP (the sgGP paper, figure 2).

The problem of `recovery_sggp` from (5, 3) with α₁ = 9, s₁ = 3 log m: ‖∇ℓ(θ^(k))‖², ℓ the exact NLML per datum of all rows, gradient by the two raw
variances. The paper's three batch sizes are not stated; its theorem 3.2 bounds the square by C (G²/(K + 1) + m^(−1/2+ε)). `steps` takes
the same number of steps with every batch size, `epochs` 25 epochs as the paper. The slope is that of the logarithm of the mean square
over draws against log m, its standard error by resampling draws; the theorem allows −1/2 and steeper ones.
"""

import numpy as np
from matplotlib.figure import Figure

from experiments import kernel_recovery
from experiments.recovery import STARTS
from measuring import tables
from measuring.store import Cell, Record, select

BATCHES, STEPS, EPOCHS, SEEDS, POINTS, START = (32, 64, 128, 256, 512), 2_000, 25, 20, 50, "5.0/3.0"


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"run": "steps", "batch": 32, "steps": 100, "seeds": 2, "rows": 128}]
    rows = kernel_recovery.ROWS
    found = [{"run": "steps", "batch": m, "steps": STEPS, "seeds": SEEDS, "rows": rows} for m in BATCHES]
    return found + [
        {"run": "epochs", "batch": m, "steps": EPOCHS * rows // m, "seeds": SEEDS, "rows": rows}
        for m in BATCHES
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"] * cell["batch"]


def run(cell: Cell) -> dict:
    every = max(1, cell["steps"] // POINTS)
    steps = cell["steps"] // every * every
    epochs = steps * cell["batch"] // cell["rows"] + 1
    learner = kernel_recovery.learner(cell["batch"], epochs, START, 3.0)
    squares = []
    for seed in range(cell["seeds"]):
        problem = kernel_recovery.make(seed, cell["rows"])
        path = kernel_recovery.follow(learner, problem, STARTS[START], steps=steps, every=every, seed=seed)
        squares.append([problem.squared_gradient(*place[1:]) for place in path])
    last = [row[-1] for row in squares]
    return {"mean": float(np.mean(last)), "last": last, "every": every, "squares": squares}


def page(records: list[Record]) -> list[str]:
    parts = []
    for kind in ("steps", "epochs"):
        runs = sorted(select(records, run=kind), key=lambda r: r["settings"]["batch"])
        rows = []
        for record in runs:
            cell, last = record["settings"], np.array(record["results"]["last"], float)
            error = last.std(ddof=1) / len(last) ** 0.5
            rows.append([cell["batch"], cell["steps"], len(last), f"{last.mean():.2e} ± {error:.1e}"])
        if runs:
            parts += [f"{kind}:", tables.table(["m", "steps", "draws", "mean ‖∇ℓ‖² at the end"], rows)]
        if len(runs) > 2:
            found, error = slope(runs)
            parts.append(f"Slope of the logarithm against log m: {found:.2f} ± {error:.2f}.")
    return parts


def slope(runs: list[Record], n_resamples: int = 1000) -> tuple[float, float]:
    """(slope, its standard error by resampling the draws, which all batch sizes share)."""
    x = np.log([r["settings"]["batch"] for r in runs])
    last = np.array([r["results"]["last"] for r in runs], float)  # [batch sizes, draws]
    fit = lambda draws: float(np.polyfit(x, np.log(draws.mean(axis=1)), 1)[0])
    generator = np.random.default_rng(0)
    again = [fit(last[:, generator.integers(0, last.shape[1], last.shape[1])]) for _ in range(n_resamples)]
    return fit(last), float(np.std(again))


def figure(records: list[Record]) -> Figure:
    """Mean of log ‖∇ℓ‖² over draws with one standard error, against steps."""
    drawing = Figure(figsize=(9, 4), layout="constrained")
    panels = drawing.subplots(1, 2, sharey=True, squeeze=False)[0]
    for panel, kind in zip(panels, ("steps", "epochs"), strict=True):
        for record in sorted(select(records, run=kind), key=lambda r: r["settings"]["batch"]):
            logs = np.log(np.array(record["results"]["squares"], float))
            step = record["results"]["every"] * np.arange(logs.shape[1])
            mean, error = logs.mean(axis=0), logs.std(axis=0) / logs.shape[0] ** 0.5
            panel.plot(step, mean, label=f"m = {record['settings']['batch']}")
            panel.fill_between(step, mean - error, mean + error, alpha=0.3)
        panel.set_xscale("symlog", linthresh=10)
        panel.set_xlabel("steps" if kind == "steps" else "steps, 25 epochs")
    panels[0].set_ylabel("log ‖∇ℓ‖²")
    panels[0].legend(fontsize=7)
    return drawing
