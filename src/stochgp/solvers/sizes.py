"""Sizes of systems (K + Σ) α = b, and the bytes that solves, predictions and covariances hold.

The counts hold for arrays alive at the worst moment, beyond the memory in use when the training rows are on the
device. A test compares them with measured peaks.
"""

from typing import Any, NamedTuple

import jax

from stochgp.budget import Budget
from stochgp.kernels import Product, Sum, Warped
from stochgp.operators import AbstractOperator
from stochgp.operators.base import BLOCK
from stochgp.parameters import value_of

SMALL = 3_000  # rows up to which a direct solve in float64 takes little time
MARGIN = 1.1  # on arrays that are counted
DRAWS_BYTES = 30_000_000  # left behind by compiling and running prior draws
FEATURES = 2000  # of the prior's draws
COMPILER_BYTES = 60_000_000  # of compiling one more evaluation
HEADROOM = 0.04  # of the limit, for what is loaded and compiled around the solve
TERM_BYTES = 20_000_000  # and for each further number that a product holds for an entry of its tile: kernels of several terms


class SystemSize(NamedTuple):
    """The sizes of a system solved for the mean and function samples together.

    Parameters
    ----------
    n_rows, n_inputs, n_samples : int
        N, D and S, the number of function samples.
    row_bytes, itemsize : int
        Bytes of one prepared row of the operator, its noise variance included, and of a number.
    noise_ratio, has_neighbours : float, bool
        Mean noise variance / mean k(x, x); True if neighbours can be found (see the function of this name).
    """

    n_rows: int
    n_inputs: int
    n_samples: int
    row_bytes: int
    itemsize: int = 4
    noise_ratio: float = 0.01
    has_neighbours: bool = True

    @classmethod
    def of(
        cls, operator: AbstractOperator, n_inputs: int, n_samples: int, noise_ratio: float = 0.01
    ) -> "SystemSize":
        """The sizes of an operator whose rows had `n_inputs` inputs."""
        leaves = jax.tree.leaves(operator.rows)
        row_bytes = sum(leaf.nbytes // leaf.shape[0] for leaf in leaves) + operator.dtype.itemsize
        itemsize, near = operator.dtype.itemsize, has_neighbours(operator)
        return cls(operator.size, n_inputs, n_samples, row_bytes, itemsize, noise_ratio, near)

    def in_numbers_of(self, itemsize: int) -> "SystemSize":
        """The same system in numbers of so many bytes."""
        return self._replace(itemsize=itemsize, row_bytes=self.row_bytes * itemsize // self.itemsize)

    @property
    def n_columns(self) -> int:
        """C, the right-hand sides."""
        return 1 + self.n_samples


class Layout(NamedTuple):
    """How the operator of a solve lies in memory.

    Parameters
    ----------
    tile, keep_rows : int
        Columns of K evaluated at a time, and rows of K that are kept.
    workspace, factor_itemsize : float, int or None
        Numbers that a product holds for each entry of its tile; bytes of a number of a direct solver's factor, None = as in the operator.
    """

    tile: int
    keep_rows: int = 0
    workspace: float = 3.0
    factor_itemsize: int | None = None


def has_neighbours(operator: AbstractOperator) -> bool:
    """Whether one device has all rows as they were given, and the kernel has places by which their neighbours are found."""
    return operator.n_devices == 1 and operator.inputs is not None and operator.kernel.has_places


def padded(n_rows: int, tile: int) -> int:
    """P of `KernelOperator.of`: the rows, and those that fill the last tile."""
    n_tiles = -(-n_rows // tile)
    return n_tiles * -(-n_rows // n_tiles)


def operator_bytes(size: SystemSize, layout: Layout) -> int:
    """The prepared rows and the noise."""
    return padded(size.n_rows, layout.tile) * size.row_bytes


def kept_bytes(size: SystemSize, layout: Layout) -> int:
    """The rows of K that are kept."""
    return size.itemsize * layout.keep_rows * padded(size.n_rows, layout.tile)


def column_bytes(size: SystemSize, layout: Layout, n_arrays: int, n_wide: int = 0) -> int:
    """The operator, and arrays [P, C]: `n_arrays` of its numbers, `n_wide` of float64."""
    P = padded(size.n_rows, layout.tile)
    return operator_bytes(size, layout) + (n_arrays * size.itemsize + n_wide * 8) * P * size.n_columns


def product_bytes(size: SystemSize, n_rows: int, layout: Layout, *, wide: bool = False) -> int:
    """One product of a block of rows with [P, C]; where it is `wide`, summed in float64."""
    tile = min(layout.tile, size.n_rows)
    itemsize = 8 if wide else size.itemsize
    sums = itemsize * n_rows * (int(itemsize > size.itemsize) * tile + 2 * size.n_columns)
    return int(size.itemsize * n_rows * (layout.workspace + 0.2) * tile) + sums


def working_bytes(size: SystemSize, layout: Layout, step_rows: int = BLOCK) -> int:
    """The largest of: a step of `step_rows` rows, the measurement of a residual, the filling of kept rows."""
    step = product_bytes(size, min(max(BLOCK, step_rows), size.n_rows), layout, wide=True)
    if layout.keep_rows == 0:
        return step
    whole = Layout(size.n_rows, 0, layout.workspace)
    return max(step, product_bytes(size, min(BLOCK, layout.keep_rows), whole))


def left_by_compiler(size: SystemSize, layout: Layout, solver_bytes: int) -> int:
    """What compiling everything from prior draws to predictions leaves behind, of which `solver_bytes` are the solver's."""
    draws = DRAWS_BYTES if size.n_samples else 0
    return solver_bytes + draws + int(TERM_BYTES * max(layout.workspace - 1, 0))


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


def covariance_bytes(n_rows: int, n_test: int) -> int:
    """Four squares of the test rows, and six blocks of test by training rows, in float64."""
    return int(MARGIN * 8 * n_test * (4 * n_test + 6 * n_rows))
