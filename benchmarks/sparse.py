"""`sparse`: seconds per step of SVDGP for several sizes, SVI, and fits with SoftKI.

`svdgp` has this many functions for the mean, 128 for the covariance, and batches of 1,024. `svi` is SVGP with
1,024 points. `softki` is a fit in PyTorch with a Matérn-3/2 kernel, 512 points, and Adam at 0.01 for 150 s.
All methods start at lengthscales √D, variance 1 and noise 0.1, with standardised rows. Scores are those of
noisy test targets with unit variance.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from measuring import store
from measuring.tables import table
from stochgp import kernels
from stochgp.budget import peak_resident
from stochgp.data.memory import MemorySource
from stochgp.learners import SVDGP, SVGP
from stochgp.learners.base import Problem
from stochgp.learners.evaluators import StepPlan
from stochgp.models import SparseGP
from stochgp.numerics.arrays import when_ready
from stochgp.variational import Decoupled, InducingPoints, functions_at

SEED, NOISE, VARIANCE, RATE, BATCH = (0, 1), 0.1, 1.0, 0.01, 1024
COVARIANCE, N_INPUTS, STEPS = 128, 21, 4  # M_β of SVDGP, inputs, timed steps
SCORES = {"rmse": 4, "nlpd": 3, "coverage95": 3}  # digits of each score


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    sets = ("bike", "elevators", "pol", "kin40k", "protein", "keggdirected")
    steps = [
        ("svdgp", kind, M, "ours")
        for kind in ("plain", "generalised")
        for M in (1_024, 4_096, 16_384, 65_536)
    ]
    every = [*steps, ("svi", "plain", 1_024, "ours"), *(("softki", on, 512, "torch") for on in sets)]
    if quick:
        every = [("svdgp", "plain", 256, "ours")]
    return [
        {"dtype": "float32", "part": part, "on": on, "size": M, "side": side} for part, on, M, side in every
    ]


def run(cell: store.Cell) -> dict[str, Any]:
    if cell["part"] == "softki":
        from benchmarks.rivals_softki import softki

        return softki(cell["on"], cell["size"])
    size, gaussian = cell["size"], np.random.default_rng(0)
    X = gaussian.normal(size=(size + BATCH, N_INPUTS)).astype(np.float32)
    kernel = kernels.RBF(np.full(N_INPUTS, N_INPUTS**0.5, np.float32), VARIANCE)
    learner = SVGP if cell["part"] == "svi" else SVDGP
    if cell["part"] == "svi":
        q: Any = InducingPoints.of(jnp.asarray(X[:size]))
    else:
        spread = cell["on"] == "generalised"
        alpha, beta = functions_at(X[:size], spread=spread), functions_at(X[:COVARIANCE], spread=spread)
        q = Decoupled(alpha, jnp.zeros(size, jnp.float32), beta, jnp.eye(COVARIANCE, dtype=jnp.float32))
    return _one_step(SparseGP(kernel, q, NOISE), X[-BATCH:], learner(batch_size=BATCH, learning_rate=RATE))


def page(records: list[store.Record]) -> list[str]:
    """Return tables: milliseconds of a step, and scores of complete fits."""
    rows = [
        [r["part"], r["on"], r["size"], r["side"], round(1e3 * r["step_seconds"], 2)]
        + [round(r[score], digits) if score in r else "" for score, digits in SCORES.items()]
        + [round(r["peak_bytes"] / 1e6)]
        for r in store.rows(records)
    ]
    return [table("part | on | size | side | step ms | RMSE | NLPD | coverage | peak MB", rows)]


def _one_step(gp: SparseGP, X: np.ndarray, learner: Any) -> dict[str, float]:
    """Return the median time of STEPS steps, after one step that compiles."""
    source, seconds = MemorySource(X, np.sin(X[:, 0]), None, dtype=jnp.float32), []
    plan = StepPlan(BATCH, 1, 100, 1)
    with jax.enable_x64(True):
        problem = Problem(source, plan, learner.prepare(gp, source, plan, SEED))
        state = learner.init(gp, problem, key=jax.random.key(0))
        for step in range(STEPS + 1):
            begun = time.perf_counter()
            state, _ = learner.advance(state, problem, step, 1, SEED)
            when_ready(state)
            seconds.append(time.perf_counter() - begun)
    step_seconds = float(np.median(seconds[1:]))
    return {"step_seconds": step_seconds, "steps": STEPS, "peak_bytes": peak_resident()}
