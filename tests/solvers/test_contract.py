"""What every solver of A α = b keeps, in float32, against the dense solution."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from systems import EXACT, A, B, N, X, operator, residuals

from stochgp.results import RESULTS
from stochgp.solvers import CG, SDD, AbstractIterativeSolver, AbstractSolver, Cholesky, solve

ROUNDING = 1e-5  # of a residual, from entries of K in float32
UNREACHABLE = 1e-12


class Row(NamedTuple):
    solver: AbstractSolver
    tolerance: float  # that it reaches


TABLE = {
    "cholesky": Row(Cholesky(), 1e-5),
    "cg": Row(CG(rank=5, check_every=5, epochs=60), 1e-5),
    "sdd-blocks": Row(SDD(batch_size=16, check_every=10), 1e-5),
    "sdd-published": Row(SDD(batch_size=16, step_size=2 / N, averaging=0.1), 1e-3),
}
every = pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
ITERATIVE = {name: row for name, row in TABLE.items() if isinstance(row.solver, AbstractIterativeSolver)}
iterative = pytest.mark.parametrize("row", ITERATIVE.values(), ids=ITERATIVE)


@pytest.fixture(scope="module")
def solved():
    """The solution of a row of the table, made once."""
    found = {}

    def of(row):
        if row.solver not in found:
            found[row.solver] = solve(
                operator(), B, row.solver, key=jax.random.key(0), tolerance=row.tolerance
            )
        return found[row.solver]

    return of


@every
def test_the_residual_is_within_the_tolerance_and_the_error_within_what_follows(solved, row):
    found = solved(row)
    assert found.converged and found.result is RESULTS.tolerance_reached
    assert found.value.shape == B.shape
    assert found.value.dtype == (jnp.float64 if isinstance(row.solver, Cholesky) else jnp.float32)
    assert np.all(residuals(found.value) <= row.tolerance + ROUNDING)
    error = np.linalg.norm(np.asarray(found.value) - EXACT, axis=0)
    bound = (row.tolerance + ROUNDING) * np.linalg.norm(B, axis=0) * np.linalg.norm(np.linalg.inv(A), 2)
    assert np.all(error <= bound)


@every
def test_reported_residuals_are_the_true_ones(solved, row):
    np.testing.assert_allclose(solved(row).residual_norms, residuals(solved(row).value), atol=ROUNDING)


@every
def test_the_same_key_gives_the_same_bits(solved, row):
    again = solve(operator(), B, row.solver, key=jax.random.key(0), tolerance=row.tolerance)
    assert np.array_equal(again.value, solved(row).value) and again.n_steps == solved(row).n_steps


@every
def test_a_tolerance_out_of_reach_is_not_claimed(row):
    solver = row.solver
    if isinstance(solver, AbstractIterativeSolver):
        solver = dataclasses.replace(solver, epochs=min(solver.epochs, 60))
    found = solve(operator(), B, solver, key=jax.random.key(0), tolerance=UNREACHABLE)
    assert not found.converged
    assert found.result in (RESULTS.precision_reached, RESULTS.steps_exhausted)
    assert np.all(found.residual_norms > UNREACHABLE)
    np.testing.assert_allclose(found.residual_norms, residuals(found.value), atol=ROUNDING)


@iterative
def test_columns_go_their_own_way(row):
    """After the same steps, columns solved together are those solved one by one."""
    solver = dataclasses.replace(row.solver, epochs=3, check_every=1)
    run = lambda b: solve(operator(), b, solver, key=jax.random.key(0), tolerance=UNREACHABLE).value
    together = run(B)
    for column in range(B.shape[1]):
        alone = run(B[:, column : column + 1])
        np.testing.assert_allclose(together[:, column], alone[:, 0], rtol=1e-4, atol=1e-4)


@iterative
def test_a_start_at_the_solution_ends_at_once(row):
    found = solve(operator(), B, row.solver, key=jax.random.key(0), start=EXACT, tolerance=row.tolerance)
    assert found.converged and found.n_steps == 0
    np.testing.assert_allclose(found.value, EXACT, rtol=1e-6, atol=1e-6)


@iterative
def test_without_time_it_ends_finite_and_not_converged(row):
    found = solve(operator(), B, row.solver, key=jax.random.key(0), tolerance=UNREACHABLE, time_limit=0.0)
    assert found.result is RESULTS.time_limit and not found.converged
    assert np.all(np.isfinite(found.value)) and np.all(residuals(found.value) <= 1 + ROUNDING)


@every
def test_float32_with_hardly_any_noise_and_repeated_rows_stays_finite(row):
    rows = np.repeat(X[: N // 2], 2, axis=0)
    found = solve(
        operator(rows=rows, noise=np.full(N, 1e-9)), B, row.solver, key=jax.random.key(0), time_limit=5.0
    )
    assert np.all(np.isfinite(found.value)) and np.all(np.isfinite(found.residual_norms))
    assert found.converged == bool(np.all(found.residual_norms <= 0.01))


def test_wrong_arguments_are_refused():
    op, key = operator(), jax.random.key(0)
    with pytest.raises(ValueError, match="b must have 40 rows"):
        solve(op, B[1:], CG(), key=key)
    with pytest.raises(ValueError, match="tolerance"):
        solve(op, B, CG(), key=key, tolerance=0.0)


def test_a_tolerance_for_each_column(solved):
    found = solve(operator(), B, TABLE["cg"].solver, key=jax.random.key(0), tolerance=np.array([1e-4, 0.5]))
    assert np.all(found.residual_norms <= [1e-4, 0.5]) and found.n_steps < solved(TABLE["cg"]).n_steps
