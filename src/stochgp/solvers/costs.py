"""Seconds of the pieces that every solve consists of, given what they cost on a machine."""

from typing import NamedTuple

from stochgp.priors import GROUP
from stochgp.solvers.sizes import Layout, SystemSize

HALF_ORDER = 1500.0  # LAPACK's rates at order n go as n / (n + 1500): within 6 % from 1,500 to 13,500, float32 and float64
SHORT_TILE = 500.0  # columns at which a tile's overhead doubles the time of a product
TOUCH = 5e-10  # seconds to be given a byte of new memory and to write it
DRAWS_COMPILED = 16.0  # products that take as long to compile as prior draws
PRIOR_FEATURES = 2000
FEATURE = 0.3  # of the cost of an entry of K


class Costs(NamedTuple):
    """Costs of one kernel, number of inputs and dtype on one machine.

    Seconds are per entry of K: a block of B rows times [P, 1] takes B · P · `evaluate`, each further column B · P · `multiply`.
    """

    evaluate: float  # an entry of K, times one column
    multiply: float  # an entry of K times one more column
    read: float  # an entry of K that is kept, times one column
    factor: float  # one of the N³/3 operations of a large Cholesky factorisation
    solve: float  # one of the N² products of a large triangular solve, for each column
    compile: float  # a product with a block, compiled and run once
    workspace: float  # numbers that a product holds for each entry of its tile
    measured: bool = True  # False = typical ones


def twice(costs: Costs) -> Costs:
    """Costs in float64, given those in float32."""
    doubled = {name: 2 * getattr(costs, name) for name in ("evaluate", "multiply", "read", "factor", "solve")}
    return costs._replace(**doubled)


def epoch_seconds(size: SystemSize, layout: Layout, costs: Costs) -> float:
    """One product of all rows of K with the right-hand sides."""
    share = min(1.0, layout.keep_rows / size.n_rows)
    tile = 1 + (SHORT_TILE / layout.tile) ** 2 if size.n_rows > layout.tile else 1.0
    entry = share * costs.read + (1 - share) * tile * costs.evaluate + costs.multiply * (size.n_columns - 1)
    return entry * size.n_rows**2


def kept_seconds(size: SystemSize, layout: Layout, costs: Costs) -> float:
    """Filling the rows of K that are kept."""
    return layout.keep_rows * size.n_rows * (costs.evaluate + TOUCH * size.itemsize)


def prediction_seconds(size: SystemSize, costs: Costs, n_test: int) -> float:
    """Means, and standard deviations from samples, at `n_test` rows."""
    return n_test * size.n_rows * (costs.evaluate + costs.multiply * (size.n_columns - 1))


def prior_seconds(size: SystemSize, costs: Costs) -> float:
    """The prior draws at one row."""
    n_groups = -(-size.n_samples // GROUP)
    return PRIOR_FEATURES * (n_groups * FEATURE * costs.evaluate + costs.multiply * size.n_samples)


def compile_seconds(size: SystemSize, costs: Costs, n_products: float) -> float:
    """Compiling a solver with its predictions, which takes as long as `n_products` products with a block, and prior draws."""
    return (n_products + DRAWS_COMPILED * (size.n_samples > 0)) * costs.compile
