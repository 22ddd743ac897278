"""`kernel_products`: entries of K a second in products K V, by the shape of a tile, on JAX's default device.

Matérn-3/2 (RBF for three inputs), float32, Gaussian rows with E‖x‖² = 4: 512 of them against all columns, as a step of SDD takes them, and 16,384.
Tiles are matrices that XLA writes. `one pass` is the library's way on a GPU (`stochgp.operators.fused`), where no matrix is written.
Each side is checked against float64 on 64 rows. `entries_per_second` is the median of five.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from measuring import store
from measuring.tables import table
from stochgp import kernels
from stochgp.operators import GPU_TILE, TILE, KernelOperator

KEYS = ("side", "device")
CHECKED, REPEATS = 64, 5
SIDES = {  # rows of a block, columns of a tile
    f"512 x {TILE:,}": (512, TILE),
    f"512 x {GPU_TILE:,}": (512, GPU_TILE),
    f"16,384 x {TILE:,}": (16_384, TILE),
}
ONE_PASS = {"512, one pass": (512, None), "16,384, one pass": (16_384, None)}


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    shapes = ((3, 1), (3, 17), (8, 1), (8, 17), (26, 1), (26, 17), (26, 65))[: 2 if quick else None]
    rows = 2_048 if quick else 131_072 if jax.default_backend() == "gpu" else 16_384
    return [{"rows": rows, "dtype": "float32", "inputs": D, "columns": S} for D, S in shapes]


def run(cell: store.Cell) -> list[dict]:
    """A row for each side."""
    n_rows, n_inputs = cell["rows"], cell["inputs"]
    generator = np.random.default_rng(0)
    X = (generator.normal(size=(n_rows, n_inputs)) * 2 / n_inputs**0.5).astype(np.float32)
    V = generator.normal(size=(n_rows, cell["columns"])).astype(np.float32)
    kernel = kernels.RBF() if n_inputs == 3 else kernels.Matern32()
    with jax.enable_x64(True):
        wide = [jnp.asarray(part, jnp.float64) for part in (X[:CHECKED], X, V)]
        exact = np.asarray(kernel.matrix(*wide[:2]) @ wide[2])
    found = []
    for side, (n, tile) in (SIDES | (ONE_PASS if jax.default_backend() == "gpu" else {})).items():
        n_block = min(n, n_rows)
        operator = KernelOperator.of(kernel, jnp.asarray(X), 1.0, tile=tile or GPU_TILE)
        if tile is None:
            product = jax.jit(lambda operator, V, n=n_block: operator.times(operator.block(0, n), V))
        else:
            product = jax.jit(
                lambda operator, V, n=n_block: operator.by_tiles(operator.block(0, n), operator.pad(V))
            )
        seconds, first = [], None
        for _ in range(REPEATS + 1):
            begun = time.perf_counter()
            last = jax.block_until_ready(product(operator, jnp.asarray(V)))
            seconds.append(time.perf_counter() - begun)
            first = last if first is None else first
        error = float(np.max(np.abs(np.asarray(first)[:CHECKED] - exact)) / np.max(np.abs(exact)))
        rate = n_block * n_rows / float(np.median(seconds[1:]))
        about = {"side": side, "device": jax.devices()[0].device_kind}
        found.append(about | {"entries_per_second": rate, "error": error, "compile_seconds": seconds[0]})
    return found


def page(records: list[store.Record]) -> list[str]:
    """Entries a second, and the largest error beside the largest product."""
    rows = [
        [r["inputs"], r["columns"], r["side"], f"{r['entries_per_second']:.2e}", f"{r['error']:.0e}", round(r["compile_seconds"], 1)]
        for r in store.rows(records)
    ]  # fmt: skip
    return [table("inputs | columns | side | entries a second | error | compile s", rows)]
