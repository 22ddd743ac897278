"""`solver_systems`: seconds of solvers to a relative residual of 1e-4, with little noise.

Targets are formulas of 20,000 random rows; each solver solves for the mean and 16 pathwise samples. λ is the
noise variance divided by the kernel variance. Each run is a process with at most 60 s of solving (CG: 180 s).
`residual` is the largest over the 17 columns. `rmse` is that of the mean on 2,000 new rows, and `nlpd` that
of noisy targets. Other packages (`solver_rivals`) run on two systems: GPyTorch, HiGP, PyTorch versions of
published solvers, EigenPro for the mean, local regressions, and xRFM.
"""

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from measuring import store
from measuring.tables import table
from stochgp import kernels, solvers
from stochgp.budget import Budget
from stochgp.operators import KernelOperator
from stochgp.priors import prior_functions
from stochgp.solvers.base import plannable
from stochgp.solvers.choice import choose_solver, keeps_matrix

N, N_TEST, SAMPLES, TOLERANCE, SECONDS = 20_000, 2_000, 16, 1e-4, 60.0
LONGER: dict[str, float] = dict.fromkeys(
    ("cg", "cg nystrom"), 180.0
)  # so that it is seen whether a factor takes half as long
QUICK_ROWS = 4_000
GPYTORCH, LOCAL, XRFM = "gpytorch cg", "128 nearest rows", "xrfm"
SIDES = ("cholesky", "cg nystrom", "cg", "sdd")
RIVALS = (
    GPYTORCH, "torch alternating projections", "torch sketch and project", "torch sdd", "higp", "eigenpro", LOCAL, XRFM,
)  # fmt: skip
WITH_RIVALS = ("borehole matern52 1e-6", "friedman matern32 1e-2")


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    systems, rows = (WITH_RIVALS[:1], QUICK_ROWS) if quick else (SYSTEMS, N)
    sides = {system: (*SIDES, *RIVALS) if system in WITH_RIVALS else SIDES for system in systems}
    return [{"system": system, "side": side, "rows": rows} for system in systems for side in sides[system]]


def page(records: list[store.Record]) -> list[str]:
    order = lambda row: (list(SYSTEMS).index(row["system"]), (*SIDES, *RIVALS).index(row["side"]))
    shown = lambda value, how: "" if value is None else format(value, how)
    rows = [
        [r["system"], r["side"], round(r["seconds"], 1), shown(r["epochs"], ".0f"), shown(r["residual"], ".1e"), f"{r['rmse']:.1e}"]
        + ["" if r["nlpd"] is None else round(r["nlpd"], 2)]
        for r in sorted(store.rows(records), key=order)
    ]  # fmt: skip
    return [table("system | side | seconds | epochs | residual | RMSE | NLPD", rows)]


def _friedman(X):
    """Return Friedman's first function of ten inputs, five of which have an effect."""
    x = np.pi * X[:, 0] * X[:, 1]
    return 10 * np.sin(x) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]


def _borehole_like(X):
    """Return ratios and logarithms of four inputs."""
    return np.log1p(3 * X[:, 0]) * (1 + X[:, 1]) / (0.2 + X[:, 2]) + np.sin(4 * X[:, 3])


def _energies(X):
    """Return sums of Morse potentials between six atoms near the corners of an octahedron."""
    r = 1 / X
    return np.sum((1 - np.exp(-1.5 * (r - 1.5))) ** 2, axis=1)


def _inverse_distances(generator, n):
    corners = np.concatenate([np.eye(3), -np.eye(3)])
    atoms = corners + 0.15 * generator.standard_normal((n, 6, 3))
    i, j = np.triu_indices(6, 1)
    return 1 / np.linalg.norm(atoms[:, i] - atoms[:, j], axis=2)


def _uniform(n_inputs):
    return lambda generator, n: generator.uniform(size=(n, n_inputs))


# Rows, targets, kernel, lengthscale in standard deviations of each input, and λ.
SYSTEMS = {
    "friedman matern52 1e-6": (_uniform(10), _friedman, "Matern52", 4.0, 1e-6),
    "borehole matern52 1e-6": (_uniform(4), _borehole_like, "Matern52", 2.0, 1e-6),
    "borehole rbf 1e-6": (_uniform(4), _borehole_like, "RBF", 1.0, 1e-6),
    "borehole rbf 1e-10": (_uniform(4), _borehole_like, "RBF", 1.0, 1e-10),
    "energies matern52 1e-8": (_inverse_distances, _energies, "Matern52", 5.0, 1e-8),
    "friedman matern32 1e-2": (_uniform(10), _friedman, "Matern32", 4.0, 1e-2),
}


def _problem(system: str, n_rows: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return inputs, noiseless values and noisy targets; the new rows come last."""
    make, target, _, _, share = SYSTEMS[system]
    raw = make(generator, n_rows + N_TEST)
    X, y = (raw - raw.mean(0)) / raw.std(0), target(raw)
    y = (y - y.mean()) / y.std()
    return X, y, y + math.sqrt(share) * generator.standard_normal(len(y))


def run(cell: store.Cell) -> dict[str, Any]:
    system, side, n_rows = cell["system"], cell["side"], cell["rows"]
    kernel_name, lengthscale, share = SYSTEMS[system][2:]
    generator = np.random.default_rng(0)
    X, y, noisy = _problem(system, n_rows, generator)
    if side in (LOCAL, XRFM):
        return _predicted(side, X, y, noisy, n_rows, (kernel_name, lengthscale, share))
    with jax.enable_x64(True):
        kernel = getattr(kernels, kernel_name)(
            lengthscale=jnp.asarray(lengthscale), variance=jnp.asarray(1.0)
        )
        rows, new = jnp.asarray(X[:n_rows]), jnp.asarray(X[n_rows:])
        plain = KernelOperator.of(kernel, rows, share)
        budget, settings = Budget.of(None), {"dtype": "float64", "noise_ratio": share}
        solver, _, need, _ = choose_solver(
            n_rows, SAMPLES, X.shape[1], budget, solver=_solver(side), **settings
        )
        keep = side not in RIVALS and keeps_matrix(plain, plannable(budget) - need)
        operator = KernelOperator.of(kernel, rows, share, keep=keep)
        prior = prior_functions(kernel, X.shape[1], SAMPLES, key=jax.random.key(1), dtype=jnp.float64)
        draws = np.asarray(prior(rows)) + math.sqrt(share) * generator.standard_normal((n_rows, SAMPLES))
        b = np.concatenate([noisy[:n_rows, None], draws], axis=1)
        times = lambda rows, W: np.asarray(operator.times(rows, operator.pad(jnp.asarray(W))))
        if side in RIVALS:
            from benchmarks.solver_rivals import solved

            W, found = solved(side, X[:n_rows], b, kernel_name, lengthscale, share, (TOLERANCE, SECONDS))
            difference = b[:, : W.shape[1]] - times(operator.rows, W)[:n_rows] - share * W
            norms = np.linalg.norm(b, axis=0)[: W.shape[1]]
            found["residual"] = float(np.max(np.linalg.norm(difference, axis=0) / norms))
        else:
            W, found = _by_ours(operator, b, solver, LONGER.get(side, SECONDS))
        at_new = times(operator.prepare(new), W)[:N_TEST]
        apart = np.asarray(prior(new)) - at_new[:, 1:] if W.shape[1] > 1 else None
        variance = None if apart is None else np.mean(apart**2, axis=1) + share
    return found | _scores(at_new[:, 0], variance, y[n_rows:], noisy[n_rows:])


def _scores(
    mean: np.ndarray, variance: np.ndarray | None, f: np.ndarray, y: np.ndarray
) -> dict[str, float | None]:
    """Return the RMSE of the mean, and the NLPD, or None without variances."""
    nlpd = None
    if variance is not None:
        nlpd = float(0.5 * np.mean(np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance))
    return {"rmse": float(np.sqrt(np.mean((f - mean) ** 2))), "nlpd": nlpd}


def _predicted(
    side: str, X: np.ndarray, y: np.ndarray, noisy: np.ndarray, n_rows: int, kernel: tuple[str, float, float]
) -> dict[str, Any]:
    """Return predictions of methods that solve no system of all rows."""
    name, length, share = kernel
    if side == LOCAL:
        from benchmarks.solver_rivals import locally

        mean, variance, seconds = locally(X[:n_rows], noisy[:n_rows], X[n_rows:], name, length, share)
        variance = variance + share
    else:
        from benchmarks.arena_rivals import RIVALS as PREDICTORS

        begun = time.perf_counter()
        predict = PREDICTORS[XRFM].fit(X[:n_rows].astype(np.float32), noisy[:n_rows], {})
        mean, variance = predict(X[n_rows:].astype(np.float32)).mean, None
        seconds = time.perf_counter() - begun
    known = {"seconds": seconds, "epochs": None, "residual": None}
    return known | _scores(mean, variance, y[n_rows:], noisy[n_rows:])


def _solver(side: str) -> Any:
    """Return our solver of that name; "auto" for other packages."""
    ours = {
        "cholesky": solvers.Cholesky(), "cg": solvers.CG(epochs=5000), "cg nystrom": solvers.CG(epochs=5000, neighbours=0),
        "sdd": solvers.SDD(epochs=5000),
    }  # fmt: skip
    return ours.get(side, "auto")


def _by_ours(operator: Any, b: np.ndarray, solver: Any, limit: float) -> tuple[np.ndarray, dict]:
    begun = time.perf_counter()
    done = solvers.solve(operator, b, solver, key=jax.random.key(0), tolerance=TOLERANCE, time_limit=limit)
    seconds, residual = time.perf_counter() - begun, float(done.residual_norms.max())
    return np.asarray(done.value), {"seconds": seconds, "epochs": done.epochs, "residual": residual}
