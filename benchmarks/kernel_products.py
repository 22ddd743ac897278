"""`kernel_products`: entries of K a second in products K V, by the shape of a tile, on the device that JAX takes.

Matérn-3/2 (RBF for three inputs), float32, Gaussian rows with E‖x‖² = 4: 512 of them against all columns, as a step of SDD takes them, and 16,384.
Tiles are matrices that XLA writes. `one pass` is what the library does on a GPU (`stochgp.operators.fused`), where no matrix is written.
`one reduction` is the same by XLA: distances, kernel and sum as one loop for each row, which it fuses; it is for one right-hand side and up to 8 inputs. It takes
parts of 1,024 columns: for 4,096 XLA had not compiled it after 40 s on an H100. Each side is checked against float64 on 64 rows. `entries_per_second` is the
median of five.
"""

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from measuring.timing import timed
from stochgp import kernels
from stochgp.operators import GPU_TILE, TILE, KernelOperator

KEYS = ("inputs", "columns", "side")
SHAPES = ((3, 1), (3, 17), (8, 1), (8, 17), (26, 1), (26, 17), (26, 65))  # inputs, right-hand sides
ROWS = {"cpu": 16_384, "gpu": 131_072}
FEW_ROWS, MANY_ROWS = 512, 16_384  # of a block
SIDES = {
    f"512 x {TILE:,}": (FEW_ROWS, TILE),
    f"512 x {GPU_TILE:,}": (FEW_ROWS, GPU_TILE),
    f"16,384 x {TILE:,}": (MANY_ROWS, TILE),
}
ONE_PASS = {"512, one pass": FEW_ROWS, "16,384, one pass": MANY_ROWS}
REDUCTION, PART, FEW = "one reduction", 1024, (1, 8)  # right-hand sides and inputs at most
CHECKED, REPEATS = 64, 5


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per number of inputs, of right-hand sides, and side."""
    device = jax.devices()[0]
    n_rows = 2_048 if quick else ROWS[device.platform]
    rows = []
    for n_inputs, n_columns in SHAPES[:2] if quick else SHAPES:
        rows += _rows(n_rows, n_inputs, n_columns, report)
    return {"settings": {"rows": n_rows, "dtype": "float32", "device": device.device_kind}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Entries a second, and the largest error beside the largest product."""
    headings = ["inputs", "columns", "side", "entries a second", "error", "compile s"]
    return headings, [
        [r["inputs"], r["columns"], r["side"], f"{r['entries_per_second']:.2e}", f"{r['error']:.0e}", round(r["compile_seconds"], 1)]
        for r in result["rows"]
    ]  # fmt: skip


def _rows(n_rows: int, n_inputs: int, n_columns: int, report: Callable[[str], object]) -> list[dict]:
    generator = np.random.default_rng(0)
    X = (generator.normal(size=(n_rows, n_inputs)) * 2 / n_inputs**0.5).astype(np.float32)
    V = generator.normal(size=(n_rows, n_columns)).astype(np.float32)
    kernel = kernels.RBF() if n_inputs == 3 else kernels.Matern32()
    with jax.enable_x64(True):
        wide = [jnp.asarray(part, jnp.float64) for part in (X[:CHECKED], X, V)]
        exact = np.asarray(kernel.matrix(*wide[:2]) @ wide[2])
    X, V = jnp.asarray(X), jnp.asarray(V)
    found = []
    for side, (n_block, tile) in SIDES.items():
        operator = KernelOperator.of(kernel, X, 1.0, tile=tile)
        n_block = min(n_block, n_rows)
        product = jax.jit(
            lambda operator, V, n=n_block: operator.by_tiles(operator.block(0, n), operator.pad(V))
        )
        found.append(_row(side, functools.partial(product, operator, V), n_block * n_rows, exact))
    for side, n_block in ONE_PASS.items() if jax.default_backend() == "gpu" else ():
        operator = KernelOperator.of(kernel, X, 1.0, tile=GPU_TILE)
        n_block = min(n_block, n_rows)
        product = jax.jit(lambda operator, V, n=n_block: operator.times(operator.block(0, n), V))
        found.append(_row(side, functools.partial(product, operator, V), n_block * n_rows, exact))
    if n_columns <= FEW[0] and n_inputs <= FEW[1]:
        product = jax.jit(lambda X, V: _reduced(kernel, X[:MANY_ROWS], X, V))
        found.append(
            _row(REDUCTION, functools.partial(product, X, V), min(MANY_ROWS, n_rows) * n_rows, exact)
        )
    found = [{"inputs": n_inputs, "columns": n_columns, **row} for row in found]
    for row in found:
        report(str(row))
    return found


def _row(side: str, product: Callable[[], jax.Array], n_entries: int, exact: np.ndarray) -> dict:
    begun = time.perf_counter()
    first = np.asarray(product())
    compiling = time.perf_counter() - begun
    seconds = float(np.median([timed(lambda: jax.block_until_ready(product())) for _ in range(REPEATS)]))
    error = float(np.max(np.abs(first[:CHECKED] - exact)) / np.max(np.abs(exact)))
    return {
        "side": side,
        "entries_per_second": n_entries / seconds,
        "error": error,
        "compile_seconds": compiling,
    }


def _reduced(kernel: kernels.RBF | kernels.Matern32, X: jax.Array, Z: jax.Array, V: jax.Array) -> jax.Array:
    """k(X, Z) V, no matrix written."""

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        z, v = part
        squares = sum(jnp.square(X[:, None, d] - z[None, :, d]) for d in range(X.shape[1]))
        return total + jnp.sum(kernel.profile(squares)[:, :, None] * v, axis=1), None

    parts = jax.tree.map(lambda array: array.reshape(-1, PART, array.shape[1]), (Z, V))
    return jax.lax.scan(add, jnp.zeros((len(X), V.shape[1]), X.dtype), parts)[0]
