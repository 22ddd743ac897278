"""Partial Cholesky factorisations and the preconditioner made of one, against dense NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix

from stochgp import kernels
from stochgp.operators import KernelOperator
from stochgp.solvers.preconditioners import low_rank_plus_neighbours, partial_cholesky

N, RANK = 60, 20
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
NOISE = RNG.uniform(0.01, 0.1, size=N)
KERNEL = kernels.Matern32(lengthscale=0.7, variance=1.5)


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def operator(kernel=KERNEL, rows=X, noise=0.1, dtype=jnp.float64):
    return KernelOperator.of(kernel, jnp.asarray(rows, dtype), jnp.asarray(noise, dtype), tile=25)


def dense(kernel=KERNEL, rows=X):
    return np.asarray(matrix(kernel, jnp.asarray(rows), jnp.asarray(rows)))


def test_what_is_left_is_positive_and_zero_at_the_pivots(key):
    K, found = dense(), partial_cholesky(operator(), RANK, key=key)
    left = K - found[0].T @ found[0]
    pivots = found[1]
    assert len(set(pivots)) == RANK and pivots.min() >= 0
    assert np.abs(left[pivots]).max() < 1e-10
    assert np.linalg.eigvalsh(left)[0] > -1e-10
    np.testing.assert_allclose(found[2], left.diagonal(), atol=1e-10)


@pytest.mark.parametrize("seed", [1, 3])
def test_pivots_end_where_float32_leaves_rounding(seed):
    """A smooth kernel of 2,000 rows has some 500 eigenvalues above rounding: no diagonal entry of FᵀF is larger than K's by more than 256 eps."""
    rows = np.random.default_rng(seed).normal(size=(2000, 4))
    op = operator(kernels.RBF(lengthscale=2.0), rows, dtype=jnp.float32)
    found = partial_cholesky(op.astype(jnp.float32), 1000, key=jax.random.key(seed))
    assert 400 < len(found[1]) < 600
    assert np.sum(found[0] ** 2, axis=0).max() < 1 + 256 * np.finfo(np.float32).eps


def test_all_rows_as_pivots_give_the_matrix(key):
    found = partial_cholesky(operator(), N, key=key)
    np.testing.assert_allclose(found[0].T @ found[0], dense(), atol=1e-8)
    assert sorted(found[1]) == list(range(N))


def test_random_pivots_have_the_distribution_of_drawing_one_after_the_other():
    """The probability of a pair (i, j) in order is K_ii/tr K · S_jj/tr S with S the Schur complement of i; 4 standard errors."""
    rows, n = np.array([[0.0], [0.1], [0.5], [3.0]]), 400
    K = dense(rows=rows)
    op = operator(rows=rows)
    pairs = np.array([partial_cholesky(op, 2, key=key)[1] for key in jax.random.split(jax.random.key(1), n)])
    for i in range(4):
        S = K - np.outer(K[i], K[i]) / K[i, i]
        for j in range(4):
            p = 0.0 if i == j else K[i, i] / np.trace(K) * S[j, j] / np.trace(S)
            share = np.mean((pairs[:, 0] == i) & (pairs[:, 1] == j))
            assert abs(share - p) <= 4 * np.sqrt(p * (1 - p) / n) + 1e-12


def test_repeated_rows_in_float32_are_no_pivots_twice(key):
    rows = np.repeat(X[:10], 6, axis=0)
    found = partial_cholesky(operator(rows=rows, dtype=jnp.float32), RANK, key=key)
    assert found[0].shape == (10, N) and np.all(np.isfinite(found[0]))
    np.testing.assert_allclose(found[0].T @ found[0], dense(rows=rows), atol=1e-5)


@pytest.mark.parametrize("rank", [0, N + 1])
def test_a_rank_that_is_not_one_is_refused(key, rank):
    with pytest.raises(ValueError, match="rank"):
        partial_cholesky(operator(), rank, key=key)


def test_the_inverse_of_low_rank_plus_diagonal():
    F, V = RNG.normal(size=(7, N)), RNG.normal(size=(N, 3))
    wanted = np.linalg.solve(F.T @ F + np.diag(NOISE), V)
    op = operator(noise=NOISE)
    found = low_rank_plus_neighbours(op, F, 0, (0,))
    np.testing.assert_allclose(op.unpad(found.solve(op.pad(jnp.asarray(V)))), wanted, rtol=1e-9, atol=1e-9)


def test_the_inverse_is_positive_definite_at_a_condition_number_of_ten_to_the_twelve():
    F, s2 = 1e3 * np.linalg.qr(RNG.normal(size=(N, 7)))[0].T, 1e-6
    inside = F[0] / 1e3
    found = low_rank_plus_neighbours(operator(noise=np.full(N, s2)), F, 0, (0,))
    inverse = np.asarray(found.solve(jnp.eye(found.root.shape[0])))[:N, :N]
    assert np.linalg.eigvalsh((inverse + inverse.T) / 2)[0] > 0
    np.testing.assert_allclose(inside @ inverse @ inside, 1 / (1e6 + s2), rtol=1e-2)
