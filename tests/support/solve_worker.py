"""A solver that is chosen and runs in a process of its own: prints, as JSON, its need and the largest memory that the process had.

The argument is JSON: n_rows, n_inputs, n_samples, kernel, solver, and `room`, the memory limit in bytes on top of what the imports and the
data take. With `forced`, what would be refused is carried out without K in memory. `n_features` of each prior function: fewer take less
time, and less memory of a block only.
"""

import dataclasses
import json
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from stochgp import budget, kernels
from stochgp.budget import Budget
from stochgp.operators import KernelOperator
from stochgp.posteriors import sample_targets
from stochgp.priors import prior_functions
from stochgp.solvers import Cholesky, solve
from stochgp.solvers.base import TERM_BYTES, n_terms, plannable
from stochgp.solvers.choice import choose_solver, keeps_matrix

KERNELS = {
    "rbf": lambda: kernels.RBF(2.0),
    "matern12": lambda: kernels.Matern12(2.0),
    "matern32": lambda: kernels.Matern32(2.0),
    "sum": lambda: kernels.RBF(2.0) + kernels.Matern52(1.0) * kernels.Matern32(3.0),
}
NOISE = 0.05


def main(given: dict) -> dict:
    generator = np.random.default_rng(0)
    X = jnp.asarray(generator.normal(size=(given["n_rows"], given["n_inputs"])), jnp.float32)
    y = jnp.asarray(generator.normal(size=(given["n_rows"], 1)), jnp.float32)
    jax.block_until_ready(X + 1)
    begun_with = budget.resident()
    limit = begun_with + int(given["room"])
    limited = Budget(limit)
    kernel = KERNELS[given["kernel"]]()
    limited = limited.keeping(TERM_BYTES * (n_terms(kernel) - 1))
    sizes = given["n_rows"], given["n_samples"], given["n_inputs"]
    try:
        solver, dtype, need, _ = choose_solver(*sizes, limited, solver=given["solver"], noise_ratio=NOISE)
    except ValueError as error:
        if not given.get("forced"):
            return {"refused": str(error), "limit": limit}
        limited = Budget(10**12)
        solver, dtype, need, _ = choose_solver(*sizes, limited, solver=given["solver"], noise_ratio=NOISE)
        limited = Budget(need)
    begun = time.perf_counter()
    n_samples = 0 if isinstance(solver, Cholesky) else given["n_samples"]
    keep = keeps_matrix(_operator(kernel, X), plannable(limited) - need)
    carry_out(solver, dtype, keep, kernel, X, y, n_samples, given.get("n_features", 2000))
    return {
        "limit": limit,
        "need": need,
        "took": budget.peak_resident() - begun_with,
        "peak": budget.peak_resident(),
        "solver": type(solver).__name__,
        "seconds": time.perf_counter() - begun,
    }


def carry_out(solver, dtype, keep, kernel, X, y, n_samples, n_features) -> None:
    """The solve, two epochs of it."""
    operator = _operator(kernel, X, keep=keep)
    keys = jax.random.split(jax.random.key(0), 3)
    prior, b = None, y
    if n_samples:
        prior = prior_functions(kernel, X.shape[1], n_samples, n_features=n_features, key=keys[0])
        b = jnp.concatenate([y, sample_targets(operator, prior, X, key=keys[1])], axis=1)
        budget.release()
    if not isinstance(solver, Cholesky):
        solver = dataclasses.replace(solver, epochs=2, check_every=1)
        found = solve(operator, b, solver, key=keys[2])
    else:
        with jax.enable_x64(True):
            found = solver.solve(operator.astype(dtype), b, 0.01)
    jax.block_until_ready(found.value)


@eqx.filter_jit
def _operator(kernel, X, **layout) -> KernelOperator:
    return KernelOperator.of(kernel, X, NOISE, **layout)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
