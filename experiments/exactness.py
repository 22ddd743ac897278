"""Which variant is exact: the exact NLML of what it ends at, above the full-batch optimum, and the exact gradient there, against batch size.

Two problems. `recovery`: that of `recovery_scgd`, fixed features and two variances; the optimum is known to rounding; three starts. `deep` (--slow): 4,000 rows of
elevators (split 0, drawn with seed 0) under a network of two layers of 16, small and noisy enough for an optimum to be within reach; the
reference is L-BFGS on the exact NLML of all rows from the same first weights, 6,000 iterations in float64: near a minimum, not at one. The
NLML of a network has many minima and steps of Adam get less far than L-BFGS, so a variant is also started at that reference: an exact one
stays, a biased one leaves, by an amount that is its bias.

Every variant takes the same number of steps at every batch size (20,000; 60,000 on `deep`), Adam on θ (and w), rate 0.03 (0.003 on `deep`)
falling to zero along a cosine. All run without a refit; "after a refit" is the same end point with the two variances refitted. The
variants called refit do so at every evaluation (each epoch, or 100 steps), which solves `recovery` by itself. "Last" is the last step. After a
refit and gradient are at the best evaluation, which `fit` returns (on `recovery` they are of the last step; for the start at the reference they
are left out). The gradient is of the NLML per datum by the unconstrained parameters, in float64.

The variant called exact is `anchored profiled`: F̃ and w both come from the anchor and are held until the next, so that a step has no noise
but that of its batch. `anchored` alone also moves w, whose noise grows as batches shrink.
"""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from experiments import recovery
from experiments.methods import NOT_REFITTED, REFITTED
from experiments.problems import load
from measuring import tables
from measuring.store import Cell, Record, select
from stochgp import features, networks
from stochgp.data.streams import DeviceRows
from stochgp.learners import BSGD, SCGD, AbstractLearner, FullBatch, Minimax, PowerLaw, fit
from stochgp.models import FeatureGP
from stochgp.objectives import nlml_of_rows, nlml_of_spectrum, refit
from stochgp.parameters import cast, partition
from stochgp.results import FitResult

BATCHES = (8, 32, 128, 512)
RATES = {"recovery": 0.03, "deep": 0.003}
STEPS = {"recovery": 20_000, "deep": 60_000}
DEEP_ROWS, DEEP_WIDTH, REFERENCE_STEPS = 4_000, 16, 6_000
STARTS = {"recovery": ("5.0/3.0", "2.5/3.5", "2.5/0.7"), "deep": ("first weights", "optimum")}
EXACT = ("anchored", "anchored profiled", "anchored refit", "anchored profiled refit")

SCGD_VARIANTS: dict[str, dict[str, Any]] = {
    "constant b = 0.9 (published)": {"tracking": 0.9, "anchored": False},
    "constant b = 0.1": {"tracking": 0.1, "anchored": False},
    "power-law b": {"tracking": PowerLaw(1.0, 0.5), "anchored": False},
    "profiled, power-law b": {"tracking": PowerLaw(1.0, 0.5), "anchored": False, "profiled": True},
    "corrected b = 0.1": {"tracking": 0.1, "anchored": False, "corrected": True},
    "profiled, corrected b = 0.1": {"tracking": 0.1, "anchored": False, "corrected": True, "profiled": True},
    "anchored": {"tracking": 0.0},
    "anchored profiled": {"tracking": 0.0, "profiled": True},
    "anchored corrected": {"tracking": 0.1, "corrected": True},
    "anchored profiled corrected": {"tracking": 0.1, "corrected": True, "profiled": True},
    "anchored refit": {"tracking": 0.0, "judge": REFITTED},
    "anchored profiled refit": {"tracking": 0.0, "profiled": True, "judge": REFITTED},
    "anchored corrected refit": {"tracking": 0.1, "corrected": True, "judge": REFITTED},
}
OTHERS = ("minimax, penalty 1 (published)", "minimax anchored, penalty 1e5", "bsgd")
VARIANTS = (*SCGD_VARIANTS, *OTHERS)


class Task(NamedTuple):
    """Rows, the model to start from, and the full-batch optimum's NLML."""

    source: DeviceRows
    gp: FeatureGP
    lowest: float
    reference_gradient: float


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [_cell("recovery", "5.0/3.0", 32, "anchored", 200)]
    return [
        _cell(problem, start, batch, variant, STEPS[problem])
        for problem in (("recovery", "deep") if slow else ("recovery",))
        for start in STARTS[problem]
        for batch in BATCHES
        for variant in VARIANTS
    ]


def _cell(problem: str, start: str, batch: int, variant: str, steps: int) -> Cell:
    rate = RATES[problem]
    return {
        "problem": problem, "start": start, "batch": batch, "variant": variant, "steps": steps, "rate": rate, "seed": 0
    }  # fmt: skip


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["steps"] * (1 + cell["batch"] / 64)


def learner(cell: Cell, n_rows: int) -> AbstractLearner:
    """The variant at the cell's batch size, rate and number of steps."""
    common = {
        "batch_size": cell["batch"],
        "epochs": max(1, cell["steps"] // (n_rows // cell["batch"])),
        "learning_rate": cell["rate"],
        "optimizer": optax.adam,
        "judge": NOT_REFITTED,
    }
    if cell["variant"] == "bsgd":
        return BSGD(**common)
    if cell["variant"] == OTHERS[0]:
        return Minimax(**common, anchored=False, penalty=1.0)
    if cell["variant"] == OTHERS[1]:
        return Minimax(**common, penalty=1e5)
    return SCGD(**{**common, **SCGD_VARIANTS[cell["variant"]]})


def run(cell: Cell) -> dict:
    task = _task(cell["problem"], cell["start"], cell["seed"])
    result = fit(learner(cell, task.source.size), task.gp, task.source, key=jax.random.key(cell["seed"]))
    last = [entry for entry in result.history if "step" in entry][-1]
    gp = result.gp
    if cell["problem"] == "recovery":
        gp = gp.with_variances(last["variance"], last["noise_variance"])
    s = result.spectrum
    refitted = nlml_of_spectrum(s, *refit(s, float(gp.variance), float(gp.noise_variance)))[0]
    return {
        "gap": last["nlml"] - task.lowest,
        "gap_best": result.nlml - task.lowest,
        "gap_refit": refitted - task.lowest,
        "gradient": gradient_norm(gp, task.source),
        "lowest": task.lowest,
        "reference_gradient": task.reference_gradient,
        "variance": last["variance"],
        "noise_variance": last["noise_variance"],
        "recoveries": sum(1 for entry in result.history if entry.get("recovered")),
        "steps": result.n_iter,
    }


def gradient_norm(gp: FeatureGP, source: DeviceRows) -> float:
    """‖∇ NLML per datum‖ of all rows by the unconstrained parameters, in float64."""
    with jax.enable_x64(True):
        trainable, rest = partition(cast(gp, jnp.float64))
        rows = cast(source.take(np.arange(source.size)), jnp.float64)
        gradient = eqx.filter_jit(jax.grad(lambda t: nlml_of_rows(eqx.combine(t, rest), rows)))(trainable)
        return float(optax.tree.norm(gradient))


def _task(problem: str, start: str, seed: int) -> Task:
    if problem == "recovery":
        made = recovery.make(seed)
        best = made.gp((made.variance, made.noise_variance))
        return Task(
            made.source, made.gp(recovery.STARTS[start]), made.lowest, gradient_norm(best, made.source)
        )
    source, first, reference = _deep(seed)
    gp = first if start == "first weights" else cast(reference.gp, jnp.float32)
    return Task(source, gp, reference.nlml, gradient_norm(reference.gp, source))


@functools.lru_cache(maxsize=1)
def _deep(seed: int) -> tuple[DeviceRows, FeatureGP, FitResult]:
    """Rows, the first model, and what L-BFGS on all rows makes of it."""
    problem = load("elevators", 0, DEEP_ROWS)
    network = networks.mlp(problem.X.shape[1], (DEEP_WIDTH, DEEP_WIDTH), key=jax.random.key(seed))
    first = FeatureGP(features.Network(network), noise=0.1, variance=1 / DEEP_WIDTH)
    with jax.enable_x64(True):
        wide = DeviceRows(problem.X, problem.y, dtype=jnp.float64)
        # Ends before its last step only where float64 rounding allows no lower loss.
        full = FullBatch(epochs=REFERENCE_STEPS, tolerance=0.0, precision="float64", judge=REFITTED)
        reference = fit(full, cast(first, jnp.float64), wide, key=jax.random.key(seed))
    return problem.source, first, reference


LIMIT = 1e-3
MEASURES = {
    "gap": "NLML per datum above the full-batch optimum, last step",
    "gap_refit": "The same after a refit of the two variances",
    "gradient": "Norm of the exact gradient",
}


def page(records: list[Record]) -> list[str]:
    """Three tables per problem and start (the worst of the starts of `recovery`), and the variants that keep the promise."""
    parts = []
    for title, runs in _panels(records):
        reference = tables.mean(r["results"]["reference_gradient"] for r in runs)
        lowest = tables.mean(r["results"]["lowest"] for r in runs)
        parts.append(f"## {title}\n\nFull-batch optimum: NLML {lowest:.5f}, gradient norm {reference:.1e}.")
        for field, text in MEASURES.items():
            if field != "gap" and runs[0]["settings"]["start"] == "optimum":
                continue
            rows = [
                [variant, *(_shown(_worst(runs, variant, batch, field)) for batch in BATCHES)]
                for variant in VARIANTS
                if select(runs, variant=variant)
            ]
            headings = ["variant", *(f"batch {batch}" for batch in BATCHES)]
            parts += [f"{text}:", tables.table(headings, rows)]
    kept = [variant for variant in VARIANTS if _keeps(select(records, problem="recovery"), variant)]
    parts.append(
        f"Within {LIMIT:g} of the optimum of `recovery` at every batch size from all starts that were run: {', '.join(kept) or 'none'}."
    )
    return parts


def figure(records: list[Record]) -> Figure:
    """Absolute distance and gradient norm against batch size; exact variants solid."""
    panels = _panels(records)
    drawing = Figure(figsize=(5 * len(panels), 8), layout="constrained")
    axes = drawing.subplots(2, len(panels), sharex=True, squeeze=False)
    for column, (title, runs) in enumerate(panels):
        for row, field in enumerate(("gap", "gradient")):
            if field == "gradient" and runs[0]["settings"]["start"] == "optimum":
                axes[row, column].set_visible(False)
                continue
            for i, variant in enumerate(VARIANTS):
                _draw(axes[row, column], runs, variant, field, i)
            axes[row, column].set_xscale("log", base=2)
            axes[row, column].set_yscale("log")
        axes[0, column].axhline(LIMIT, color="black", linestyle="--", linewidth=0.8)
        axes[0, column].set_title(title, fontsize=9)
        axes[1, column].set_xlabel("batch size")
    axes[0, 0].set_ylabel("|NLML per datum − full-batch optimum|, last step")
    axes[1, 0].set_ylabel("norm of the exact gradient")
    drawing.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return drawing


def _draw(panel: Any, runs: list[Record], variant: str, field: str, i: int) -> None:
    values = [(batch, _worst(runs, variant, batch, field)) for batch in BATCHES]
    found = [(batch, value) for batch, value in values if value is not None and math.isfinite(value)]
    x, y = [batch for batch, _ in found], [max(abs(value), 1e-9) for _, value in found]
    style = "-" if variant in EXACT else ":"
    panel.plot(x, y, style, color=f"C{i % 10}", marker="os^v"[i // 5], markersize=4, label=variant)


def _panels(records: list[Record]) -> list[tuple[str, list[Record]]]:
    found = [("recovery, worst of the starts", select(records, problem="recovery"))]
    found += [
        (f"deep, from the {start}", select(records, problem="deep", start=start)) for start in STARTS["deep"]
    ]
    return [(title, runs) for title, runs in found if runs]


def _worst(runs: list[Record], variant: str, batch: int, field: str) -> float | None:
    """The greatest value over the starts; NaN where a run has none; None where there is no run."""
    values = [r["results"][field] for r in select(runs, variant=variant, batch=batch)]
    if not values:
        return None
    return math.nan if None in values else max(values)


def _keeps(runs: list[Record], variant: str) -> bool:
    worst = [_worst(runs, variant, batch, "gap") for batch in BATCHES]
    return all(value is not None and value <= LIMIT for value in worst)


def _shown(value: float | None) -> str:
    return "–" if value is None else "diverged" if math.isnan(value) else f"{value:.1e}"
