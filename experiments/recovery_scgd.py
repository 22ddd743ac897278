"""X1: recovery of two variances by SCGD (the SCGD paper, second version, figure 1).

Batch 128, a_t = 10⁻³ t^(−0.3), b_t = 0.1 t^(−0.2), plain SGD, from three starts; 20,000 updates (--slow: 400,000, what the paper plots).
`published` steps in the raw variances, by the learner's own steps and nothing else. `published-log` steps in our parameters, log σ_f² and
log(σ_ε² − 10⁻⁶), with the same rates: a step in log v is v² times the step in v, 16 times longer at σ_f² = 4 and the same at σ_ε² = 1.
`anchored` is `published-log` with the tracker b = 0 set to the exact moments at every evaluation, w to the exact mean, and no refit: a refit
would solve this problem by itself, the features being fixed. Figures are those of the last update, not of the best.
"""

from typing import Any

import jax
import optax
from matplotlib.figure import Figure

from experiments import recovery
from experiments.methods import NOT_REFITTED
from measuring import tables
from measuring.store import Cell, Record, select
from stochgp.learners import SCGD, PowerLaw, fit

STARTS = ("5.0/3.0", "2.5/3.5", "2.5/0.7")
VARIANTS = ("published", "published-log", "anchored")
BATCH, UPDATES, SLOW_UPDATES, SEEDS = 128, 20_000, 400_000, 10
POINTS = 100


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [_cell("published", "5.0/3.0", 0, 200, 256), _cell("anchored", "2.5/0.7", 0, 200, 256)]
    found = [_cell(v, s, seed, UPDATES) for v in VARIANTS for s in STARTS for seed in range(SEEDS)]
    if slow:
        found += [_cell("published", s, seed, SLOW_UPDATES) for s in STARTS for seed in range(SEEDS)]
    return found


def _cell(variant: str, start: str, seed: int, updates: int, rows: int = recovery.ROWS) -> Cell:
    return {"variant": variant, "start": start, "seed": seed, "updates": updates, "rows": rows}


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["updates"]


def learner(cell: Cell) -> SCGD:
    """SCGD with the paper's steps."""
    anchored = cell["variant"] == "anchored"
    return SCGD(
        batch_size=BATCH,
        epochs=cell["updates"] * BATCH // cell["rows"],
        learning_rate=PowerLaw(1e-3, 0.3),
        tracking=0.0 if anchored else PowerLaw(0.1, 0.2),
        optimizer=optax.sgd,
        anchored=anchored,
        judge=NOT_REFITTED,
    )


def run(cell: Cell) -> dict:
    problem = recovery.make(cell["seed"], cell["rows"])
    start = recovery.STARTS[cell["start"]]
    if cell["variant"] == "published":
        every = max(1, cell["updates"] // POINTS)
        gp = problem.gp(start, raw=True)
        path = recovery.follow(
            learner(cell), gp, problem.source, steps=cell["updates"], every=every, seed=cell["seed"]
        )
        places, recoveries = [place[:3] for place in path], 0
    else:
        found = fit(learner(cell), problem.gp(start), problem.source, key=jax.random.key(cell["seed"]))
        places = [(e["step"], e["variance"], e["noise_variance"]) for e in found.history if "step" in e]
        places = places[: -1 : max(1, len(places) // POINTS)] + places[-1:]
        recoveries = sum(1 for entry in found.history if entry.get("recovered"))
    return {
        "variance": places[-1][1],
        "noise_variance": places[-1][2],
        "gap": problem.gap(*places[-1][1:]),
        "lowest": problem.lowest,
        "optimum_variance": problem.variance,
        "optimum_noise_variance": problem.noise_variance,
        "recoveries": recoveries,
        "path": [[step, round(v, 6), round(s2, 6)] for step, v, s2 in places],
    }


def page(records: list[Record]) -> list[str]:
    headings = [
        "variant",
        "updates",
        "start",
        "seeds",
        "NLML − lowest, mean",
        "greatest",
        "σ_f²",
        "its optimum",
        "σ_ε²",
        "its optimum",
    ]
    rows = []
    for variant, updates, start in sorted({_group(r) for r in records}, key=_order):
        runs = select(records, variant=variant, updates=updates, start=start)
        get: Any = lambda field, runs=runs: [r["results"][field] for r in runs]
        gaps = get("gap")
        worst = "n/a" if None in gaps else f"{max(gaps):.1e}"
        estimates = ["variance", "optimum_variance", "noise_variance", "optimum_noise_variance"]
        rows.append(
            [variant, updates, start, len(runs), f"{tables.mean(gaps):.1e}", worst]
            + [tables.spread(get(field)) for field in estimates]
        )
    return [tables.table(headings, rows)]


def figure(records: list[Record]) -> Figure:
    """Estimates against updates, truth dashed."""
    drawing = Figure(figsize=(9, 6), layout="constrained")
    panels = drawing.subplots(2, len(STARTS), sharex=True, sharey="row", squeeze=False)
    colours = dict(zip(VARIANTS, ("C0", "C1", "C2"), strict=True))
    for column, start in enumerate(STARTS):
        for record in select(records, start=start):
            step, v, s2 = zip(*record["results"]["path"], strict=True)
            variant = record["settings"]["variant"]
            for row, values in enumerate((v, s2)):
                panels[row, column].plot(step, values, color=colours[variant], alpha=0.4, linewidth=0.8)
        for row, truth in enumerate(recovery.TRUTH):
            panels[row, column].axhline(truth, color="black", linestyle="--", linewidth=0.8)
        panels[0, column].set_title(f"start ({start})")
        panels[1, column].set_xlabel("updates")
    for variant, colour in colours.items():
        panels[0, 0].plot([], [], color=colour, label=variant)
    panels[0, 0].legend(fontsize=7)
    panels[0, 0].set_ylabel("σ_f²")
    panels[1, 0].set_ylabel("σ_ε²")
    panels[0, 0].set_xscale("symlog", linthresh=100)
    return drawing


def _group(record: Record) -> tuple[str, int, str]:
    settings = record["settings"]
    return settings["variant"], settings["updates"], settings["start"]


def _order(group: tuple[str, int, str]) -> tuple:
    return group[1], VARIANTS.index(group[0]), list(recovery.STARTS).index(group[2])
