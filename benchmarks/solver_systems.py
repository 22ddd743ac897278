"""`solver_systems`: seconds of every solver to a relative residual of 1e-4, for the mean and 16 pathwise samples, of systems that have hardly any noise.

Formulas of 20,000 random rows, kernels with stated hyperparameters, λ the noise variance over that of the kernel. Products in float64 and no rows of K
kept, so that all solvers do the same work; Cholesky has K whole. Each run is in a process of its own, of at most 600 s. `residual` is the largest of
the 17 columns, measured on all rows; `rmse` is that of the mean at 2,000 new rows without noise, in units of the spread of the targets.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from measuring.places import ROOT

KEYS = ("system", "side")
N, N_TEST, SAMPLES, TOLERANCE, SECONDS = 20_000, 2_000, 16, 1e-4, 600.0
SIDES = ("cholesky", "cg", "cg nystrom", "sdd", "sdd 2048", "adasap", "adasap 2048")


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per system and side."""
    rows = []
    for system in list(SYSTEMS)[:1] if quick else SYSTEMS:
        for side in SIDES[1:3] if quick else SIDES:
            command = [
                sys.executable,
                "-m",
                "benchmarks.solver_systems",
                system,
                side,
                str(2_000 if quick else N),
            ]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
            rows.append(json.loads(found.stdout))
            report(json.dumps(rows[-1]))
    settings = {"rows": N, "samples": SAMPLES, "tolerance": TOLERANCE, "dtype": "float64", "limit": SECONDS}
    return {"settings": settings, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Seconds, residuals and RMSE."""
    headings = ["system", "side", "seconds", "epochs", "residual", "RMSE"]
    return headings, [
        [
            r["system"],
            r["side"],
            round(r["seconds"], 1),
            r["epochs"],
            f"{r['residual']:.1e}",
            f"{r['rmse']:.1e}",
        ]
        for r in result["rows"]
    ]


def _friedman(X):
    """Friedman's first function, of ten inputs of which five matter."""
    x = np.pi * X[:, 0] * X[:, 1]
    return 10 * np.sin(x) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]


def _borehole_like(X):
    """Ratios and logarithms, of four inputs."""
    return np.log1p(3 * X[:, 0]) * (1 + X[:, 1]) / (0.2 + X[:, 2]) + np.sin(4 * X[:, 3])


def _energies(X):
    """Σ of Morse potentials of the distances between six atoms that move by 0.15 around the corners of an octahedron."""
    r = 1 / X
    return np.sum((1 - np.exp(-1.5 * (r - 1.5))) ** 2, axis=1)


def _inverse_distances(generator, n):
    corners = np.concatenate([np.eye(3), -np.eye(3)])
    atoms = corners + 0.15 * generator.standard_normal((n, 6, 3))
    i, j = np.triu_indices(6, 1)
    return 1 / np.linalg.norm(atoms[:, i] - atoms[:, j], axis=2)


def _uniform(n_inputs):
    return lambda generator, n: generator.uniform(size=(n, n_inputs))


# Rows, targets, kernel, lengthscale in standard deviations of each input, λ.
SYSTEMS = {
    "friedman matern52 1e-6": (_uniform(10), _friedman, "Matern52", 4.0, 1e-6),
    "borehole matern52 1e-6": (_uniform(4), _borehole_like, "Matern52", 2.0, 1e-6),
    "borehole rbf 1e-6": (_uniform(4), _borehole_like, "RBF", 1.0, 1e-6),
    "borehole rbf 1e-10": (_uniform(4), _borehole_like, "RBF", 1.0, 1e-10),
    "energies matern52 1e-8": (_inverse_distances, _energies, "Matern52", 5.0, 1e-8),
    "friedman matern32 1e-2": (_uniform(10), _friedman, "Matern32", 4.0, 1e-2),
}


def measure(system: str, side: str, n_rows: int) -> dict:
    """One run in this process."""
    import jax
    import jax.numpy as jnp

    from stochgp import kernels
    from stochgp.operators import KernelOperator
    from stochgp.priors import prior_functions
    from stochgp.solvers import ADASAP, CG, SDD, Cholesky, solve

    solvers = {
        "cholesky": Cholesky(), "cg": CG(epochs=5000), "cg nystrom": CG(epochs=5000, neighbours=0), "sdd": SDD(epochs=5000),
        "sdd 2048": SDD(epochs=5000, batch_size=2048), "adasap": ADASAP(epochs=5000), "adasap 2048": ADASAP(epochs=5000, batch_size=2048),
    }  # fmt: skip
    make, target, kernel_name, lengthscale, share = SYSTEMS[system]
    generator = np.random.default_rng(0)
    raw = make(generator, n_rows + N_TEST)
    X, y = (raw - raw.mean(0)) / raw.std(0), target(raw)
    y = (y - y.mean()) / y.std()
    with jax.enable_x64(True):
        kernel = getattr(kernels, kernel_name)(
            lengthscale=jnp.asarray(lengthscale), variance=jnp.asarray(1.0)
        )
        rows = jnp.asarray(X[:n_rows])
        operator = KernelOperator.of(kernel, rows, share)
        prior = prior_functions(kernel, X.shape[1], SAMPLES, key=jax.random.key(1), dtype=jnp.float64)
        noise = math.sqrt(share) * generator.standard_normal((n_rows, SAMPLES))
        noisy = y[:n_rows] + math.sqrt(share) * generator.standard_normal(n_rows)
        b = np.concatenate([noisy[:, None], np.asarray(prior(rows)) + noise], axis=1)
        found = solve(
            operator, b, solvers[side], key=jax.random.key(0), tolerance=TOLERANCE, time_limit=SECONDS
        )
        mean = operator.times(operator.prepare(jnp.asarray(X[n_rows:])), operator.pad(found.value[:, :1]))
    left = y[n_rows:] - np.asarray(mean)[:N_TEST, 0]
    return {
        "system": system,
        "side": side,
        "seconds": found.seconds,
        "epochs": found.epochs,
        "residual": float(found.residual_norms.max()),
        "converged": bool(found.converged),
        "rmse": float(np.sqrt(np.mean(left**2))),
    }


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])), sys.stdout)
