"""Sizes of systems (K + Σ) α = b, the bytes of what every solver holds, and predicted seconds of the parts of a solve.

Bytes are counted on top of what is in use when the training rows are on the device: the arrays that are alive at the worst moment, from
the solvers' code. A test holds the counts to measured peaks. Seconds come from what single operations cost (`Costs`); they are the rule by which solvers are chosen,
and the same on every machine.
"""

from typing import NamedTuple

import jax

from stochgp.operators import AbstractOperator
from stochgp.operators.base import BLOCK
from stochgp.priors import GROUP

SMALL = 3_000  # rows up to which a direct solve takes hardly any time, and float64 costs nothing
MARGIN = 1.1  # on arrays that are counted
DRAWS_BYTES = 30_000_000  # left behind by compiling and running prior draws
TERM_BYTES = 20_000_000  # and for each further number that a product holds for an entry of its tile: kernels of several terms


class SystemSize(NamedTuple):
    """The sizes of a system solved for the mean and function samples together.

    Parameters
    ----------
    n_rows, n_inputs : int
        N and D.
    n_samples : int
        S, function samples.
    row_bytes : int
        Bytes of one prepared row of the operator, its noise variance included.
    itemsize : int
        Bytes of a number.
    noise_ratio : float
        Mean noise variance / mean k(x, x).
    has_neighbours : bool
        Whether one device has all rows as they were given, and the kernel has places by which their neighbours are found.
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
        return cls(
            operator.size,
            n_inputs,
            n_samples,
            row_bytes,
            operator.dtype.itemsize,
            noise_ratio,
            has_neighbours(operator),
        )

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
    tile : int
        Columns of K evaluated at a time.
    keep_rows : int
        Rows of K that are kept.
    workspace : float
        Numbers that a product holds for each entry of its tile.
    factor_itemsize : int or None
        Bytes of a number of a direct solver's factor; None = as in the operator.
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


# LAPACK is slower for small matrices: its rate at order n is n / (n + 1500) of that of large ones. This was within 6 % from 1,500 to 13,500,
# in float32 and float64.
HALF_ORDER = 1500.0
SHORT_TILE = 500.0  # columns of a tile whose overhead doubles the time of a product
TOUCH = 5e-10  # seconds to get a byte of new memory and to write it
DRAWS_COMPILED = 16.0  # prior draws take as long to compile as so many products
PRIOR_FEATURES = 2000
FEATURE = 0.3  # cost of a feature, as a share of the cost of an entry of K


class Costs(NamedTuple):
    """Costs of operations.

    Costs are seconds. The product of a block of B rows of K with one column [P, 1] takes B · P · `evaluate`. Each further column adds
    B · P · `multiply`.
    """

    evaluate: float  # to evaluate an entry of K and multiply it with one column
    multiply: float  # to multiply an evaluated entry of K with one more column
    read: float  # to read an entry of K that is kept in memory and multiply it with one column
    factor: float  # one of the N³/3 operations of a large Cholesky factorisation
    solve: float  # one of the N² products of a large triangular solve with one column
    compile: float  # to compile a product with a block and run it once


TYPICAL = Costs(1.8e-9, 1.3e-11, 4e-10, 4e-12, 1e-11, 0.3)  # two cores of 2023


def twice(costs: Costs) -> Costs:
    """Costs in float64, from those in float32: twice as much of everything but compiling."""
    doubled = {name: 2 * getattr(costs, name) for name in ("evaluate", "multiply", "read", "factor", "solve")}
    return costs._replace(**doubled)


def epoch_seconds(size: SystemSize, layout: Layout, costs: Costs) -> float:
    """Seconds of one product of all rows of K with the right-hand sides."""
    share = min(1.0, layout.keep_rows / size.n_rows)
    tile = 1 + (SHORT_TILE / layout.tile) ** 2 if size.n_rows > layout.tile else 1.0
    entry = share * costs.read + (1 - share) * tile * costs.evaluate + costs.multiply * (size.n_columns - 1)
    return entry * size.n_rows**2


def kept_seconds(size: SystemSize, layout: Layout, costs: Costs) -> float:
    """Seconds to fill the rows of K that are kept."""
    return layout.keep_rows * size.n_rows * (costs.evaluate + TOUCH * size.itemsize)


def prediction_seconds(size: SystemSize, costs: Costs, n_test: int) -> float:
    """Seconds of the means and of the standard deviations from samples at `n_test` rows."""
    return n_test * size.n_rows * (costs.evaluate + costs.multiply * (size.n_columns - 1))


def prior_seconds(size: SystemSize, costs: Costs) -> float:
    """Seconds of the prior draws at one row."""
    n_groups = -(-size.n_samples // GROUP)
    return PRIOR_FEATURES * (n_groups * FEATURE * costs.evaluate + costs.multiply * size.n_samples)


def compile_seconds(size: SystemSize, costs: Costs, n_products: float) -> float:
    """Seconds to compile a solver, its predictions and its prior draws. The first two take as long as `n_products` products with a block."""
    return (n_products + DRAWS_COMPILED * (size.n_samples > 0)) * costs.compile
