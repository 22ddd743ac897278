"""The preconditioner of low rank and neighbours, against dense NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix

from stochgp import kernels
from stochgp.neighbours import earlier_rows
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator
from stochgp.solvers import CG, solve
from stochgp.solvers.preconditioners import low_rank_plus_neighbours, partial_cholesky

N, RANK, SEED = 61, 10, (3, 4)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
NOISE = RNG.uniform(0.01, 0.1, size=N)
KERNEL = kernels.Matern32(lengthscale=0.7, variance=1.5)


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def operator(kernel=KERNEL, dtype=jnp.float64):
    return KernelOperator.of(kernel, jnp.asarray(X, dtype), jnp.asarray(NOISE, dtype), tile=25)


def gram(kernel=KERNEL):
    return np.asarray(matrix(kernel, jnp.asarray(X), jnp.asarray(X)))


def low_rank(rank, kernel=KERNEL):
    return partial_cholesky(operator(kernel), rank, key=jax.random.key(0))[0] if rank else np.zeros((0, N))


def inverse(found):
    """P⁻¹ of the N rows."""
    return np.asarray(found.solve(jnp.eye(found.root.shape[0])))[:N, :N]


def by_the_book(F, m, damping=0.0):
    """P: regressions of every row on its neighbours under the covariance that F leaves, one after the other; `damping` is beside the noise."""
    order = np.random.default_rng(SEED).permutation(N)
    near = earlier_rows(KERNEL, X, order, np.arange(N), m)
    left = gram() - F.T @ F + np.diag(NOISE + damping)
    U, V = np.eye(N), np.empty(N)
    for i, beside in zip(order, near, strict=True):
        c = beside[beside >= 0]
        b = np.linalg.solve(left[np.ix_(c, c)], left[c, i])
        U[i, c], V[i] = -b, left[i, i] - left[i, c] @ b
    return F.T @ F + np.linalg.inv(U.T @ np.diag(1 / V) @ U)


@pytest.mark.parametrize(("rank", "m"), [(0, 5), (RANK, 5), (RANK, 1)])
def test_it_is_the_inverse_of_low_rank_plus_regressions_on_earlier_neighbours(rank, m):
    F = low_rank(rank)
    found = inverse(low_rank_plus_neighbours(operator(), F.copy(), m, SEED))
    np.testing.assert_allclose(found @ by_the_book(F, m), np.eye(N), atol=1e-6)


@pytest.mark.parametrize(("rank", "share"), [(0, 0.0), (RANK, 0.5), (RANK, None)])
def test_conjugate_gradients_damp_it_by_a_share_of_what_is_left(rank, share):
    """Of rank 0 all is left to the neighbours: nothing is added. The usual share is 0.2."""
    rank_key, order_key = jax.random.split(jax.random.key(1))
    solver = CG(rank=rank, neighbours=5, damping=share)
    made = solver.constants(operator(), key=jax.random.key(1))
    found = partial_cholesky(operator(), rank, key=rank_key) if rank else None
    F = np.zeros((0, N)) if found is None else found[0]
    added = 0.0 if found is None else (0.2 if share is None else share) * found[2].mean()
    same = low_rank_plus_neighbours(operator(), F.copy(), 5, words_of(order_key), added)
    np.testing.assert_array_equal(inverse(made), inverse(same))
    damped = inverse(low_rank_plus_neighbours(operator(), F.copy(), 5, SEED, added))
    np.testing.assert_allclose(damped @ by_the_book(F, 5, added), np.eye(N), atol=1e-6)


@pytest.mark.parametrize("rank", [0, RANK])
def test_with_all_earlier_rows_as_neighbours_it_is_the_matrix_itself(rank):
    found = low_rank_plus_neighbours(operator(), low_rank(rank), N - 1, SEED)
    np.testing.assert_allclose(inverse(found) @ (gram() + np.diag(NOISE)), np.eye(N), atol=1e-6)


def test_of_full_rank_it_is_the_matrix_itself_whatever_the_neighbours():
    found = low_rank_plus_neighbours(operator(), low_rank(N), 2, SEED)
    np.testing.assert_allclose(inverse(found) @ (gram() + np.diag(NOISE)), np.eye(N), atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    "kernel",
    [KERNEL, kernels.RBF(lengthscale=2.0) + kernels.Matern12(lengthscale=0.2), kernels.RBF(lengthscale=20.0)],
)
def test_it_is_symmetric_and_positive_definite_also_where_what_is_left_is_rounding(kernel, dtype):
    op = operator(kernel, dtype)
    F = partial_cholesky(op, RANK, key=jax.random.key(0))[0]
    P = inverse(low_rank_plus_neighbours(op, F, 8, SEED))
    np.testing.assert_allclose(P, P.T, rtol=1e-9, atol=1e-9 * np.abs(P).max())
    assert np.linalg.eigvalsh(P)[0] > 0


def test_rows_that_fill_the_last_tile_stay_zero():
    op = operator()
    assert op.padded > N
    found = low_rank_plus_neighbours(op, low_rank(RANK), 5, SEED)
    solved = np.asarray(found.solve(op.pad(jnp.ones((N, 2)))))
    assert np.all(solved[N:] == 0)


def test_conjugate_gradients_reach_the_dense_solution_in_fewer_steps_than_by_low_rank_alone():
    y = np.sin(2 * X[:, :1])
    wanted = np.linalg.solve(gram() + np.diag(NOISE), y)
    taken = {}
    for m in (0, 8):
        found = solve(
            operator(), jnp.asarray(y), CG(rank=RANK, neighbours=m), key=jax.random.key(0), tolerance=1e-6
        )
        np.testing.assert_allclose(np.asarray(found.value), wanted, atol=1e-3)
        taken[m] = found.n_steps
    assert taken[8] < taken[0] / 2
