"""The rule that chooses the solver of a kernel GP.

The rule depends on the number of rows, the noise and the memory limit, never on the clock.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from stochgp.budget import Budget, format_bytes
from stochgp.choosing import AS_ASKED
from stochgp.names import lookup
from stochgp.operators import BLOCK, KernelOperator
from stochgp.solvers.adasap import ADASAP
from stochgp.solvers.base import HEADROOM, AbstractSolver, plannable
from stochgp.solvers.cg import CG
from stochgp.solvers.cholesky import Cholesky
from stochgp.solvers.sdd import SDD

NAMES: dict[str, Any] = {solver.name: solver for solver in (Cholesky(), CG(), SDD(), ADASAP())}
MAX_CHOLESKY_ROWS = 20_000
MIN_BLOCK, MAX_BLOCK, ROWS_PER_BLOCK_ROW = 512, 2048, 16  # blocks of 2,048 took 0.45 to 0.72 of the epochs
SMALL_BLOCKS = SDD(batch_size=64)
SHARE_FOR_KEPT = 0.9  # of the memory that a solve leaves, for K

Choice = tuple[AbstractSolver, str, int, str]
"""A solver, the dtype of its systems, its peak bytes, and the reason."""


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
    """Return the first solver of the rules that fits into the memory limit.

    "auto" tries the rules in order; a name or a solver means this solver alone.

    Raises ValueError with the need and the limit if nothing fits.

    Parameters
    ----------
    n_rows, n_samples, n_inputs : int
        N; function samples, which iterative solvers solve for with the mean; D.
    budget : Budget
        The memory limit.
    solver : str or AbstractSolver
        "auto", a name, or a solver.
    dtype, noise_ratio : str, float
        Dtype of the rows; mean noise variance / mean k(x, x), which sets the precision of a factor.
    """
    free, refused = plannable(budget), []
    for candidate, why in _candidates(solver, n_rows):
        n_columns = 1 if isinstance(candidate, Cholesky) else 1 + n_samples
        itemsize = candidate.itemsize_for(n_rows, np.dtype(dtype).itemsize, noise_ratio)
        need = candidate.peak_bytes(n_rows, n_columns, n_inputs, itemsize)
        if need <= free:
            memory = f"it needs {format_bytes(need)} of the {format_bytes(free)} that are free"
            return candidate, f"float{8 * itemsize}", need, f"{why}; {memory}"
        refused.append((need, candidate.name))
    need, name = min(refused)
    what = f"solving for {n_rows} rows and {1 + n_samples} right-hand sides by {name}"
    budget.keeping(HEADROOM * budget.limit).refuse(need, what)


def _candidates(solver: str | AbstractSolver, n_rows: int) -> Iterator[tuple[AbstractSolver, str]]:
    """Yield (solver, reason) in the order in which they are tried."""
    if isinstance(solver, AbstractSolver):
        yield solver, AS_ASKED
        return
    block = min(max(n_rows // ROWS_PER_BLOCK_ROW, MIN_BLOCK), MAX_BLOCK)
    if solver != "auto":
        names: dict[str, Any] = {"auto": None, **NAMES}  # "auto" only for the message
        named = lookup(solver, names, "solver")
        for of_name in (SDD(batch_size=block), SMALL_BLOCKS) if solver == "sdd" else (named,):
            yield of_name, AS_ASKED
        return
    few = n_rows <= MAX_CHOLESKY_ROWS
    if few:  # docs/solvers.md: the fastest on four of five systems of 20,000 rows
        yield NAMES["cholesky"], f"up to {MAX_CHOLESKY_ROWS} rows a factorisation is quick"
    # docs/solvers.md: reached 1e-4 on four of five systems, SDD and ADASAP on none within a minute
    yield NAMES["cg"], "a factor does not fit" if few else f"more than {MAX_CHOLESKY_ROWS} rows"
    # needs N · block numbers, instead of up to 1,000 N in float64
    yield SDD(batch_size=block), "the preconditioner of CG does not fit"
    # needs no factors of blocks (docs/solvers.md)
    yield NAMES["adasap"], "neither the preconditioner of CG nor the blocks of SDD fit"
    # needs the least memory up to 200,000 rows, according to `peak_bytes`
    yield SMALL_BLOCKS, "nothing faster fits"


def keeps_matrix(operator: KernelOperator, free: int) -> bool:
    """Return True if K, and the rows that fill it, fit into most of `free` bytes."""
    return operator.dtype.itemsize * operator.padded * (operator.padded + 2 * BLOCK) <= SHARE_FOR_KEPT * free


def name_of(solver: AbstractSolver) -> str:
    """Return the name of the solver's class, with its module if a user defined it."""
    kind = type(solver)
    known = kind.__module__.startswith("stochgp.")
    return kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"
