"""How many neighbours, chosen how, and leave-one-out or Vecchia? (N2 of the acceptance experiments.)

Matérn-3/2, standardised rows, 2,048 centres. All variants go on from one θ, that of leave-one-out with 16 neighbours: two rounds, a search of neighbours by the θ so far and up to four scoring
steps on all centres. Stationary kernels find neighbours in x/ℓ, which is the order of correlation exactly; "x/√ℓ" is leave-one-out from 48 neighbours nearest in those inputs, the metric of the local
predictor. The library has neither blocks of rows nor leave-one-out inside a neighbourhood, so these are left out, as are other kernels.

"local" scores are those of a posterior from 128 neighbours, variances scaled by 500 left-out rows; "global" NLPD is that of the exact posterior of 3,000 random training rows at the same θ, as it is. All of
the same 2,000 test rows, unit variance. "less" is the local NLPD less that of leave-one-out with 48 neighbours; its standard error is the larger of that over rows and that by boxes of inputs.
Seconds are the processor's, of one core, for the two rounds with compilation: only those of one set compare. Accepted: leave-one-out with 48 neighbours is within two standard errors of the best variant on five sets of six; Vecchia is to
be kept if it gains 0.01 nats on two sets, or its θ predicts better globally.
"""

import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from experiments.kernel_fits import Scoring, dense, locally, paired, scores, some_tests, start
from experiments.problems import ROWS, SETS, load
from measuring import tables
from measuring.acceptance import error_of, sizes_verdict
from measuring.store import Cell, Record
from stochgp.kernels.nearest import NearestRows
from stochgp.learners import LeaveOneOut, Vecchia, fit
from stochgp.learners.conditionals import AbstractConditionals, Prepared
from stochgp.learning.descent import Optimizer
from stochgp.learning.judge import AbstractJudge
from stochgp.learning.schedules import Schedule, cosine
from stochgp.parameters import cast, value_of

USUAL = ("elevators", "protein")
SIZES, DEFAULT = (16, 32, 48, 96), ("leave-one-out", 48)
KINDS = ("leave-one-out", "Vecchia")
ROOT = "leave-one-out, x/√ℓ"
CENTRES, ROUNDS, STEPS = 2048, 2, 4
TEST_ROWS, GLOBAL_ROWS = 2000, 3000
ONE_CORE = True


class NearInRoots(AbstractConditionals):
    """Leave-one-out with the rows nearest in x/√ℓ for neighbours, of a stationary kernel."""

    joint: ClassVar[bool] = False
    n_scored: ClassVar[int] = 1
    batch_size: None = None
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    n_neighbours: int = 48
    n_centres: int = 16_384
    spread: float | None = 1.0
    judge: AbstractJudge | None = None

    def neighbours(self, gp: Any, prepared: Prepared, k: int) -> np.ndarray:
        with jax.enable_x64(True):
            kernel = cast(value_of(gp.kernel), jnp.float64)
            root = type(kernel)(np.sqrt(np.asarray(value_of(kernel.lengthscale))), 1.0)
        return NearestRows(root, prepared.X).others(prepared.centres, k, prepared.group)


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "synthetic", "centres": 64, "sizes": [16, 48], "seed": 0}]
    names = SETS if slow else USUAL
    return [{"set": name, "centres": CENTRES, "sizes": list(SIZES), "seed": 0} for name in names]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return ROWS[cell["set"]]


def run(cell: Cell) -> dict:
    problem = load(cell["set"], 0)
    truth, kept = some_tests(problem, TEST_ROWS), _some_rows(len(problem.y))
    source, first = problem.source, start(problem.X.shape[1])
    common = LeaveOneOut(n_neighbours=16, n_centres=cell["centres"], n_scored=1)
    begun = fit(common, first, source, key=jax.random.key(cell["seed"])).gp
    found, predicted = [], []
    for kind, m in _variants(cell):
        made = {"leave-one-out": LeaveOneOut, "Vecchia": Vecchia, ROOT: NearInRoots}[kind]
        learner = made(
            n_neighbours=m, n_centres=cell["centres"], **({"n_scored": 1} if made is LeaveOneOut else {})
        )
        begin = time.process_time()
        gp, distance = _rounds(learner, begun, first, source, cell["seed"])
        seconds = time.process_time() - begin
        predicted.append(locally(gp, problem, truth))
        whole = dense(gp, problem.X[kept], problem.y[kept]).predict(truth.X)
        found.append(
            {
                "kind": kind,
                "neighbours": m,
                **scores(predicted[-1], truth),
                "global_nlpd": float(np.mean(whole.losses(truth.y))),
                "noise_variance": float(gp.noise_variance),
                "distance": distance,
                "seconds": round(seconds, 1),
            }
        )
    ours = predicted[_variants(cell).index(DEFAULT)]
    less = [{"less": paired(one, ours, truth)} for one in predicted]
    return {"variants": [one | more for one, more in zip(found, less, strict=True)]}


def _variants(cell: Cell) -> list[tuple[str, int]]:
    return [(kind, m) for kind in KINDS for m in cell["sizes"]] + [(ROOT, 48)]


def _some_rows(n: int) -> np.ndarray:
    return np.sort(np.random.default_rng(2).permutation(n)[:GLOBAL_ROWS])


def _rounds(
    learner: AbstractConditionals, gp: Any, first: Any, source: Any, seed: int
) -> tuple[Any, float | None]:
    """(θ after the rounds, T²/P at it)."""
    with jax.enable_x64(True):
        scoring = Scoring(learner, first, source, seed)
        numbers: dict[str, float] = {}
        for _ in range(ROUNDS):
            state = scoring.begin(gp)
            for _ in range(STEPS):
                state, numbers = scoring.step(state)
                if learner.finished(numbers):
                    break
            gp = state.gp
    return gp, numbers["distance"]


def page(records: list[Record]) -> list[str]:
    headings = ["set", "by", "neighbours", "RMSE", "NLPD, local", "less", "its error", "95 % coverage", "scale", "NLPD, global", "T²/P", "seconds"]  # fmt: skip
    rows = []
    for record in records:
        for v in record["results"]["variants"]:
            error = error_of(v["less"])
            numbers = [v["rmse"], v["nlpd"], v["less"]["nlpd"], error, v["coverage95"], v["scale"], v["global_nlpd"], v["distance"]]  # fmt: skip
            digits = (4, 4, 4, 4, 3, 3, 4, 3)
            shown = [tables.number(x, d) for x, d in zip(numbers, digits, strict=True)]
            rows.append(
                [
                    record["settings"]["set"],
                    v["kind"],
                    v["neighbours"],
                    *shown,
                    tables.number(v["seconds"], 0),
                ]
            )
    return [tables.table(headings, rows), sizes_verdict(records)]


def figure(records: list[Record]) -> Figure:
    """Local NLPD against neighbours."""
    drawing = Figure(figsize=(3.2 * len(records), 3), layout="constrained")
    panels = drawing.subplots(1, len(records), squeeze=False)[0]
    for panel, record in zip(panels, records, strict=True):
        for kind in (*KINDS, ROOT):
            found = [v for v in record["results"]["variants"] if v["kind"] == kind]
            panel.semilogx(
                [v["neighbours"] for v in found], [v["nlpd"] for v in found], "o-", ms=4, label=kind
            )
        panel.set(title=record["settings"]["set"], xlabel="neighbours")
    panels[0].set(ylabel="NLPD")
    panels[0].legend(fontsize=7)
    return drawing
