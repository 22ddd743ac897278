"""The library's sides of the benchmark `sparse`."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import sparse
from benchmarks.sparse_start import BATCH, NOISE, RATE, VARIANCE, Start, nlpd, start, weights
from stochgp import kernels
from stochgp.budget import peak_resident
from stochgp.data.streams import DeviceRows
from stochgp.learners import SGPR, SVDGP, SVGP, AbstractLearner
from stochgp.learners.base import Problem
from stochgp.learners.descent import constant
from stochgp.learners.step_plan import StepPlan
from stochgp.models import SparseGP
from stochgp.numerics.arrays import when_ready
from stochgp.objectives.collapsed import lower_bound_and_gradient
from stochgp.posteriors import VariationalPosterior
from stochgp.variational import Decoupled, InducingPoints, functions_at

SEED = (0, 1)
COVARIANCE, MEAN_ROWS, N_INPUTS, STEPS = (
    128,
    1024,
    21,
    4,
)  # of SVDGP: M_β, rows of a batch, inputs of the robots, steps timed
PREDICTED = 256


class Network(eqx.Module):
    """x ↦ W₃ᵀtanh(W₂ᵀtanh(W₁ᵀx + b₁) + b₂) + b₃."""

    layers: list[tuple[jax.Array, jax.Array]]

    def __call__(self, x: jax.Array) -> jax.Array:
        *hidden, (W, b) = self.layers
        for V, c in hidden:
            x = jnp.tanh(x @ V + c)
        return x @ W + b


def svgp(name: str, size: int) -> dict:
    given = start(name, size)
    epochs = sparse.EPOCHS.get(name, 2)
    learner = SVGP(batch_size=BATCH, epochs=epochs, learning_rate=RATE, decay=constant)
    return _epochs(_model(given), given, learner, epochs)


def deep(name: str, size: int) -> dict:
    given = start(name, size)
    network = Network([(jnp.asarray(W), jnp.asarray(b)) for W, b in weights(given.X.shape[1])])
    kernel = kernels.Warped(kernels.RBF(np.ones(network.layers[-1][1].shape[0], np.float32)), network)
    gp = SparseGP(kernel, InducingPoints.of(jnp.asarray(given.points)), NOISE)
    learner = SVGP(batch_size=size, epochs=sparse.DEEP_EPOCHS, learning_rate=RATE)
    return _epochs(gp, given, learner, sparse.DEEP_EPOCHS)


def sgpr(name: str, size: int) -> dict:
    """In float64, as SGPR is."""
    given, seconds = start(name, size), []
    with jax.enable_x64(True):
        gp, source, split = _model(given, jitter=1e-8), _rows(given), SGPR().partition
        for _ in range(sparse.ITERATIONS + 1):
            begun = time.perf_counter()
            when_ready(lower_bound_and_gradient(gp, source, split)[1])
            seconds.append(time.perf_counter() - begun)
    return _found(float(np.median(seconds[1:])), sparse.ITERATIONS)


def svdgp(kind: str, n_functions: int) -> dict:
    """All functions are there."""
    X = np.random.default_rng(0).normal(size=(n_functions + MEAN_ROWS, N_INPUTS)).astype(np.float32)
    spread = kind == "generalised"
    alpha = functions_at(X[:n_functions], spread=spread)
    beta = functions_at(X[:COVARIANCE], spread=spread)
    root = jnp.asarray(np.eye(COVARIANCE, dtype=np.float32))
    q = Decoupled(alpha, jnp.zeros(n_functions, jnp.float32), beta, root)
    gp = SparseGP(kernels.RBF(np.full(N_INPUTS, N_INPUTS**0.5, np.float32), VARIANCE), q, NOISE)
    return _one_step(gp, X, SVDGP(batch_size=MEAN_ROWS, learning_rate=RATE))


def svi(kind: str, size: int) -> dict:
    """Our SVGP step on the same rows."""
    X = np.random.default_rng(0).normal(size=(size + MEAN_ROWS, N_INPUTS)).astype(np.float32)
    kernel = kernels.RBF(np.full(N_INPUTS, N_INPUTS**0.5, np.float32), VARIANCE)
    gp = SparseGP(kernel, InducingPoints.of(jnp.asarray(X[:size])), NOISE)
    return _one_step(gp, X, SVGP(batch_size=MEAN_ROWS, learning_rate=RATE))


def _one_step(gp: SparseGP, X: np.ndarray, learner: AbstractLearner) -> dict:
    """The median of STEPS steps, each a call, after one that compiles."""
    source = DeviceRows(X[-MEAN_ROWS:], np.sin(X[-MEAN_ROWS:, 0]), None, dtype=jnp.float32)
    plan = StepPlan(MEAN_ROWS, 1, 100, 1)
    with jax.enable_x64(True):
        problem, state = _begun(learner, gp, source, plan)
        seconds = []
        for step in range(STEPS + 1):
            begun = time.perf_counter()
            state, _ = learner.advance(state, problem, step, 1, SEED)
            when_ready(state)
            seconds.append(time.perf_counter() - begun)
    return _found(float(np.median(seconds[1:])), STEPS)


def _epochs(gp: SparseGP, given: Start, learner: SVGP, epochs: int) -> dict:
    """Seconds of a step: the median over the epochs after the first."""
    source, seconds = _rows(given), []
    batch = min(int(learner.batch_size), source.size)
    per_epoch = source.size // batch
    plan = StepPlan(batch, per_epoch, epochs * per_epoch, per_epoch, per_epoch)
    with jax.enable_x64(True):
        problem, state = _begun(learner, gp, source, plan)
        for epoch in range(epochs):
            begun = time.perf_counter()
            state, _ = learner.advance(state, problem, epoch * per_epoch, per_epoch, SEED)
            when_ready(state)
            seconds.append((time.perf_counter() - begun) / per_epoch)
        peak = peak_resident()
        posterior = VariationalPosterior.of(state.gp, given.X.shape[1])
        noise = float(state.gp.noise_variance)
        mean, variance = _predicted(posterior, given.X_test)
    return _found(float(np.median(seconds[1:])), (epochs - 1) * per_epoch) | {
        "peak_bytes": peak,
        "nlpd": nlpd(given, mean, variance + noise),
    }


def _begun(learner: Any, gp: SparseGP, source: DeviceRows, plan: StepPlan) -> tuple[Problem, Any]:
    problem = Problem(source, plan, learner.prepare(gp, source, plan, SEED))
    return problem, learner.init(gp, problem, key=jax.random.key(0))


def _predicted(posterior: VariationalPosterior, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, parts = len(X), []
    padded = np.concatenate([X, np.zeros((-n % PREDICTED, X.shape[1]), X.dtype)])
    for begin in range(0, len(padded), PREDICTED):
        parts.append(
            [np.asarray(part) for part in posterior.mean_and_variance(padded[begin : begin + PREDICTED])]
        )
    mean, variance = (np.concatenate(part)[:n] for part in zip(*parts, strict=True))
    return mean, variance


def _model(given: Start, jitter: float | None = None) -> SparseGP:
    D = given.X.shape[1]
    kernel = kernels.RBF(np.full(D, given.lengthscale, np.float32), VARIANCE)
    return SparseGP(kernel, InducingPoints.of(jnp.asarray(given.points), jitter=jitter), NOISE)


def _rows(given: Start) -> DeviceRows:
    return DeviceRows(given.X, given.y, None, dtype=jnp.float32)


def _found(step_seconds: float, steps: int) -> dict:
    return {"step_seconds": step_seconds, "steps": steps, "peak_bytes": peak_resident()}
