"""X2: MINIMAX on the recovery problem for μ = 0, 1, 10, 10², 10³ (the SCGD paper, second version, figure 2).

Batch 128, start (σ_f², σ_ε²) = (3, 2), 40,000 steps of plain SGD in the raw variances with a = 10⁻⁵ and b = 4·10⁻⁴, three seeds;
A_0 = F(θ_0), B_0 = 0 and w_0 = 0, which the paper does not state. The reference is the exact minimum of the full-batch NLML, known to
rounding since the features are fixed. The penalty is locally exact only for μ ≥ μ* = ‖F‖‖F⁻¹‖, given at the optimum: the whole sweep is
below it. A rerun by other code (one seed) found NLML 1.5397, 1.5395, 1.5385, 1.5376, 1.5381 against 1.5350, and σ_f² 6.57, 6.49, 5.73, 3.06,
3.01: that is 0.0047, 0.0045, 0.0035, 0.0026, 0.0031 above the optimum. `anchored` is beyond the paper: exact A, w and B at every evaluation.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from experiments import recovery
from experiments.methods import NOT_REFITTED
from measuring import tables
from measuring.store import Cell, Record, select
from stochgp.learners import Minimax, constant, fit
from stochgp.objectives import nlml_of_spectrum

PENALTIES, SEEDS, BATCH, STEPS, START = (0.0, 1.0, 10.0, 100.0, 1000.0), 3, 128, 40_000, "3.0/2.0"
ANCHORED_PENALTIES, POINTS = (1.0, 1000.0, 100_000.0), 100


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [_cell("published", 10.0, 0, 200, 256)]
    found = [_cell("published", penalty, seed, STEPS) for penalty in PENALTIES for seed in range(SEEDS)]
    return found + [
        _cell("anchored", penalty, seed, STEPS) for penalty in ANCHORED_PENALTIES for seed in range(SEEDS)
    ]


def _cell(variant: str, penalty: float, seed: int, steps: int, rows: int = recovery.ROWS) -> Cell:
    return {"variant": variant, "penalty": penalty, "seed": seed, "steps": steps, "rows": rows}


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"]


def run(cell: Cell) -> dict:
    problem, start = recovery.make(cell["seed"], cell["rows"]), recovery.STARTS[START]
    places, extra = (_published if cell["variant"] == "published" else _anchored)(cell, problem, start)
    _, variance, noise = places[-1]
    slopes = nlml_of_spectrum(problem.spectrum, variance, noise)[1]
    at_optimum = problem.variance * problem.spectrum.eigenvalues + problem.noise_variance
    return {
        "variance": variance,
        "noise_variance": noise,
        "gap": problem.gap(variance, noise),
        "gradient": 2 * cell["rows"] * float(np.hypot(*slopes)),  # of ℓ = 2n NLML, by the raw variances
        "lowest": problem.lowest,
        "optimum_variance": problem.variance,
        "optimum_noise_variance": problem.noise_variance,
        "exact_penalty": float(np.linalg.norm(at_optimum) * np.linalg.norm(1 / at_optimum)),
        "path": [[step, round(v, 6), round(s2, 6)] for step, v, s2 in places],
        **extra,
    }


def _published(cell: Cell, problem: recovery.Recovery, start: tuple[float, float]) -> tuple[list, dict]:
    learner = Minimax(
        batch_size=BATCH,
        learning_rate=1e-5,
        ascent_rate=4e-4,
        penalty=cell["penalty"],
        optimizer=optax.sgd,
        decay=constant,
        anchored=False,
        judge=NOT_REFITTED,
    )
    d = start[0] * problem.spectrum.eigenvalues + start[1]
    F = jnp.asarray((problem.spectrum.basis * d) @ problem.spectrum.basis.T, jnp.float32)
    path = recovery.follow(
        learner,
        problem.gp(start, raw=True),
        problem.source,
        steps=cell["steps"],
        every=max(1, cell["steps"] // POINTS),
        seed=cell["seed"],
        prepare=lambda state: eqx.tree_at(lambda s: s.A, state, F),
    )
    _, v, s2, state = path[-1]
    Q = problem.spectrum.basis
    now = (Q * (v * problem.spectrum.eigenvalues + s2)) @ Q.T
    error = np.linalg.norm(np.asarray(state.A) - now) / np.linalg.norm(now)
    mean = Q @ (v**0.5 * problem.spectrum.cross / (v * problem.spectrum.eigenvalues + s2))
    w_error = np.linalg.norm(np.asarray(state.weights) - mean) / np.linalg.norm(mean)
    return [place[:3] for place in path], {"A_error": float(error), "w_error": float(w_error)}


def _anchored(cell: Cell, problem: recovery.Recovery, start: tuple[float, float]) -> tuple[list, dict]:
    learner = Minimax(
        batch_size=BATCH,
        epochs=cell["steps"] * BATCH // cell["rows"],
        learning_rate=1e-2,
        penalty=cell["penalty"],
        optimizer=optax.adam,
        judge=NOT_REFITTED,
    )
    found = fit(learner, problem.gp(start), problem.source, key=jax.random.key(cell["seed"]))
    places = [(e["step"], e["variance"], e["noise_variance"]) for e in found.history if "step" in e]
    return places[: -1 : max(1, len(places) // POINTS)] + places[-1:], {}


def page(records: list[Record]) -> list[str]:
    headings = [
        "variant",
        "μ",
        "seeds",
        "NLML − lowest",
        "σ_f²",
        "its optimum",
        "σ_ε²",
        "its optimum",
        "‖∇ℓ‖",
        "‖A − F‖/‖F‖",
        "w error",
    ]
    rows = []
    for variant, penalty in sorted(
        {(r["settings"]["variant"], r["settings"]["penalty"]) for r in records}, reverse=True
    ):
        runs = select(records, variant=variant, penalty=penalty)
        get: Any = lambda field, runs=runs: [r["results"].get(field) for r in runs]
        fields = [
            "gap",
            "variance",
            "optimum_variance",
            "noise_variance",
            "optimum_noise_variance",
            "gradient",
            "A_error",
            "w_error",
        ]
        digits = [5, 3, 3, 3, 3, 2, 3, 3]
        rows.append(
            [
                variant,
                f"{penalty:g}",
                len(runs),
                *(tables.spread(get(f), d) for f, d in zip(fields, digits, strict=True)),
            ]
        )
    exact = tables.spread((r["results"]["exact_penalty"] for r in records), 0)
    return [
        tables.table(headings, sorted(rows, key=lambda row: (row[0] != "published", float(row[1])))),
        f"μ* at the optimum: {exact}.",
    ]


def figure(records: list[Record]) -> Figure:
    """Estimates of the published sweep against steps; the optima dashed."""
    drawing = Figure(figsize=(10, 4), layout="constrained")
    panels = drawing.subplots(1, 2)
    for record in select(records, variant="published"):
        step, *values = zip(*record["results"]["path"], strict=True)
        settings, optimum = (
            record["settings"],
            [record["results"][f"optimum_{n}"] for n in ("variance", "noise_variance")],
        )
        colour = f"C{PENALTIES.index(settings['penalty']) if settings['penalty'] in PENALTIES else 9}"
        label = f"μ = {settings['penalty']:g}" if settings["seed"] == 0 else None
        for panel, curve, best in zip(panels, values, optimum, strict=True):
            panel.plot(step, curve, color=colour, linewidth=0.8, label=label)
            panel.axhline(best, color="black", linestyle="--", linewidth=0.5)
    for panel, name in zip(panels, ("σ_f²", "σ_ε²"), strict=True):
        panel.set_xlabel("steps")
        panel.set_ylabel(name)
    panels[0].legend(fontsize=8)
    return drawing
