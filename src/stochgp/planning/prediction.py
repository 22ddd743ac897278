"""Row chunks of predictions, samples and covariances, and what they need of memory."""

from typing import NamedTuple

from stochgp.budget import Budget
from stochgp.planning.memory import MARGIN, Layout, Problem, product_bytes
from stochgp.priors import BLOCK as PRIOR_BLOCK

ROWS = 512  # of one evaluation
FEATURES = 2000  # of the prior's draws
COMPILER_BYTES = 60_000_000  # of compiling one more evaluation


class PredictionPlan(NamedTuple):
    """`rows` test rows at a time; `need` bytes on top of what is in use, results included."""

    rows: int
    need: int


def plan_prediction(
    problem: Problem, budget: Budget, n_test: int, layout: Layout, variance: str = "none"
) -> PredictionPlan:
    """512 rows at a time, or as many as fit. `variance` as in `SolvePlan`.

    Raises ValueError, with both numbers, where not even one row at a time fits.
    """
    fixed = COMPILER_BYTES + result_bytes(n_test, variance)
    rows = ROWS
    while rows > 1 and fixed + chunk_bytes(problem, rows, layout, variance) > budget.free():
        rows //= 2
    need = fixed + chunk_bytes(problem, rows, layout, variance)
    budget.require(need, f"a prediction for {n_test} rows")
    return PredictionPlan(rows, need)


def require_covariance(problem: Problem, budget: Budget, n_test: int, layout: Layout, variance: str) -> int:
    """Bytes of a covariance of `n_test` rows. Raises ValueError, with both numbers, where they do not fit."""
    need = covariance_bytes(problem, n_test, layout, variance)
    budget.require(need, f"the covariance of {n_test} rows")
    return need


def require_samples(problem: Problem, budget: Budget, n_test: int, n_samples: int, layout: Layout) -> int:
    """Bytes of `n_samples` functions at `n_test` rows. Raises ValueError, with both numbers, where they do not fit."""
    drawn = problem._replace(n_samples=n_samples)
    need = COMPILER_BYTES + 16 * n_test * n_samples + chunk_bytes(drawn, ROWS, layout, "samples")
    budget.require(need, f"{n_samples} functions at {n_test} rows")
    return need


def result_bytes(n_test: int, variance: str) -> int:
    """Mean and standard deviation in float64, and what they are made of."""
    return 8 * n_test * (4 if variance == "none" else 8)


def covariance_bytes(problem: Problem, n_test: int, layout: Layout, variance: str) -> int:
    """Four squares of the test rows, and six blocks of test by training rows, in float64."""
    blocks = 8 * n_test * (4 * n_test + 6 * problem.n_rows)
    return COMPILER_BYTES + int(MARGIN * blocks) + chunk_bytes(problem, ROWS, layout, variance)


def chunk_bytes(problem: Problem, rows: int, layout: Layout, variance: str) -> int:
    """What one chunk of rows takes."""
    working = product_bytes(problem, rows, layout) + 4 * rows * problem.row_bytes
    if variance == "exact":
        working += 3 * problem.itemsize * rows * problem.n_rows
    if variance == "samples":
        features = 3 * min(rows, PRIOR_BLOCK) * FEATURES
        working += problem.itemsize * (features + 4 * rows * problem.n_columns)
    return int(MARGIN * working)
