"""The loop of all iterative solvers: what it does where a run grows instead of falling, and what it records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from systems import EXACT, VARIANCE, A, B, N, X, operator, residuals

from stochgp import kernels
from stochgp.numerics.linalg import factorised
from stochgp.operators import KernelOperator
from stochgp.results import RESULTS
from stochgp.solvers import SDD, AbstractIterativeSolver, Cholesky, solve
from stochgp.solvers.cholesky import refined
from stochgp.solvers.sdd import DAMPING


class Growing(AbstractIterativeSolver):
    """Moves away from the solution, three times as far at every step, until the constants have been mended `remedy` times."""

    remedy: int
    epochs: int = 20
    check_every: int = 100

    patience = None

    def constants(self, operator, *, key):
        exact = jnp.linalg.solve(operator.dense(), jnp.asarray(B, operator.dtype))
        return exact, jnp.asarray(False)

    def adapted(self, operator, constants, state, epoch, n_failures):
        return (constants[0], jnp.asarray(n_failures >= self.remedy)), state

    def init(self, operator, constants, b, start, residual=None):
        return start

    def step(self, operator, constants, b, state, batch):
        exact, mended = constants
        moved = exact + jnp.where(mended, 0.01, 3.0) * (state - exact)
        return moved, jnp.sum((b - operator.matvec(moved)) ** 2, axis=0), None

    def value(self, state):
        return state


@pytest.mark.parametrize("remedy", [1, 3])
def test_a_run_that_grows_goes_back_and_takes_the_remedy(remedy):
    found = solve(operator(tile=N), B, Growing(remedy), key=jax.random.key(0), tolerance=1e-3)
    assert found.converged and found.history[-1]["failures"] == remedy
    np.testing.assert_allclose(found.value, EXACT, rtol=1e-2, atol=1e-2)


def test_a_run_that_grows_whatever_is_done_ends_as_diverged_at_its_start():
    found = solve(operator(tile=N), B, Growing(99, epochs=100), key=jax.random.key(0), tolerance=1e-3)
    assert found.result is RESULTS.diverged
    np.testing.assert_array_equal(found.residual_norms, 1)


@pytest.mark.parametrize("batch_size", [8, 32])
def test_blocks_that_rounding_makes_grow_come_nearer_all_the_same(batch_size):
    """A smooth kernel with hardly any noise in float32: the error in the norm of A falls below that of α = 0 for every column."""
    generator, n, noise = np.random.default_rng(0), 64, 1e-7
    rows = generator.uniform(0, 3, size=(n, 1)).astype(np.float32)
    b = np.stack([np.sin(rows[:, 0]), generator.normal(size=n)], axis=1)
    op = KernelOperator.of(kernels.RBF(5.0), jnp.asarray(rows), noise, tile=n)
    solver = SDD(batch_size=batch_size, epochs=150)
    found = solve(op, b, solver, key=jax.random.key(0), tolerance=1e-3)
    assert found.history[-1]["failures"] > 1 and not found.converged
    matrix = np.exp(-0.5 * ((rows - rows.T).astype(float) / 5) ** 2) + noise * np.eye(n)
    alpha = np.asarray(found.value, float)
    objective = 0.5 * np.einsum("ns,nm,ms->s", alpha, matrix, alpha) - np.einsum("ns,ns->s", alpha, b)
    assert np.all(objective < 0)  # ½‖α − A⁻¹b‖² − ½‖A⁻¹b‖², in that norm
    assert residuals(alpha, b, matrix)[0] < 0.05


def begun(solver):
    """(The constants of the solver, its state at 0)."""
    constants, b = solver.constants(operator(), key=jax.random.key(0)), operator().pad(jnp.asarray(B))
    return constants, solver.init(operator(), constants, b, jnp.zeros_like(b))


@pytest.mark.parametrize(("n_failures", "times"), [(0, 1), (1, 1), (2, 10), (3, 100), (5, 10_000)])
def test_blocks_are_damped_ten_times_more_for_every_divergence_without_momentum(n_failures, times):
    """In the first epoch the horizon is one epoch: after the first divergence there is no momentum, the second one is rounding's."""
    solver = SDD(batch_size=10)
    with jax.enable_x64(True):
        blocks, state = begun(solver)
        blocks, _ = solver.adapted(operator(), blocks, state, 0, n_failures)
    damped = times * DAMPING * float(jnp.finfo(jnp.float32).eps) * N**0.5 * VARIANCE
    for rows, inverse in zip(np.asarray(blocks.rows), np.asarray(blocks.inverse, np.float64), strict=True):
        added = np.linalg.inv(inverse.T @ inverse) - A[np.ix_(rows, rows)]
        np.testing.assert_allclose(added, damped * np.eye(10), rtol=1e-3, atol=3e-6)


def test_a_later_divergence_with_momentum_left_changes_nothing():
    """At epoch 12 the horizon is four epochs: it takes three halvings until there is no momentum."""
    solver = SDD(batch_size=10)
    with jax.enable_x64(True):
        blocks, state = begun(solver)
        after = lambda n: solver.adapted(operator(), blocks, state, 12, n)[0]
        assert all(after(n) is blocks for n in (1, 2, 3)) and after(4) is not blocks


class Indefinite(kernels.AbstractKernel):
    """1 for two rows, 3e-5 less for a row with itself: the matrix has the eigenvalue −3e-5, N − 1 times."""

    def __call__(self, x, z):
        return 1 - 3e-5 * jnp.all(x == z).astype(x.dtype)

    def prepare(self, X, centre):
        return X

    def between(self, rows, columns):
        return 1 - 3e-5 * jnp.all(rows[:, None] == columns[None], axis=2).astype(rows.dtype)

    def diag(self, X):
        return jnp.full(len(X), 1 - 3e-5, X.dtype)


@pytest.mark.parametrize("solver", [Cholesky(), SDD(batch_size=10, epochs=1), SDD(batch_size=64, epochs=1)])
def test_the_jitter_that_was_needed_is_told(solver):
    """1e-4 of the mean diagonal is the first share that exceeds 3e-5."""
    noise = 1e-9
    with jax.enable_x64(True):
        op = KernelOperator.of(Indefinite(), jnp.asarray(X), noise)
    found = solve(op, B, solver, key=jax.random.key(0), tolerance=0.5)
    assert found.jitter == pytest.approx(1e-4 * (1 - 3e-5 + noise), rel=1e-9)
    assert solve(operator(), B, solver, key=jax.random.key(0), tolerance=0.5).jitter == 0


def test_a_factor_in_float32_is_refined_to_float64():
    """Each refinement multiplies the residual by about eps times the condition number, 1e-5 here: three of them reach rounding."""
    factor = factorised(lambda: A.astype(np.float32))
    found = refined(factor, B, lambda x: A @ x, 1e-12, np.float64)
    assert found.converged
    assert np.all(residuals(found.value) <= 1e-12)
