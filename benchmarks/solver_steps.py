"""`solver_steps`: a step of stochastic dual descent against a plain un-tiled one, on data of the size of pol and protein.

The rival is the published rule as one would write it in JAX: the kernel block k(x_I, X) in one piece by matrix products, dense updates
of the velocity, the iterate and its average. Ours are the same rule with updates that touch only the batch's rows, and the default
block steps, without and with K kept in memory. All float32, B = 512, Matérn-3/2 ARD; steps scanned in one compiled loop. `bound` is a
loop of the step's matrix products and exponentials alone, untiled.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from measuring.timing import alternate, per_step
from stochgp import kernels, solvers
from stochgp.operators import KernelOperator

KEYS = ("data", "columns")
SIZES = {"pol": (13_500, 26), "protein": (41_157, 9)}
COLUMNS = (1, 65)
BATCH, MOMENTUM, NOISE = 512, 0.9, 0.01


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per data size and number of right-hand sides."""
    sizes = {"small": (2_000, 8)} if quick else SIZES
    rows = []
    for name, (N, D) in sizes.items():
        for n_columns in COLUMNS:
            report(f"{name}, {n_columns} right-hand sides")
            rows.append(_row(name, N, D, n_columns, quick))
    return {"settings": {"batch": BATCH, "kernel": "Matern32", "dtype": "float32"}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Medians in milliseconds, and ratios to the plain step."""
    names = list(result["rows"][0]["sides"])
    headings = [
        "data",
        "columns",
        *(f"{name} ms" for name in names),
        *(f"{name} ratio" for name in names[1:]),
    ]
    lines = []
    for row in result["rows"]:
        medians = [row["sides"].get(name, {}).get("median_us", float("nan")) / 1e3 for name in names]
        ratios = [round(median / medians[0], 3) for median in medians[1:]]
        lines.append([row["data"], row["columns"], *(round(median, 2) for median in medians), *ratios])
    return headings, lines


def _row(name: str, N: int, D: int, n_columns: int, quick: bool) -> dict:
    generator = np.random.default_rng(0)
    X = jnp.asarray(generator.normal(size=(N, D)), jnp.float32)
    b = jnp.asarray(generator.normal(size=(N, n_columns)), jnp.float32)
    kernel = kernels.Matern32(np.full(D, D**0.5, np.float32))
    n_steps = 16 if quick else 64 if N < 20_000 else 24
    sides = {"plain": _plain(kernel, X, b, n_steps)}
    published = solvers.SDD(step_size=1.0 / N, momentum=MOMENTUM, averaging=1e-3)
    sides["published rule"] = _ours(published, kernel, X, b, n_steps, 0)
    sides["blocks"] = _ours(solvers.SDD(), kernel, X, b, n_steps, 0)
    if 4 * N**2 < 2e9:
        sides["published rule, K kept"] = _ours(published, kernel, X, b, n_steps, N)
        sides["blocks, K kept"] = _ours(solvers.SDD(), kernel, X, b, n_steps, N)
    sides["bound"] = _bound(X, b, n_steps)
    seconds = alternate(sides, blocks=2 if quick else 4, epochs=2)
    return {
        "data": name,
        "columns": n_columns,
        "sides": {side: per_step(s, n_steps) for side, s in seconds.items()},
    }


def _plain(kernel: Any, X: jax.Array, b: jax.Array, n_steps: int) -> Callable[[], object]:
    N, scale = len(X), X.shape[1] ** 0.5

    def block(x: jax.Array) -> jax.Array:
        z, Z = x / scale, X / scale
        squares = jnp.sum(z**2, 1)[:, None] + jnp.sum(Z**2, 1)[None, :] - 2 * z @ Z.T
        r = jnp.sqrt(3 * jnp.maximum(squares, 0))
        return (1 + r) * jnp.exp(-r)

    def step(state: tuple, rows: jax.Array) -> tuple[tuple, None]:
        alpha, velocity, average = state
        ahead = alpha + MOMENTUM * velocity
        error = block(X[rows]) @ ahead + NOISE * ahead[rows] - b[rows]
        gradient = jnp.zeros_like(alpha).at[rows].add(N / BATCH * error)
        velocity = MOMENTUM * velocity - (1.0 / N) * gradient
        alpha = alpha + velocity
        return (alpha, velocity, 1e-3 * alpha + (1 - 1e-3) * average), None

    steps = jax.jit(lambda state, rows: jax.lax.scan(step, state, rows)[0])
    rows = jnp.asarray(np.random.default_rng(0).integers(0, N, (n_steps, BATCH)))
    state = (jnp.zeros_like(b),) * 3
    return lambda: jax.block_until_ready(steps(state, rows))


def _ours(
    solver: Any, kernel: Any, X: jax.Array, b: jax.Array, n_steps: int, keep: int
) -> Callable[[], object]:
    operator = KernelOperator.of(kernel, X, NOISE, keep_rows=keep)
    arranged = solver.arrange(operator, key=jax.random.key(0))
    return _steps(solver, arranged, b, n_steps)


def _steps(solver: Any, arranged: Any, b: jax.Array, n_steps: int) -> Callable[[], object]:
    b = arranged.operator.pad(b)
    group = solver.steps_per_group
    n_groups = max(1, n_steps // group)
    batches = solver.batches(arranged.operator.size, 0, n_steps, (0,))
    batches = jnp.asarray(batches).reshape(n_groups, n_steps // n_groups, *batches.shape[1:])
    state = solver.init(arranged, b, None)

    @jax.jit
    def steps(arrays: Any, state: Any, batches: jax.Array) -> Any:
        b, operator, extra = arrays
        here = arranged._replace(operator=operator, extra=extra)

        def group(state: Any, batches: jax.Array) -> tuple[Any, None]:
            state = jax.lax.scan(lambda s, batch: (solver.step(here, b, s, batch)[0], None), state, batches)[
                0
            ]
            return solver.regroup(state), None

        return jax.lax.scan(group, state, batches)[0]

    arrays = (b, arranged.operator, arranged.extra)
    return lambda: jax.block_until_ready(steps(arrays, state, batches))


def _bound(X: jax.Array, b: jax.Array, n_steps: int) -> Callable[[], object]:
    """The products of a step, with the coordinates and with the right-hand sides, and its exponentials."""

    def step(total: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
        inner = X[rows] @ X.T
        return total + jnp.exp(-inner) @ b, None

    steps = jax.jit(lambda total, rows: jax.lax.scan(step, total, rows)[0])
    rows = jnp.asarray(np.random.default_rng(0).integers(0, len(X), (n_steps, BATCH)))
    total = jnp.zeros((BATCH, b.shape[1]), b.dtype)
    return lambda: jax.block_until_ready(steps(total, rows))
