"""The rule that chooses the solver of a kernel GP.

The rule depends on the number of rows, the noise and the memory limit, but never on the clock.
"""

from typing import Any

import numpy as np

from stochgp.budget import Budget, format_bytes
from stochgp.choosing import AS_ASKED
from stochgp.names import lookup
from stochgp.operators import BLOCK, KernelOperator
from stochgp.solvers.base import HEADROOM, AbstractSolver, plannable
from stochgp.solvers.cg import CG
from stochgp.solvers.cholesky import Cholesky
from stochgp.solvers.sdd import SDD

NAMES: dict[str, Any] = {solver.name: solver for solver in (Cholesky(), CG(), SDD())}
MAX_CHOLESKY_ROWS = 20_000
MIN_BLOCK, MAX_BLOCK, ROWS_PER_BLOCK_ROW = 512, 2048, 16  # rows of a block of SDD
SMALL_BLOCKS = SDD(batch_size=64)
SHARE_FOR_KEPT = 0.9  # share of the free memory that K may use

Choice = tuple[AbstractSolver, str, int, str]
"""A solver, the dtype of its linear systems, its peak bytes, and the reason."""


def choose_solver(
    n_rows: int,
    n_samples: int,
    n_inputs: int,
    budget: Budget,
    *,
    solver: str | AbstractSolver = "auto",
    dtype: str = "float32",
    noise_ratio: float = 0.01,
) -> Choice:
    """Return the first candidate that fits into the memory limit.

    With "auto", the candidates are Cholesky (for few rows), CG and SDD; otherwise, only the given solver.

    Raises ValueError with the required bytes and the limit if no candidate fits.

    Parameters
    ----------
    n_rows, n_samples, n_inputs : int
        N, the number of function samples, and D. Iterative solvers need one more right-hand side per sample.
    budget : Budget
        The memory limit.
    solver : str or AbstractSolver
        "auto", a name, or a solver.
    dtype, noise_ratio : str, float
        The dtype of the rows, and mean noise variance / mean k(x, x). This ratio sets a factor's precision.
    """
    free, refused = plannable(budget), []
    for candidate, why in _candidates(solver, n_rows):
        n_columns = 1 if isinstance(candidate, Cholesky) else 1 + n_samples
        itemsize = candidate.itemsize_for(n_rows, np.dtype(dtype).itemsize, noise_ratio)
        need = candidate.peak_bytes(n_rows, n_columns, n_inputs, itemsize)
        if need <= free:
            memory = f"the solver needs {format_bytes(need)} of {format_bytes(free)} of free memory"
            return candidate, f"float{8 * itemsize}", need, f"{why}; {memory}"
        refused.append((need, candidate.name))
    need, name = min(refused)
    what = f"solving for {n_rows} rows and {1 + n_samples} right-hand sides with {name}"
    budget.keeping(HEADROOM * budget.limit).refuse(need, what)


def _candidates(solver: str | AbstractSolver, n_rows: int) -> list[tuple[AbstractSolver, str]]:
    """Return pairs of a solver and a reason, in the order of preference."""
    if isinstance(solver, AbstractSolver):
        return [(solver, AS_ASKED)]
    large = SDD(batch_size=min(max(n_rows // ROWS_PER_BLOCK_ROW, MIN_BLOCK), MAX_BLOCK))
    few = n_rows <= MAX_CHOLESKY_ROWS
    rules = [
        # the fastest on four of five systems of 20,000 rows
        (NAMES["cholesky"], f"up to {MAX_CHOLESKY_ROWS} rows, a factorisation is fast"),
        # reached a residual of 1e-4 on four of five systems; SDD reached it on none within a minute
        (NAMES["cg"], "too little memory for Cholesky" if few else f"more than {MAX_CHOLESKY_ROWS} rows"),
        # stores N · block numbers; CG stores up to 1,000 N in float64
        (large, "too little memory for the preconditioner of CG"),
        # needs the least memory for up to 200,000 rows
        (SMALL_BLOCKS, "too little memory for faster solvers"),
    ]
    if solver == "auto":
        return rules if few else rules[1:]
    named: Any = lookup(solver, {"auto": None, **NAMES}, "solver")  # "auto" only for the message
    return [(one, AS_ASKED) for one in ((large, SMALL_BLOCKS) if solver == "sdd" else (named,))]


def keeps_matrix(operator: KernelOperator, free: int) -> bool:
    """Return True if K, with buffers to fill it, fits into 90 % of `free` bytes."""
    return operator.dtype.itemsize * operator.padded * (operator.padded + 2 * BLOCK) <= SHARE_FOR_KEPT * free


def name_of(solver: AbstractSolver) -> str:
    """Return the class name of the solver, with its module if a user defined it."""
    kind = type(solver)
    known = kind.__module__.startswith("stochgp.")
    return kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"
