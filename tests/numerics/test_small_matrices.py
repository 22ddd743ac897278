"""Inverses and products inside a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp.numerics.linalg import inverse_factor, safe_inverse_factor, whiten

_inverse_factor = jax.jit(inverse_factor)


@pytest.mark.parametrize("M", [1, 5, 64, 65, 130, 257, 601])
def test_the_inverse_factor_is_that_of_cholesky(M):
    root = np.random.default_rng(M).normal(size=(M, M + 3))
    A = root @ root.T + np.eye(M)
    Phi = np.random.default_rng(0).normal(size=(4, M))
    with jax.enable_x64(True):
        factor = np.asarray(_inverse_factor(A))
        smoothed = Phi @ factor.T @ factor
    np.testing.assert_allclose(factor, np.linalg.inv(np.linalg.cholesky(A)), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(smoothed, Phi @ np.linalg.inv(A), rtol=1e-7, atol=1e-9)


def test_there_is_none_of_an_indefinite_matrix():
    for n in (128, 601):
        for place in (0, 100, n - 1):
            A = np.eye(n, dtype=np.float32)
            A[place, place] = -1.0
            assert np.isnan(_inverse_factor(A)[-1, -1])


@pytest.mark.parametrize("n", [5, 300])
def test_whitening_has_the_derivatives_of_a_solve(n, double):
    rng = np.random.default_rng(0)
    root, K, G = rng.normal(size=(n, n + 3)), rng.normal(size=(n, 7)), rng.normal(size=(n, 7))
    A, K, G = jnp.asarray(root @ root.T / n + np.eye(n)), jnp.asarray(K), jnp.asarray(G)
    solved = lambda A, K: jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(A), K, lower=True)

    @jax.jit
    def gradients(A, K):
        inverse, _ = safe_inverse_factor(A)
        whitened = lambda A, K: whiten(inverse, A, K)
        return [
            jax.grad(lambda A, K, of=of: jnp.sum(G * of(A, K)), (0, 1))(A, K) for of in (whitened, solved)
        ]

    for found, wanted in zip(*gradients(A, K), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)
