"""How many epochs or steps a solver is expected to need, and how many seconds they take."""

import math

from stochgp.planning.machine import HALF_ORDER, Costs
from stochgp.planning.memory import Layout, Problem
from stochgp.priors import GROUP
from stochgp.solvers import CG, SDD, SGD, AbstractIterativeSolver, AbstractSolver

# Steps of the solvers with published hyperparameters, to the tolerances of the estimator (0.017 on pol, 0.08 on elevators, 0.0045 on bike):
# SDD by blocks of 512 rows took 25, 16 and 25 epochs, CG at its default rank and to half of them 28, 9 and 45 steps, a check each included.
SDD_EPOCHS = 5.5  # times ln(1 / tolerance)
CG_STEPS = 1.55  # times ln(1 / tolerance)²
CHECKS = 2  # residuals measured on all rows
SMALL_BATCH = 1.0  # time goes as (512 / batch size) below 512: more epochs, and more steps that are small
LARGE_BATCH = 0.25  # epochs go at least as (512 / batch size)^¼ above it: 2,048 rows took 0.72, 0.58 and 0.45 of them on bike, pol, keggdirected
# Seconds of a product with a block's factor, as a multiple of those of one with as many entries of K.
BLOCK_PRODUCT = 2.5
LOW_RANK = 0.5  # and steps of CG as (default rank / rank)^0.5
SHORT_TILE = 500.0  # columns at which a tile's overhead doubles the time of a product
REFINEMENTS = 3  # products with K, and solves, by which a direct solution is refined
TOUCH = 5e-10  # seconds to be given a byte of new memory and to write it
# What takes as long to compile as so many products with a block: a solver with its predictions, and prior draws.
COMPILED = {"cholesky": 16.0, "cg": 30.0, "sdd": 22.0, "sgd": 30.0}
DRAWS_COMPILED = 16.0
# Operations, at the rate of a large factorisation, that B³ of the inverse factor of a block in float64 cost: 4.3 (1 + 1000 / B).
BLOCK_FACTOR, HALF_BLOCK = 4.3, 1000.0
WIDE = 2.0  # a product in float64 against one in float32
PRIOR_FEATURES = 2000
FEATURE = 0.3  # of the cost of an entry of K


def solve_seconds(
    problem: Problem, solver: AbstractSolver, layout: Layout, costs: Costs, tolerance: float, n_test: int
) -> float:
    """Everything from the right-hand sides to standard deviations at `n_test` rows."""
    if not isinstance(solver, AbstractIterativeSolver):
        return _direct(problem, layout, costs, n_test)
    C = problem.n_columns
    steps = expected_epochs(solver, problem.n_rows, tolerance) + CHECKS
    fill = layout.keep_rows * problem.n_rows * (costs.evaluate + TOUCH * problem.itemsize)
    test = n_test * problem.n_rows * (costs.evaluate + costs.multiply * (C - 1))
    prior = (problem.n_rows + n_test) * prior_seconds(problem, costs)
    units = COMPILED.get(type(solver).__name__.lower(), 12.0) + DRAWS_COMPILED * (problem.n_samples > 0)
    seconds = fill + steps * epoch_seconds(problem, layout, costs) + test + prior + units * costs.compile
    return seconds + _extras(problem, solver, costs, steps)


def expected_epochs(solver: AbstractIterativeSolver, n_rows: int, tolerance: float) -> float:
    """Until the residual is within the tolerance, at most those that the solver takes."""
    digits = math.log(1 / min(tolerance, 0.5))
    match solver:
        case SDD() if solver.by_blocks:
            share = 512 / solver.batch_size
            wanted = SDD_EPOCHS * digits * share ** (SMALL_BATCH if share > 1 else LARGE_BATCH)
        case CG():
            share = CG().rank_for(n_rows) / max(solver.rank_for(n_rows), 1)
            wanted = CG_STEPS * digits**2 * max(1.0, share) ** LOW_RANK
        case _:
            wanted = math.inf
    return min(wanted, solver.epochs)


def epoch_seconds(problem: Problem, layout: Layout, costs: Costs) -> float:
    """One product of all rows of K with the right-hand sides."""
    share = min(1.0, layout.keep_rows / problem.n_rows)
    tile = 1 + (SHORT_TILE / layout.tile) ** 2 if problem.n_rows > layout.tile else 1.0
    entry = (
        share * costs.read + (1 - share) * tile * costs.evaluate + costs.multiply * (problem.n_columns - 1)
    )
    return entry * problem.n_rows**2


def prior_seconds(problem: Problem, costs: Costs) -> float:
    """The prior draws at one row."""
    n_groups = -(-problem.n_samples // GROUP)
    return PRIOR_FEATURES * (n_groups * FEATURE * costs.evaluate + costs.multiply * problem.n_samples)


def _extras(problem: Problem, solver: AbstractIterativeSolver, costs: Costs, steps: float) -> float:
    """What is beside products with K: factors of blocks and products with them, a preconditioner."""
    N, C = problem.n_rows, problem.n_columns
    match solver:
        case SDD() if solver.by_blocks:
            B = min(solver.batch_size, N)
            factors = BLOCK_FACTOR * (1 + HALF_BLOCK / B) * costs.factor * B
            return N * B * (factors + steps * 2 * BLOCK_PRODUCT * costs.multiply * C)
        case CG():
            R = solver.rank_for(N)
            made = N * R * (costs.evaluate + 3 * WIDE * R * costs.multiply)
            return made + steps * N * C * (2 * WIDE * R * costs.multiply + 20 * TOUCH)
        case SGD():
            step = 2 * costs.multiply * solver.n_features + 12 * TOUCH * problem.itemsize
            return N * C * (N * costs.multiply + step * -(-N // solver.batch_size)) * steps
        case _:
            return 0.0


def _direct(problem: Problem, layout: Layout, costs: Costs, n_test: int) -> float:
    """Filling, factorising, refining, and exact variances, in float64 if `layout` says so."""
    N = problem.n_rows
    move = TOUCH * problem.itemsize
    fill = N * (N + layout.tile) / 2 * (costs.evaluate + 2 * move) + move * N**2
    rate = 1 + HALF_ORDER / N
    refined = REFINEMENTS * (
        epoch_seconds(problem._replace(n_samples=0), layout, costs) + 4 * costs.solve * N**2
    )
    exact = n_test * N * (costs.evaluate + 4 * move + costs.solve * rate * N)
    return fill + costs.factor * rate * N**3 / 3 + refined + exact + COMPILED["cholesky"] * costs.compile
