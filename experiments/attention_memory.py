"""X6, attention kernel: memory of a step against batch size (the SCGD paper, second version, figure 9, there on a GPU).

Linear kernel on the attention map (32 features), Adam, rows of bike and kin40k, float32, the processor; of SVGP as many inducing points as rows in a
batch. `temporary` is what XLA
reserves for one compiled step beyond its arguments and results: exact and without noise. `working` is what 64 steps added to the
resident memory of a fresh process (Linux's high-water mark), compilation included.
"""

import gc
import json
import math
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
from matplotlib.figure import Figure

from experiments import inducing, recovery
from experiments.problems import deep_gp, load
from measuring import tables
from measuring.resident import reset_peak, resident
from measuring.store import Cell, Record, select
from stochgp.learners import BSGD, SCGD, SVGP, Minimax

SETS, BATCHES, STEPS = ("bike", "kin40k"), (16, 64, 256, 1024, 4096), 64
LEARNERS = {"SCGD": SCGD, "MINIMAX": Minimax, "BSGD": BSGD, "SVGP": SVGP}


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "synthetic", "method": method, "batch": 16} for method in ("SCGD", "SVGP")]
    batches = BATCHES if slow else BATCHES[:-1]
    return [
        {"set": name, "method": method, "batch": batch}
        for name in SETS
        for method in LEARNERS
        for batch in batches
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["batch"]


def run(cell: Cell) -> dict:
    """Both figures, from a fresh process."""
    command = [sys.executable, "-m", "experiments.attention_memory", json.dumps(cell)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measure(cell: Cell) -> dict:
    """The two figures of one cell in this process."""
    problem = load(cell["set"], 0)
    source = problem.source
    gp, B = deep_gp(problem, 0, network="attention"), cell["batch"]
    learner = LEARNERS[cell["method"]](batch_size=B, learning_rate=1e-3)
    if isinstance(learner, SVGP):
        gp = inducing.sparse_gp(gp, problem, B, 0)
    n_steps = max(1, min(STEPS, 65_536 // B))
    with jax.enable_x64(True):
        state = recovery.begun(learner, gp, source, n_steps, 0)
        batches = source.take(recovery.draw(learner, source.size, 0, n_steps, ()))
        one = jax.tree.map(lambda a: a[0], batches)
        dynamic, static = eqx.partition(state, eqx.is_array)

        def step(dynamic, rows):
            new, _ = learner.step(eqx.combine(dynamic, static), rows, key=jax.random.key(0))
            return eqx.filter(new, eqx.is_array)

        analysis = jax.jit(step).lower(dynamic, one).compile().memory_analysis()
        gc.collect()
        reset_peak()
        before = resident("VmRSS")
        jax.block_until_ready(recovery.run_steps(learner, state, batches))
    temporary = None if analysis is None else int(analysis.temp_size_in_bytes)
    return {"temporary_bytes": temporary, "working_bytes": resident("VmHWM") - before}


def page(records: list[Record]) -> list[str]:
    parts = []
    for name in sorted({r["settings"]["set"] for r in records}):
        for field, text in (("temporary_bytes", "temporary"), ("working_bytes", "working")):
            rows = []
            for method in LEARNERS:
                points = _points(records, name, method, field)
                if points:
                    slope = (
                        np.polyfit(list(points), list(points.values()), 1)[0] if len(points) > 1 else math.nan
                    )
                    cells_ = [tables.number(points.get(b, math.nan), 1) for b in BATCHES]
                    rows.append([method, *cells_, tables.number(1000 * slope, 1)])
            headings = ["method", *(f"batch {b}" for b in BATCHES), "kB a row (slope)"]
            parts += [f"{name}, {text} MB:", tables.table(headings, rows)]
    return parts


def figure(records: list[Record]) -> Figure:
    names = sorted({r["settings"]["set"] for r in records})
    drawing = Figure(figsize=(5 * len(names), 4), layout="constrained")
    panels = drawing.subplots(1, len(names), squeeze=False)[0]
    for panel, name in zip(panels, names, strict=True):
        for i, method in enumerate(LEARNERS):
            for field, style in (("temporary_bytes", "o-"), ("working_bytes", "s:")):
                points = _points(records, name, method, field)
                panel.plot(
                    list(points), list(points.values()), style, color=f"C{i}", label=f"{method}, {field[:-6]}"
                )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_title(f"{name}, attention map")
        panel.set_xlabel("batch size")
    panels[0].set_ylabel("MB")
    panels[0].legend(fontsize=7)
    return drawing


def _points(records: list[Record], name: str, method: str, field: str) -> dict[int, float]:
    """{batch size: MB}"""
    runs = [r for r in select(records, set=name, method=method) if r["results"][field] is not None]
    return dict(sorted((r["settings"]["batch"], r["results"][field] / 1e6) for r in runs))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))))
