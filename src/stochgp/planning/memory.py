"""What kernel solves need of memory: bytes on top of what is in use when the training rows are on the device.

Each count is of the arrays that are alive at the worst moment, from the solvers' code; a test holds them to measured peaks.
"""

from typing import NamedTuple

import jax
import numpy as np

from stochgp.operators import KernelOperator
from stochgp.solvers import CG, SDD, SGD, AbstractIterativeSolver, AbstractSolver, Cholesky
from stochgp.solvers.cholesky import FILL_ROWS

# What compiling and running a first solve and a prediction leaves behind, beside the arrays, where freed memory is released after the draws.
COMPILER_BYTES = {"cholesky": 100_000_000, "sdd": 130_000_000, "cg": 170_000_000, "sgd": 170_000_000}
DRAWS_BYTES = 30_000_000  # the same for prior draws
TERM_BYTES = 20_000_000  # and for each further number that a product holds for an entry of its tile: kernels of several terms
MARGIN = 1.1  # on arrays that are counted
BLOCK = 512  # rows of the products that measure residuals, and of those that fill kept rows
# Arrays [P, C]: b twice, the best point, momentum's three before, after and at the best epoch, look-ahead, product.
SDD_COLUMNS = 14
# The same for CG, and float64 ones: five of a state before, after and at the best step, and some within a step.
CG_COLUMNS, CG_WIDE_COLUMNS = 6, 16
CG_FACTORS = 2.2  # arrays [rank, P] of float64 while the preconditioner is made
SGD_COLUMNS = 20
OTHER_COLUMNS = 24  # of a solver that is not known here
DIRECT_WIDE_COLUMNS = 7  # float64 arrays [N, C] while a solution is refined
SMALL = 3_000  # rows up to which a direct solve takes less time than measuring the machine, and float64 costs nothing
MOST_ROUNDING = 0.02  # of the noise variance: more is float64's
BLOCK_FACTORS = 8  # float64 blocks [B, B] while one of them is factorised


class Problem(NamedTuple):
    """The sizes of a solve for the mean and `n_samples` function samples together."""

    n_rows: int
    n_inputs: int
    n_samples: int
    row_bytes: int  # of one prepared row of the operator
    itemsize: int = 4
    noise_ratio: float = 0.01  # mean noise variance / mean k(x, x)

    @classmethod
    def of(
        cls, operator: KernelOperator, n_inputs: int, n_samples: int, noise_ratio: float = 0.01
    ) -> "Problem":
        """The sizes of an operator whose rows had `n_inputs` inputs."""
        leaves = jax.tree.leaves(operator.rows)
        row_bytes = sum(leaf.nbytes // leaf.shape[0] for leaf in leaves) + operator.dtype.itemsize
        return cls(operator.size, n_inputs, n_samples, row_bytes, operator.dtype.itemsize, noise_ratio)

    @property
    def n_columns(self) -> int:
        """C, the right-hand sides."""
        return 1 + self.n_samples


class Layout(NamedTuple):
    """How the operator of a solve lies in memory."""

    tile: int
    keep_rows: int = 0
    workspace: float = 3.0  # as in `Costs`


def padded(n_rows: int, tile: int) -> int:
    """P of `KernelOperator.of`."""
    n_tiles = -(-n_rows // tile)
    return n_tiles * -(-n_rows // n_tiles)


def solve_bytes(problem: Problem, solver: AbstractSolver, layout: Layout, itemsize: int | None = None) -> int:
    """A solve with `solver`; `itemsize` is that of a direct factorisation, if it is not the operator's."""
    match solver:
        case Cholesky():
            arrays, exact = _direct(problem, layout, itemsize or problem.itemsize)
        case SDD():
            arrays, exact = _dual(problem, solver, layout), 0
        case CG():
            arrays, exact = _conjugate(problem, solver, layout), 0
        case SGD():
            arrays, exact = _primal(problem, solver, layout), 0
        case AbstractIterativeSolver():
            arrays, exact = _columns(problem, layout, OTHER_COLUMNS), 0
        case _:
            raise TypeError(f"a solver of stochgp.solvers is wanted, but got {solver!r}")
    kept = problem.itemsize * layout.keep_rows * padded(problem.n_rows, layout.tile)
    return (
        compiler_bytes(problem, solver, layout)
        + exact
        + kept
        + int(MARGIN * (arrays + _working(problem, solver, layout)))
    )


def compiler_bytes(problem: Problem, solver: AbstractSolver, layout: Layout) -> int:
    """What is left behind by compiling everything from prior draws to predictions."""
    base = COMPILER_BYTES.get(type(solver).__name__.lower(), max(COMPILER_BYTES.values()))
    draws = DRAWS_BYTES if problem.n_samples else 0
    return base + draws + int(TERM_BYTES * max(layout.workspace - 1, 0))


def product_bytes(problem: Problem, n_rows: int, layout: Layout) -> int:
    """One product of a block of rows with [P, C]."""
    tile = min(layout.tile, problem.n_rows)
    return int(problem.itemsize * n_rows * ((layout.workspace + 0.2) * tile + 2 * problem.n_columns))


def operator_bytes(problem: Problem, layout: Layout) -> int:
    """The prepared rows and the noise."""
    return padded(problem.n_rows, layout.tile) * problem.row_bytes


def _working(problem: Problem, solver: AbstractSolver, layout: Layout) -> int:
    """The largest of: a step, the measurement of a residual, the filling of kept rows."""
    n_rows = max(BLOCK, getattr(solver, "batch_size", BLOCK))
    step = product_bytes(problem, min(n_rows, problem.n_rows), layout)
    if layout.keep_rows == 0:
        return step
    wide = Layout(problem.n_rows, 0, layout.workspace)
    return max(step, product_bytes(problem, min(BLOCK, layout.keep_rows), wide))


def _columns(problem: Problem, layout: Layout, n_arrays: int, n_wide: int = 0) -> int:
    """The operator and arrays [P, C], of its numbers and of float64."""
    P = padded(problem.n_rows, layout.tile)
    column_bytes = n_arrays * problem.itemsize + n_wide * 8
    return operator_bytes(problem, layout) + column_bytes * P * problem.n_columns


def _dual(problem: Problem, solver: SDD, layout: Layout) -> int:
    """Rows in two orders, and the inverse factor of every block."""
    arrays = _columns(problem, layout, SDD_COLUMNS) + operator_bytes(problem, layout)
    if not solver.by_blocks:
        return arrays
    B = min(solver.batch_size, problem.n_rows)
    n_blocks = -(-problem.n_rows // B)
    return arrays + (problem.itemsize * n_blocks + 8 * BLOCK_FACTORS) * B**2


def _conjugate(problem: Problem, solver: CG, layout: Layout) -> int:
    P = padded(problem.n_rows, layout.tile)
    factors = int(8 * CG_FACTORS * solver.rank_for(problem.n_rows) * P)
    return _columns(problem, layout, CG_COLUMNS, CG_WIDE_COLUMNS) + factors


def _primal(problem: Problem, solver: SGD, layout: Layout) -> int:
    """Rows of K, twice, and random features of all rows in each step."""
    P = padded(problem.n_rows, layout.tile)
    rows = (layout.workspace + 1) * solver.batch_size + 3 * solver.n_features
    return _columns(problem, layout, SGD_COLUMNS) + int(problem.itemsize * P * rows)


def _direct(problem: Problem, layout: Layout, itemsize: int) -> tuple[int, int]:
    """(columns, blocks and rows; the matrix itself, in which nothing is uncertain)."""
    N = problem.n_rows
    wide = problem._replace(itemsize=itemsize, row_bytes=problem.row_bytes * itemsize // problem.itemsize)
    block = product_bytes(wide, min(FILL_ROWS, N), layout)
    columns = _columns(wide, layout, 4, DIRECT_WIDE_COLUMNS)
    return columns + block, itemsize * N**2


def direct_itemsize(problem: Problem, solver: Cholesky) -> int:
    """Bytes of a number of the factor: as the solver says, else 8 where rounding in float32 may count beside the noise.

    The error of K by rounding has a norm of about eps √N times the mean variance.
    """
    if solver.dtype is not None or problem.itemsize == 8:
        return np.dtype(solver.dtype or "float64").itemsize
    rounding = float(np.finfo(np.float32).eps) * problem.n_rows**0.5
    small = problem.n_rows <= SMALL
    return 8 if small or rounding > MOST_ROUNDING * problem.noise_ratio else 4
