"""Predicted seconds of the parts of a solve, from what single operations cost on a machine."""

from typing import NamedTuple

from stochgp.priors import GROUP
from stochgp.solvers.sizes import Layout, SystemSize

# LAPACK is slower for small matrices: its rate at order n is n / (n + 1500) of that of large ones. This was within 6 % from 1,500 to 13,500,
# in float32 and float64.
HALF_ORDER = 1500.0
SHORT_TILE = 500.0  # columns of a tile whose overhead doubles the time of a product
TOUCH = 5e-10  # seconds to get a byte of new memory and to write it
DRAWS_COMPILED = 16.0  # prior draws take as long to compile as so many products
PRIOR_FEATURES = 2000
FEATURE = 0.3  # cost of a feature, as a share of the cost of an entry of K


class Costs(NamedTuple):
    """Costs of one kernel, number of inputs and dtype on one machine.

    Costs are seconds. The product of a block of B rows of K with one column [P, 1] takes B · P · `evaluate`. Each further column adds
    B · P · `multiply`.
    """

    evaluate: float  # to evaluate an entry of K and multiply it with one column
    multiply: float  # to multiply an evaluated entry of K with one more column
    read: float  # to read an entry of K that is kept in memory and multiply it with one column
    factor: float  # one of the N³/3 operations of a large Cholesky factorisation
    solve: float  # one of the N² products of a large triangular solve with one column
    compile: float  # to compile a product with a block and run it once
    workspace: float  # no time: how many numbers a product holds for each entry of its tile
    measured: bool = True  # whether the costs were measured on this machine; False = typical costs


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
