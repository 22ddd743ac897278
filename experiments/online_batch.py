"""The batch baselines of `online`: VSGPR (Titsias 2009) and exact GPs on some of the rows, by L-BFGS.

The paper has conjugate gradients in its place.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import online
from stochgp.data.streams import DeviceRows
from stochgp.learners import SGPR, FullBatch
from stochgp.learning import fit
from stochgp.models import KernelGP, SparseGP
from stochgp.parameters import cast
from stochgp.variational import InducingPoints

STEPS, QUICK_STEPS, JITTER = 100, 5, 1e-8


def run(method: str, data: online.Data, sizes: online.Sizes) -> dict[str, Any]:
    """Scores of one of them."""
    return vsgpr(data, sizes) if method == "vsgpr" else gpr(data, sizes)


def vsgpr(data: online.Data, sizes: online.Sizes) -> dict[str, Any]:
    """The collapsed bound of M inducing points on some rows."""
    begun, n = time.perf_counter(), min(sizes.vsgpr_rows, len(data.y))
    kernel, noise = online.median_kernel(data.X, data.y)
    gp = SparseGP(kernel, InducingPoints.of(jnp.asarray(data.X[: sizes.vsgpr]), jitter=JITTER), noise)
    rows = DeviceRows(data.X[:n], data.y[:n], dtype=jnp.float64)
    with jax.enable_x64(True):
        found = fit(SGPR(epochs=_steps(sizes)), cast(gp, jnp.float64), rows, key=jax.random.key(0))
    more = {"steps": found.n_iter, "loss": found.loss, "seconds": time.perf_counter() - begun}
    return online.scores(found.gp, data) | more


def gpr(data: online.Data, sizes: online.Sizes) -> dict[str, Any]:
    """An exact GP on few rows."""
    begun, n = time.perf_counter(), min(sizes.gpr_rows, len(data.y))
    X, y = data.X[:n], data.y[:n]
    kernel, noise = online.median_kernel(data.X, data.y)
    found = fit(
        FullBatch(epochs=_steps(sizes)), KernelGP(kernel, noise), DeviceRows(X, y), key=jax.random.key(0)
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
    scores = online.scores_of(mean, variance, s2, data.y_test, float(divergence), len(data.y))
    return scores | {"loss": found.loss, "rows": n, "seconds": time.perf_counter() - begun}


def _steps(sizes: online.Sizes) -> int:
    return STEPS if sizes.steps > online.QUICK.steps else QUICK_STEPS
