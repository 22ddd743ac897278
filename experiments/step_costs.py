"""X7: time of a step against N, B and M, beside the SCGD paper's cost table: SCGD and MINIMAX O(M³ + BM²) + BC, BSGD O(B³ + B²M) + BC.

A network of two layers (128, M) on 16 inputs, made-up rows, float32, Adam, one core. One size varies, the others stay at N = 65,536, B = 32,
M = 128. Seconds are the least of five timed stretches, with the gathering of their batches, after one untimed; compilation is not
counted. `SCGD` here tracks with b = 0.1, so that it factorises at every step; `SCGD anchored` (b = 0) factorises once per epoch only, and
that evaluation is not part of a step. The exponent is the slope of log time by log size over all sizes, and over the last two.
"""

import math
import time

import jax
import numpy as np
from matplotlib.figure import Figure

from experiments import recovery
from measuring import tables
from measuring.store import Cell, Record, select
from stochgp import features, networks
from stochgp.data.streams import DeviceRows
from stochgp.learners import BSGD, SCGD, AbstractLearner, Minimax
from stochgp.models import FeatureGP

BASE = {"N": 65_536, "B": 32, "M": 128}
SIZES = {
    "N": (4_096, 16_384, 65_536, 262_144, 1_048_576),
    "B": (8, 32, 128, 512, 1024),
    "M": (32, 64, 128, 256, 512, 1024),
}
INPUTS, REPEATS = 16, 5
LEARNERS = {
    "SCGD": lambda B: SCGD(batch_size=B, learning_rate=1e-4, tracking=0.1, anchored=False),
    "SCGD anchored": lambda B: SCGD(batch_size=B, learning_rate=1e-4),
    "MINIMAX": lambda B: Minimax(batch_size=B, learning_rate=1e-4),
    "BSGD": lambda B: BSGD(batch_size=B, learning_rate=1e-4),
}
THEORY = {
    "SCGD": {"N": "0", "B": "1", "M": "3"},
    "SCGD anchored": {"N": "0", "B": "1", "M": "2"},
    "MINIMAX": {"N": "0", "B": "1", "M": "3"},
    "BSGD": {"N": "0", "B": "3", "M": "1"},
}


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"method": "BSGD", "N": 1024, "B": B, "M": 16} for B in (8, 32)]
    found = [{"method": m, **BASE} for m in LEARNERS]
    for axis, sizes in SIZES.items():
        found += [{"method": m, **BASE, axis: size} for m in LEARNERS for size in sizes if size != BASE[axis]]
    return found


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["M"] ** 3 + cell["B"] ** 3 + cell["N"]


def run(cell: Cell) -> dict:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((cell["N"], INPUTS), dtype=np.float32)
    y = np.sin(X[:, 0]) + np.float32(0.3) * generator.standard_normal(cell["N"], dtype=np.float32)
    source = DeviceRows(X, y)
    network = networks.mlp(INPUTS, (128, cell["M"]), key=jax.random.key(0))
    learner = LEARNERS[cell["method"]](cell["B"])
    gp = FeatureGP(features.Network(network), noise=0.1, variance=1 / cell["M"])
    steps = int(np.clip(4e9 / (cell["M"] ** 3 + cell["B"] ** 3 + 1e6), 20, 500))
    seconds = _time(learner, gp, source, steps)
    return {
        "microseconds": 1e6 * min(seconds) / steps,
        "median_microseconds": 1e6 * sorted(seconds)[REPEATS // 2] / steps,
    }


def _time(learner: AbstractLearner, gp: FeatureGP, source: DeviceRows, steps: int) -> list[float]:
    """Seconds of each stretch of `steps` steps."""
    seconds = []
    with jax.enable_x64(True):
        state = recovery.begun(learner, gp, source, steps * (REPEATS + 1), 0)
        for repeat in range(REPEATS + 1):
            indices = recovery.draw(learner, source.size, repeat * steps, steps, ())
            begun = time.perf_counter()
            state = jax.block_until_ready(recovery.run_steps(learner, state, source.take(indices)))
            seconds.append(time.perf_counter() - begun)
    return seconds[1:]


def page(records: list[Record]) -> list[str]:
    parts = []
    for axis, sizes in SIZES.items():
        headings = [
            "method",
            *(f"{axis} = {size:,}" for size in sizes),
            "exponent",
            "at the last two",
            "theory (largest sizes)",
        ]
        rows = []
        for method in LEARNERS:
            points = _points(records, method, axis)
            if points:
                times = [tables.number(points.get(size, math.nan), 0) for size in sizes]
                slopes = [tables.number(_slope(dict(list(points.items())[first:])), 2) for first in (0, -2)]
                rows.append([method, *times, *slopes, THEORY[method][axis]])
        if rows:
            parts += [f"## Microseconds a step against {axis}", tables.table(headings, rows)]
    return parts


def figure(records: list[Record]) -> Figure:
    """Time against each size."""
    drawing = Figure(figsize=(12, 4), layout="constrained")
    panels = drawing.subplots(1, len(SIZES), sharey=True)
    for panel, axis in zip(panels, SIZES, strict=True):
        for method in LEARNERS:
            if points := _points(records, method, axis):
                panel.loglog(list(points), list(points.values()), "o-", label=method)
        panel.set_xlabel(axis)
    panels[0].set_ylabel("microseconds a step")
    if panels[0].lines:
        panels[0].legend()
    return drawing


def _points(records: list[Record], method: str, axis: str) -> dict[int, float]:
    """{size: microseconds} along one axis, the others at BASE."""
    others = {name: size for name, size in BASE.items() if name != axis}
    runs = select(records, method=method, **others)
    return dict(sorted((r["settings"][axis], r["results"]["microseconds"]) for r in runs))


def _slope(points: dict[int, float]) -> float:
    if len(points) < 2:
        return math.nan
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])
