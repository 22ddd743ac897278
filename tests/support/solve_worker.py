"""A plan carried out in a process of its own: prints, as JSON, the plan's numbers and the largest memory that the process had.

The argument is JSON: n_rows, n_inputs, n_samples, kernel, solver, and `room`, the memory limit in bytes on top of what the imports and the
data take. With `forced`, what would be refused is carried out by the plan of least memory. `n_features` of each prior function: fewer take less
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
from stochgp.solvers import Cholesky, SystemSize, solve
from stochgp.solvers.choice import SolvePlan, choose_solver
from stochgp.solvers.sizes import workspace_of

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
    probe = _operator(kernel, X)
    size = SystemSize.of(probe, given["n_inputs"], given["n_samples"], NOISE)
    try:
        chosen = choose_solver(size, limited, solver=given["solver"], workspace=workspace_of(kernel))
    except ValueError as error:
        if not given.get("forced"):
            return {"refused": str(error), "limit": limit}
        chosen = of_least_memory(size, given["solver"])
    begun = time.perf_counter()
    carry_out(chosen, kernel, X, y, given.get("n_features", 2000))
    return {
        "limit": limit,
        "need": chosen.need,
        "took": budget.peak_resident() - begun_with,
        "peak": budget.peak_resident(),
        "solver": type(chosen.solver).__name__,
        "seconds": time.perf_counter() - begun,
    }


def of_least_memory(size: SystemSize, solver: str) -> SolvePlan:
    """The plan for the smallest limit under which there is one."""
    low, high = 0, 10**11
    while high - low > 10**6:
        middle = (low + high) // 2
        try:
            choose_solver(size, Budget(budget.in_use() + middle), solver=solver)
            high = middle
        except ValueError:
            low = middle
    return choose_solver(size, Budget(budget.in_use() + high + 10**7), solver=solver)


def carry_out(chosen: SolvePlan, kernel, X, y, n_features: int) -> None:
    """The solve, two epochs of it."""
    operator = _operator(kernel, X, tile=chosen.tile, keep_rows=chosen.keep_rows)
    keys = jax.random.split(jax.random.key(0), 3)
    prior, b = None, y
    if chosen.n_samples:
        prior = prior_functions(kernel, X.shape[1], chosen.n_samples, n_features=n_features, key=keys[0])
        b = jnp.concatenate([y, sample_targets(operator, prior, X, key=keys[1])], axis=1)
        budget.release()
    solver = chosen.solver
    if not isinstance(solver, Cholesky):
        solver = dataclasses.replace(solver, epochs=2, check_every=1)
        found = solve(operator, b, solver, key=keys[2])
    else:
        factor = dataclasses.replace(solver, dtype=chosen.dtype).factorise(operator)
        found = solver.solve(operator, b, 0.01, factor)
    jax.block_until_ready(found.value)


@eqx.filter_jit
def _operator(kernel, X, **layout) -> KernelOperator:
    return KernelOperator.of(kernel, X, NOISE, **layout)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
