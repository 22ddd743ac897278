"""Peak bytes of solves and of covariances, beyond what is in use once the training rows are on the device.

The counts hold for arrays alive at the worst moment. A test compares them with measured peaks.
"""

from typing import Any

from stochgp.budget import Budget
from stochgp.kernels import Product, Sum, Warped
from stochgp.operators import BLOCK, default_tile
from stochgp.parameters import value_of

SMALL = 3_000  # rows up to which a direct solve in float64 takes little time
MARGIN = 1.1  # on arrays that are counted
COMPILED_BYTES = 170_000_000  # left behind by compiling a solver and its predictions
DRAWS_BYTES = 30_000_000  # left behind by compiling and running prior draws
FEATURES = 2000  # of the prior's draws
COMPILER_BYTES = 60_000_000  # of compiling one more evaluation
HEADROOM = 0.04  # of the limit, for what is loaded and compiled around the solve
TERM_BYTES = 25_000_000  # of compiled programs and of a tile, for each further term of the kernel


def solve_bytes(
    n_rows: int,
    n_columns: int,
    n_inputs: int,
    itemsize: int,
    *,
    n_arrays: int,
    n_wide: int = 0,
    step_rows: int = BLOCK,
    more: float = 0.0,
    compiled: int = COMPILED_BYTES,
) -> int:
    """Bytes of a solve: compiled programs and, with a margin, the rows, arrays [N, C] and a step.

    Parameters
    ----------
    n_rows, n_columns, n_inputs, itemsize : int
        N, the right-hand sides C, D, and bytes of a number.
    n_arrays, n_wide : int
        Arrays [N, C] in numbers of the operator and in float64.
    step_rows : int
        Rows of K that a step evaluates at once, tile by tile; residuals are measured by 512.
    more, compiled : float, int
        Bytes of other arrays, and of compiled programs.
    """
    tile, rows = min(default_tile(), n_rows), min(max(BLOCK, step_rows), n_rows)
    arrays = n_rows * (itemsize * (n_inputs + 2 + n_arrays * n_columns) + 8 * n_wide * n_columns)
    summed = 8 * rows * (int(itemsize < 8) * tile + 2 * n_columns)  # in float64
    step = 1.2 * itemsize * rows * tile + summed
    draws = DRAWS_BYTES if n_columns > 1 else 0
    return compiled + draws + int(MARGIN * (arrays + step + more))


def plannable(budget: Budget) -> int:
    """What is free but for the headroom."""
    return max(budget.free() - int(HEADROOM * budget.limit), 0)


def n_terms(kernel: Any) -> int:
    """Terms and factors of the kernel: so many numbers a product with K holds for an entry of its tile.

    Compiled products of nine kernels of one to eight terms held 1.00 to 1.02 times as many.
    """
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return n_terms(kernel.left) + n_terms(kernel.right)
    return n_terms(kernel.kernel) if isinstance(kernel, Warped) else 1


def covariance_bytes(n_rows: int, n_test: int) -> int:
    """Four squares of the test rows, and six blocks of test by training rows, in float64."""
    return int(MARGIN * 8 * n_test * (4 * n_test + 6 * n_rows))
