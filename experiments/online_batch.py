"""The batch baselines of `online`: VSGPR (Titsias 2009) and exact GPs on some of the rows, by nonlinear conjugate gradients and L-BFGS."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

from experiments import online
from stochgp.data.streams import DeviceRows, Rows
from stochgp.learners import FullBatch, fit
from stochgp.models import KernelGP, SparseGP
from stochgp.numerics.precision import matmul
from stochgp.objectives.elbo import sites
from stochgp.parameters import partition
from stochgp.variational import InducingPoints, optimum

CG_STEPS, QUICK_CG_STEPS, GPR_STEPS = 100, 5, 100


def run(method: str, data: online.Data, sizes: online.Sizes) -> dict[str, Any]:
    """Scores of one of them."""
    return vsgpr(data, sizes) if method == "vsgpr" else gpr(data, sizes)


def vsgpr(data: online.Data, sizes: online.Sizes) -> dict[str, Any]:
    """The collapsed bound of M inducing points on some rows, by nonlinear conjugate gradients; q at its optimum is then scored."""
    begun, n = time.perf_counter(), min(sizes.vsgpr_rows, len(data.y))
    kernel, noise = online.median_kernel(data.X, data.y)
    gp = SparseGP(kernel, InducingPoints.of(jnp.asarray(data.X[: sizes.vsgpr])), noise)
    rows = data.source.take(np.arange(n))
    trainable, rest = _without_q(gp)
    start, back = ravel_pytree(trainable)
    value = jax.jit(jax.value_and_grad(lambda v: -collapsed(eqx.combine(back(v), rest), rows) / n))

    def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
        found, slope = value(jnp.asarray(vector, jnp.float32))
        return (float(found), np.asarray(slope, np.float64)) if np.isfinite(found) else (1e10, 0 * vector)

    steps = CG_STEPS if sizes.steps > online.QUICK.steps else QUICK_CG_STEPS
    first = np.asarray(start, np.float64)
    done = scipy.optimize.minimize(loss, first, jac=True, method="CG", options={"maxiter": steps})
    gp = eqx.combine(back(jnp.asarray(done.x, jnp.float32)), rest)
    with jax.enable_x64(True):
        gp = _at_optimum(gp, rows)
    more = {"steps": int(done.nit), "loss": float(done.fun), "seconds": time.perf_counter() - begun}
    return online.scores(gp, data._replace(y=data.y[:n])) | more


def gpr(data: online.Data, sizes: online.Sizes) -> dict[str, Any]:
    """An exact GP on few rows; its bound is that of all training rows, as the paper's table has it."""
    begun, n = time.perf_counter(), min(sizes.gpr_rows, len(data.y))
    X, y = data.X[:n], data.y[:n]
    kernel, noise = online.median_kernel(data.X, data.y)
    steps = GPR_STEPS if sizes.steps > online.QUICK.steps else QUICK_CG_STEPS
    found = fit(FullBatch(epochs=steps), KernelGP(kernel, noise), DeviceRows(X, y), key=jax.random.key(0))
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
    scores = online.scores_of(mean, variance, s2, data.y_test, float(divergence), n)
    return scores | {"loss": found.loss, "rows": n, "seconds": time.perf_counter() - begun}


def collapsed(gp: SparseGP, rows: Rows) -> Any:
    """log N(y; 0, WᵀW + σ²I) − tr(K − WᵀW)/(2σ²)."""
    process: Any = gp.process()
    W, s2, n = process.whitened(rows.X), gp.noise_variance.value, rows.y.shape[0]
    A = jnp.eye(W.shape[0], dtype=W.dtype) + matmul(W, W.T) / s2
    C = jnp.linalg.cholesky(A)
    half = jax.scipy.linalg.solve_triangular(C, matmul(W, rows.y), lower=True) / s2
    square = jnp.sum(rows.y**2) / s2 - jnp.sum(half**2)
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(C))) + n * jnp.log(2 * jnp.pi * s2)
    unexplained = jnp.sum(process.kernel.diag(rows.X)) - jnp.sum(W**2)
    return -0.5 * (square + log_determinant + unexplained / s2)


@eqx.filter_jit
def _at_optimum(gp: SparseGP, rows: Rows) -> SparseGP:
    """With the best q for these rows."""
    process: Any = gp.process()
    W = process.whitened(rows.X)
    best = optimum(W, *sites(gp, rows, *process.moments_of(W, process.kernel.diag(rows.X))))
    return eqx.tree_at(lambda g: g.approximation, gp, gp.approximation.at(best))


def _without_q(gp: SparseGP) -> tuple[SparseGP, SparseGP]:
    """(Kernel, noise and inducing points, the rest)."""
    trainable, rest = partition(gp)
    where = lambda g: (g.approximation.mean, g.approximation.root)
    q = where(trainable)
    none = eqx.tree_at(where, trainable, (None, None))
    return none, eqx.tree_at(where, rest, q, is_leaf=lambda x: x is None)
