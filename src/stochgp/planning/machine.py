"""Seconds of the pieces of kernel solves, measured on this machine."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array

from stochgp.numerics.precision import matmul
from stochgp.operators import TILE, KernelOperator
from stochgp.solvers.sizes import HALF_ORDER, Costs

BLOCK, COLUMNS = 512, 8192  # rows and columns of the measured block, at least
FEW = 16  # right-hand sides from which the cost of one more is measured where there are fewer
ORDER = 1536  # of the measured factorisation and triangular solve
READING = 1.9  # kept rows are copied tile by tile and come from far: against a product with rows that lie ready, one column
RUNS = 4
TYPICAL = Costs(1.8e-9, 1.3e-11, 4e-10, 4e-12, 1e-11, 0.3, 1.0, measured=False)  # two cores of 2023


def calibrate(operator: KernelOperator, n_columns: int, tile: int = TILE) -> Costs:
    """The costs of this operator's kernel with `n_columns` right-hand sides on this machine, in about half a second.

    They are measured on its first columns: those of the tile that is planned for, 8,192 at least.
    """
    n_rows, size = min(BLOCK, operator.size), min(max(COLUMNS, tile), operator.size)
    V = jnp.asarray(np.ones((size, n_columns), operator.dtype))
    begun = time.perf_counter()
    product = jax.jit(lambda operator, V: _product(operator, V, n_rows)).lower(operator, V).compile()
    jax.block_until_ready(product(operator, V))
    first = time.perf_counter() - begun
    whole = seconds_of(lambda: product(operator, V)) / (n_rows * size)
    ready, multiply = _ready_products(V, n_rows)
    evaluate = max(whole - multiply * (n_columns - 1), whole / 5)
    factor, solve = _factorisation(np.dtype(operator.dtype))
    held = getattr(product.memory_analysis(), "temp_size_in_bytes", 0) / V.dtype.itemsize
    return Costs(evaluate, multiply, READING * ready, factor, solve, first, max(held / (n_rows * size), 1.0))


def seconds_of(run: Callable[[], Any]) -> float:
    """The median wall time of four runs, in seconds; a function that compiles is called once before."""
    seconds = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))


def _product(operator: KernelOperator, V: Array, n_rows: int) -> Array:
    """The first rows of K times V, with as many columns as V has."""
    n = V.shape[0]
    rows, noise = jax.tree.map(lambda leaf: leaf[:n], (operator.rows, operator.noise))
    few = KernelOperator(operator.kernel, operator.centre, rows, noise, None, n, n)
    return few.times(operator.block(0, n_rows), V)


def _ready_products(V: Array, n_rows: int) -> tuple[float, float]:
    """Seconds of an entry of a ready block times one column, and times one more."""
    rows = jnp.asarray(np.ones((n_rows, V.shape[0]), V.dtype))
    product = jax.jit(matmul)
    n_columns, seconds = max(V.shape[1], FEW), []
    for n in (1, n_columns):
        columns = jnp.asarray(np.ones((V.shape[0], n), V.dtype))
        jax.block_until_ready(product(rows, columns))
        seconds.append(seconds_of(lambda columns=columns: product(rows, columns)) / rows.size)
    one, many = seconds
    return one, max((many - one) / (n_columns - 1), many / n_columns / 4)


def _factorisation(dtype: np.dtype) -> tuple[float, float]:
    """Seconds of one operation of a large factorisation, and of one product of a large triangular solve."""
    n = ORDER
    potrf, trtrs = scipy.linalg.get_lapack_funcs(("potrf", "trtrs"), dtype=dtype)
    seconds = []
    for _ in range(2):
        A = np.full((n, n), 0.5, dtype)
        A[np.diag_indices(n)] = n
        begun = time.perf_counter()
        potrf(A.T, lower=True, clean=False, overwrite_a=True)
        seconds.append(time.perf_counter() - begun)
    B = np.ones((n, 256), dtype, order="F")
    begun = time.perf_counter()
    trtrs(A.T, B, lower=True, overwrite_b=True)
    solve = (time.perf_counter() - begun) / (n**2 * 256)
    share = n / (n + HALF_ORDER)
    return share * min(seconds) / (n**3 / 3), share * solve
