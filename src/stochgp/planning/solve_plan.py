"""How a kernel solve is done, and what `plan_` says of it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from stochgp.planning.devices import Shared
from stochgp.solvers import AbstractSolver


class SolvePlan(NamedTuple):
    """How (K + Σ) α = b is solved, and what that is expected to cost.

    The posterior depends on `solver`, `tile`, `keep_rows`, `n_samples`, `variance`, `n_neighbours` and `dtype`, on nothing else here but, by rounding
    and by a preconditioner without neighbours, on the way in which devices share it.
    """

    solver: AbstractSolver
    tile: int  # columns of a tile, for `KernelOperator.of`
    keep_rows: int  # rows of K to keep, for `KernelOperator.of`
    n_samples: int  # function samples solved with the mean
    variance: str  # "exact" | "samples" | "none"
    dtype: str  # of the solve
    seconds: float  # by typical costs, from right-hand sides to predictions, compilation included
    need: int  # bytes on top of what was in use
    reason: str
    alternatives: dict[str, float | None]  # solver → its seconds; None = does not fit
    shared: Shared | None = None  # None = no devices were given
    n_neighbours: int = 0  # nearest rows that variances from samples begin with

    @property
    def way(self) -> str | None:
        """In which devices divide products with K; None = one solves."""
        return None if self.shared is None else self.shared.way

    @property
    def variance_error(self) -> float:
        """The expected relative standard error of a variance: that where the rows say much of f."""
        if self.variance == "exact":
            return 0.0
        return math.sqrt(2 / self.n_samples) if self.n_samples else 1.0

    def record(self, record: Callable[[str, Any, str], None]) -> None:
        """Record the decisions (`FitContext.record`)."""
        record("solver", name_of(self.solver), self.reason)
        record("variance", self.variance, _why_variance(self))
        if self.shared is not None:
            entry = {"count": self.shared.count, "solve": self.shared.way or "one device"}
            record("devices", entry, self.shared.why)


def name_of(solver: AbstractSolver) -> str:
    """The solver's class, as in `stochgp.solvers`; with its module for one of the user's own."""
    kind = type(solver)
    known = kind.__module__.startswith("stochgp.")
    return kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"


def variance_by(solver: AbstractSolver, n_samples: int) -> str:
    """Where variances come from."""
    return "exact" if solver.exact_variances else "samples" if n_samples else "none"


def _why_variance(plan: SolvePlan) -> str:
    match plan.variance:
        case "exact":
            return "from the Cholesky factor; expected relative error 0"
        case "samples":
            return f"from {plan.n_samples} samples; expected relative error at most {plan.variance_error:.3g}"
    return "no samples were asked for"
