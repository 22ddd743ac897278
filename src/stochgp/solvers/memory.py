"""The bytes that solves, predictions and covariances need beyond those in use, results included."""

from typing import Any

from stochgp.budget import Budget
from stochgp.kernels import Product, Sum, Warped
from stochgp.parameters import value_of
from stochgp.solvers.base import AbstractSolver
from stochgp.solvers.sizes import MARGIN, Layout, SystemSize, padded

HEADROOM = 0.04  # of the limit, for what is loaded and compiled around the solve
KEPT_ROWS = 512  # kept rows come in blocks of so many
SHARE_FOR_KEPT = 0.9  # of what is free: with more the plan leaves rows of K to be evaluated


def workspace_of(kernel: Any) -> float:
    """Numbers that a product with K holds for an entry of its tile: one for each term and factor of the kernel.

    Compiled products of nine kernels of one to eight terms held 1.00 to 1.02 times as many.
    """
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return workspace_of(kernel.left) + workspace_of(kernel.right)
    return workspace_of(kernel.kernel) if isinstance(kernel, Warped) else 1.0


def plannable(budget: Budget) -> int:
    """What is free but for the headroom."""
    return max(budget.free() - int(HEADROOM * budget.limit), 0)


def room_for_rows(solver: AbstractSolver, layout: Layout, size: SystemSize, free: int) -> int:
    """How many rows of K fit beside everything else that `solver` needs: all of them, or whole blocks."""
    row_bytes = size.itemsize * padded(size.n_rows, layout.tile)
    block = solver.need_bytes(size, layout._replace(keep_rows=KEPT_ROWS))
    rows = int((SHARE_FOR_KEPT * free - (block - KEPT_ROWS * row_bytes)) // row_bytes)
    P = padded(size.n_rows, layout.tile)
    return P if rows >= P else max(rows // KEPT_ROWS * KEPT_ROWS, 0)


FEATURES = 2000  # of the prior's draws
COMPILER_BYTES = 60_000_000  # of compiling one more evaluation


def covariance_bytes(n_rows: int, n_test: int) -> int:
    """Four squares of the test rows, and six blocks of test by training rows, in float64."""
    return int(MARGIN * 8 * n_test * (4 * n_test + 6 * n_rows))
