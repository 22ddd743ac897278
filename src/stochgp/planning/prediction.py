"""What predictions and covariances need of memory: bytes on top of what is in use, results included."""

from stochgp.priors import BLOCK as PRIOR_BLOCK
from stochgp.solvers import Layout, SystemSize
from stochgp.solvers.sizes import MARGIN, product_bytes

ROWS = 512  # of one evaluation
FEATURES = 2000  # of the prior's draws
COMPILER_BYTES = 60_000_000  # of compiling one more evaluation


def result_bytes(n_test: int, variance: str) -> int:
    """Mean and standard deviation in float64, and what they are made of."""
    return 8 * n_test * (4 if variance == "none" else 8)


def covariance_bytes(size: SystemSize, n_test: int, layout: Layout, variance: str) -> int:
    """Four squares of the test rows, and six blocks of test by training rows, in float64."""
    blocks = 8 * n_test * (4 * n_test + 6 * size.n_rows)
    return COMPILER_BYTES + int(MARGIN * blocks) + chunk_bytes(size, ROWS, layout, variance)


def chunk_bytes(size: SystemSize, rows: int, layout: Layout, variance: str) -> int:
    """What one chunk of rows takes. `variance` as in `SolvePlan`."""
    working = product_bytes(size, rows, layout) + 4 * rows * size.row_bytes
    if variance == "exact":
        working += 3 * size.itemsize * rows * size.n_rows
    if variance == "samples":
        features = 3 * min(rows, PRIOR_BLOCK) * FEATURES
        working += size.itemsize * (features + 4 * rows * size.n_columns)
    return int(MARGIN * working)
