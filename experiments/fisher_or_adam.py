"""Fisher scoring or Adam for the conditional densities of few parameters? (N4 of the acceptance experiments.)

The objective is fixed: leave-one-out on 1,024 random centres of all rows, 32 neighbours nearest in standardised inputs, no prior, Matérn-3/2. From three starts, `LeaveOneOut`'s scoring
steps (a pass over the centres each, whether taken or refused) and its mini-batches of 128 centres by Adam, with rates and numbers of passes of their own, the rate falling as a cosine. The loss of all
centres is evaluated after every pass of Adam and not counted. "Adam, then scoring" goes on by scoring from the end of Adam's 8 passes, as the learner does by default. The optimum is
the lowest loss that any run of the set found; a run is there from the first pass on after which it stays within 0.001 nats of it. Seconds are the processor's, of one core, for passes without compilation, and only those of one
cell compare; "of scoring" is their ratio to scoring's, where both arrive. Accepted: what is faster is the default for up to 50 parameters.
"""

import math
import time
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import ROWS, SETS, load
from measuring import tables
from measuring.acceptance import NEAR, SCORING, arrivals, optimum_of, scoring_or_adam
from measuring.store import Cell, Record, select

USUAL = ("elevators", "protein")
STARTS = {
    "short": (1.0, 0.1),
    "usual": (None, 0.1),
    "noisy": (None, 0.5),
}  # lengthscale (None = √D), noise variance
ADAM = ((0.1, 8), (0.1, 80), (0.3, 80))  # rate, passes
AFTER = "Adam, then scoring"
CENTRES, NEIGHBOURS, MOST, GAIN = 1024, 32, 60, 1e-6
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "synthetic", "start": "usual", "centres": 128, "seed": 0}]
    names = SETS if slow else USUAL
    return [{"set": s, "start": start, "centres": CENTRES, "seed": 0} for s in names for start in STARTS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return ROWS[cell["set"]]


def run(cell: Cell) -> dict:
    import jax

    from experiments import kernel_fits

    with jax.enable_x64(True):
        made = _Made(cell)
        first = kernel_fits.start(
            made.D, lengthscale=STARTS[cell["start"]][0], noise=STARTS[cell["start"]][1]
        )
        made.warm_up(first)
        found = {SCORING: made.score(first)}
        for rate, passes in ADAM:
            name = f"Adam {rate:g}, {passes} passes"
            found[name], gp = made.adam(first, rate, passes)
            if passes == ADAM[0][1]:
                found[AFTER] = made.score(gp, found[name])
    return {"runs": found, "parameters": made.D + 2}


class _Made:
    """The objective of a cell: its rows, centres and neighbours."""

    def __init__(self, cell: Cell):
        from experiments import kernel_fits
        from stochgp.learners import LeaveOneOut

        problem = load(cell["set"], 0)
        self.source, self.D, self.seed = problem.source, problem.X.shape[1], cell["seed"]
        self.shape = {"n_neighbours": NEIGHBOURS, "n_centres": cell["centres"], "n_scored": 1, "spread": None}
        equal = kernel_fits.start(self.D)
        self.scoring = kernel_fits.Scoring(LeaveOneOut(**self.shape), equal, self.source, self.seed)
        self.near = self.scoring.near(equal)

    def loss(self, gp: Any) -> float:
        from stochgp.objectives.conditionals import evaluate, is_small

        wide = is_small(gp, self.source.take(self.near[:100, -1]))
        return float(np.mean(evaluate(gp, self.source, self.near, wide).loss))

    def warm_up(self, gp: Any) -> None:
        """Compiles."""
        self.scoring.step(self.scoring.begin(gp, self.near))
        self.adam(gp, *ADAM[0], most=1)

    def score(self, gp: Any, before: dict | None = None) -> dict[str, list]:
        """Losses and seconds after each pass, those of the run `before` first."""
        losses, seconds = (list(before[k]) for k in ("losses", "seconds")) if before else ([], [])
        state, total = self.scoring.begin(gp, self.near), seconds[-1] if seconds else 0.0
        gain, passes = math.inf, 0
        while gain > GAIN and passes < MOST:
            begun = time.process_time()
            state, numbers = self.scoring.step(state)
            total, passes, gain = total + time.process_time() - begun, passes + 1, numbers["gain"]
            losses.append(round(float(state.at.loss), 6))
            seconds.append(round(total, 3))
        return {"losses": losses, "seconds": seconds}

    def adam(self, gp: Any, rate: float, passes: int, most: int | None = None) -> tuple[dict[str, list], Any]:
        """The same of mini-batches, and the model at the end. The learner's own passes, its neighbours held."""
        from experiments import kernel_fits
        from stochgp.learners import LeaveOneOut

        learner = LeaveOneOut(**self.shape, epochs=passes, learning_rate=rate)
        run = kernel_fits.Scoring(learner, kernel_fits.start(self.D), self.source, self.seed)
        state, losses, seconds, total = run.begin(gp, self.near), [], [], 0.0
        for step in range(passes if most is None else most):
            begun = time.process_time()
            state = run.by_batches(state, step)
            total += time.process_time() - begun
            losses.append(round(self.loss(state.gp), 6))
            seconds.append(round(total, 3))
        return {"losses": losses, "seconds": seconds}, state.gp


def page(records: list[Record]) -> list[str]:
    rows = []
    for cell, name, at, ratio in arrivals(records):
        (record,) = select(records, **cell)
        last = record["results"]["runs"][name]["losses"][-1]
        above = math.nan if last is None else last - optimum_of(records, cell["set"])
        rows.append(
            [
                cell["set"],
                record["results"]["parameters"],
                cell["start"],
                name,
                "not there" if at is None else at[0],
                "" if at is None else tables.number(at[1], 1),
                "" if ratio is None else tables.number(ratio, 2),
                tables.number(above, 5),
            ]
        )
    headings = ["set", "parameters", "start", "by", "passes", "seconds", "of scoring", "above the optimum at the end"]  # fmt: skip
    return [tables.table(headings, rows), scoring_or_adam(records)]


def figure(records: list[Record]) -> Figure:
    """Loss above the optimum against passes."""
    names = list(dict.fromkeys(r["settings"]["set"] for r in records))
    drawing = Figure(figsize=(3.2 * len(names), 3), layout="constrained")
    for panel, name in zip(drawing.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        optimum = optimum_of(records, name)
        for record in select(records, set=name):
            for i, (method, run) in enumerate(record["results"]["runs"].items()):
                above = [np.nan if loss is None else max(loss - optimum, 1e-6) for loss in run["losses"]]
                label = method if record is select(records, set=name)[0] else None
                panel.loglog(range(1, len(above) + 1), above, color=f"C{i}", lw=1, label=label)
        panel.axhline(NEAR, color="k", lw=0.5)
        panel.set(title=name, xlabel="passes")
    drawing.axes[0].set(ylabel="nats above the optimum")
    drawing.axes[0].legend(fontsize=6)
    return drawing
