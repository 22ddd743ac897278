"""Shared code of experiments with decoupled processes: problems, methods and scores.

The protocol is that of Cheng and Boots (2017). Hyperparameters start from median distances of the first rows,
functions are added from the batches, and Adam uses the rate γ₀/(1 + 0.1 √t). Each stochastic method tries γ₀
of 0.1, 0.01 and 0.001 for 100 steps, and continues with the best. VSGPR (Titsias 2009) and exact GPs use
L-BFGS.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import walking
from experiments.problems import Problem as Data
from measuring.store import shared
from stochgp.data import Standardiser
from stochgp.data.memory import MemorySource
from stochgp.kernels import RBF
from stochgp.learners import (
    IVSGPR,
    SGPR,
    SVDGP,
    SVGP,
    AbstractLearner,
    FullBatch,
    InverseRoot,
    Problem,
    cosine,
)
from stochgp.learners.evaluators import StepPlan
from stochgp.learning import fit
from stochgp.models import KernelGP, SparseGP
from stochgp.parameters import cast
from stochgp.variational import Decoupled, InducingPoints

RATES, TRIAL_STEPS, TRIAL_LAST = (1e-1, 1e-2, 1e-3), 100, 20
COSINE = "-cosine"  # suffix of the name of SVDGP
MEDIAN_ROWS, CHUNK, TEST_ROWS = 128, 20, 2048


class Sizes(NamedTuple):
    """Sizes of the five methods; the defaults are those of the paper."""

    n_mean: int = 16_384
    n_covariance: int = 128
    svi: int = 1_024
    ivsgpr: int = 256
    vsgpr: int = 1_024
    vsgpr_rows: int = 4_096
    gpr_rows: int = 1_024
    batch: int = 1_024
    growth: int = 128
    columns: int = 128  # columns of K_α drawn in a step, for functions with separate widths
    steps: int = 2_000


QUICK = Sizes(256, 16, 32, 16, 16, 128, 64, 64, 16, 16, 120)


def load(name: str, output: int, frames: int = walking.FRAMES) -> Data:
    """Load "walking" (23 inputs), "walking-46" or "sarcos", with 90 % of the rows for training."""
    if name == "sarcos":
        with np.load(shared("data/robot/sarcos_test.npz")) as found:
            X, Y = found["X"], found["Y"]
    else:
        walk = walking.load(frames)
        X, Y = walk.with_previous() if name == "walking-46" else (walk.X, walk.Y)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = np.split(order, [round(0.9 * len(X))])
    y = Y[:, output].astype(np.float64)
    inputs, targets = Standardiser.fit(X[train].astype(np.float64)), Standardiser.fit(y[train])
    return Data(
        inputs.transform(X[train], np.float32),
        targets.transform(y[train], np.float32),
        inputs.transform(X[test], np.float32),
        targets.transform(y[test], np.float64),
        float(targets.scale),
    )


def median_kernel(X: np.ndarray, y: np.ndarray) -> tuple[RBF, float]:
    """Return an SE-ARD kernel from median distances, and the noise variance var(y)/100."""
    some = X[:MEDIAN_ROWS]
    apart = np.abs(some[:, None] - some[None])[np.triu_indices(len(some), 1)]
    lengthscale = np.sqrt(X.shape[1]) * np.maximum(np.median(apart, axis=0), 0.1)
    v = float(np.var(y[: 8 * MEDIAN_ROWS]))
    return RBF(lengthscale.astype(np.float32), np.float32(v)), v / 100


def start(method: str, data: Data, sizes: Sizes, spread: bool) -> SparseGP:
    """Return the model before its first step."""
    kernel, noise = median_kernel(data.X, data.y)
    D = data.X.shape[1]
    if method == "svi":
        q: Any = InducingPoints.of(jnp.asarray(data.X[: sizes.svi]))
    elif method == "ivsgpr":
        q = Decoupled.of(sizes.ivsgpr, None, D, spread=spread)
    else:
        q = Decoupled.of(min(sizes.n_mean, len(data.y)), sizes.n_covariance, D, spread=spread)
    return SparseGP(kernel, q, noise)


def learner(method: str, sizes: Sizes, rate: float, spread: bool) -> AbstractLearner:
    """Return a learner with the rate of the paper; "-cosine" multiplies it by a cosine."""
    settings: dict[str, Any] = {"batch_size": sizes.batch, "learning_rate": InverseRoot(rate)}
    if method == "svi":
        return SVGP(**settings, natural_rate=InverseRoot(0.5))
    settings["growth"] = sizes.growth
    if method == "ivsgpr":
        return IVSGPR(**settings)
    settings["n_columns"] = sizes.columns if spread else None
    if method.endswith(COSINE):
        settings |= {"learning_rate": rate, "decay": cosine}
    return SVDGP(**settings)


Look = Callable[[SparseGP, int, float], None]


def follow(
    one: Any, gp: SparseGP, data: Data, sizes: Sizes, steps: int, look: Look | None, looks: int = 50
) -> tuple:
    """Return the model after `steps` steps, and the mean of the last losses."""
    n, source = len(data.y), data.source
    batch = min(sizes.batch, n)
    plan = StepPlan(batch, max(1, n // batch), steps, steps, CHUNK)
    every, seconds, losses = max(CHUNK, steps // looks // CHUNK * CHUNK), 0.0, []
    with jax.enable_x64(True):
        prepared = one.prepare(gp, source, plan, (0, 1))
        problem = Problem(source, plan, prepared, None)
        state = one.init(gp, problem, key=jax.random.key(0))
        for step in range(0, steps, CHUNK):
            begun = time.perf_counter()
            state, numbers = one.advance(state, problem, step, CHUNK, (0, 2))
            seconds += time.perf_counter() - begun
            losses.append(numbers["loss"])
            if look is not None and ((step + CHUNK) % every == 0 or step + CHUNK >= steps):
                look(state.gp, step + CHUNK, seconds)
    return state.gp, float(np.mean(losses[-max(1, TRIAL_LAST // CHUNK) :]))


def tuned(method: str, data: Data, sizes: Sizes, spread: bool) -> tuple[float, dict[str, float]]:
    """Return the γ₀ with the lowest loss after 100 steps, and all losses."""
    losses = {}
    for rate in RATES:
        gp = start(method, data, sizes, spread)
        _, loss = follow(
            learner(method, sizes, rate, spread), gp, data, sizes, min(TRIAL_STEPS, sizes.steps), None
        )
        losses[rate] = loss if np.isfinite(loss) else np.inf
    best = min(losses, key=lambda rate: losses[rate])
    return best, {str(rate): float(loss) for rate, loss in losses.items()}


def scores(gp: SparseGP, data: Data, rows: int | None = None) -> dict[str, float]:
    """Return nMSE, and the bound: mean expected log likelihood of test rows − KL/N_train.

    N_train is the number of all training rows, also for models of some of them.
    """
    with jax.enable_x64(True):
        process = _process(gp)
        X, y = data.X_test[:rows], data.y_test[:rows]
        mean, variance = (np.concatenate(part) for part in zip(*_moments(process, X), strict=True))
        s2, kl = float(gp.noise_variance), float(_divergence(process))
    return scores_of(mean, variance, s2, y, kl, len(data.y))


def scores_of(
    mean: np.ndarray, variance: np.ndarray, noise: float, y: np.ndarray, divergence: float, n_train: int
) -> dict[str, float]:
    """Return nMSE, the bound per training row, and the NLPD of observations."""
    square, total = (y - mean) ** 2, variance + noise
    expected = -0.5 * (np.log(2 * np.pi * noise) + (square + variance) / noise)
    nlpd = 0.5 * (np.log(2 * np.pi * total) + square / total)
    return {
        "nmse": float(np.mean(square) / np.var(y)),
        "bound": float(np.mean(expected)) - divergence / n_train,
        "nlpd": float(np.mean(nlpd)),
        "noise_variance": noise,
    }


def _moments(process: Any, X: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    found = []
    for begin in range(0, len(X), TEST_ROWS):
        part = X[begin : begin + TEST_ROWS]
        block = np.resize(part, (min(TEST_ROWS, max(len(X), 1)), X.shape[1]))
        mean, variance = _evaluate(process, jnp.asarray(block))
        n = len(part)
        found.append((np.asarray(mean, np.float64)[:n, 0], np.asarray(variance, np.float64)[:n, 0]))
    return found


@jax.jit
def _process(gp: SparseGP) -> Any:
    return gp.process()


@jax.jit
def _evaluate(process: Any, X: Any) -> Any:
    return process.moments(X)


@jax.jit
def _divergence(process: Any) -> Any:
    return process.divergence()


def run_stochastic(method: str, data: Data, sizes: Sizes, spread: bool) -> dict[str, Any]:
    """Run a tuned method. Return its final scores, and a curve on some test rows."""
    rate, losses = tuned(method, data, sizes, spread)
    curve: list[list[float]] = []

    def look(gp: SparseGP, step: int, seconds: float) -> None:
        found = scores(gp, data, TEST_ROWS)
        curve.append([step, round(seconds, 2), round(found["nmse"], 5), round(found["bound"], 5)])

    looks = 5 if spread else 50  # the divergence is slow for functions with separate widths
    gp = start(method, data, sizes, spread)
    gp, loss = follow(learner(method, sizes, rate, spread), gp, data, sizes, sizes.steps, look, looks)
    more = {"rate": rate, "trials": losses, "loss": loss, "seconds": curve[-1][1], "curve": curve}
    return scores(gp, data) | more


STEPS, QUICK_STEPS, JITTER = 100, 5, 1e-8


def run_batch(method: str, data: Data, sizes: Sizes) -> dict[str, Any]:
    """Return the scores of VSGPR or GPR."""
    return vsgpr(data, sizes) if method == "vsgpr" else gpr(data, sizes)


def vsgpr(data: Data, sizes: Sizes) -> dict[str, Any]:
    """Fit the collapsed bound of M inducing points to some rows."""
    begun, n = time.perf_counter(), min(sizes.vsgpr_rows, len(data.y))
    kernel, noise = median_kernel(data.X, data.y)
    gp = SparseGP(kernel, InducingPoints.of(jnp.asarray(data.X[: sizes.vsgpr]), jitter=JITTER), noise)
    rows = MemorySource(data.X[:n], data.y[:n], dtype=jnp.float64)
    with jax.enable_x64(True):
        found: Any = fit(SGPR(epochs=_steps(sizes)), cast(gp, jnp.float64), rows, key=jax.random.key(0))
    more = {"steps": found.n_iter, "loss": found.loss, "seconds": time.perf_counter() - begun}
    return scores(found.gp, data) | more


def gpr(data: Data, sizes: Sizes) -> dict[str, Any]:
    """Fit an exact GP to few rows."""
    begun, n = time.perf_counter(), min(sizes.gpr_rows, len(data.y))
    X, y = data.X[:n], data.y[:n]
    kernel, noise = median_kernel(data.X, data.y)
    found: Any = fit(
        FullBatch(epochs=_steps(sizes)), KernelGP(kernel, noise), MemorySource(X, y), key=jax.random.key(0)
    )
    with jax.enable_x64(True):
        kernel, s2 = found.gp.kernel, float(found.gp.noise_variance)
        K, across = (
            np.asarray(kernel.matrix(jnp.asarray(Z), jnp.asarray(X)), np.float64) for Z in (X, data.X_test)
        )
    solved = np.linalg.solve(K + s2 * np.eye(n), np.column_stack([y, across.T]))
    mean = across @ solved[:, 0]
    variance = np.maximum(float(kernel.variance) - np.sum(across * solved[:, 1:].T, axis=1), 0)
    a = solved[:, 0]
    trace = n - s2 * np.trace(np.linalg.inv(K + s2 * np.eye(n)))
    divergence = 0.5 * (a @ K @ a + np.linalg.slogdet(np.eye(n) + K / s2)[1] - trace)
    scored = scores_of(mean, variance, s2, data.y_test, float(divergence), len(data.y))
    return scored | {"loss": found.loss, "rows": n, "seconds": time.perf_counter() - begun}


def _steps(sizes: Sizes) -> int:
    return STEPS if sizes.steps > QUICK.steps else QUICK_STEPS
