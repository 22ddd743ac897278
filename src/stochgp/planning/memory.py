"""What of the memory limit a solve may take, and how many rows of K fit into what is left of it."""

from stochgp.budget import Budget
from stochgp.solvers import AbstractSolver, Layout, SystemSize
from stochgp.solvers.sizes import padded

HEADROOM = 0.04  # of the limit, for what is loaded and compiled around the solve
KEPT_ROWS = 512  # kept rows come in blocks of so many
SHARE_FOR_KEPT = 0.9  # of what is free: with more the plan leaves rows of K to be evaluated


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
