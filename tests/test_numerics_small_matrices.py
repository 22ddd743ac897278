"""Inverses inside a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp.numerics.small_matrices import apply_inverse, inverse_factor


@pytest.mark.parametrize("M", [1, 5, 64, 65, 130, 257])
def test_the_inverse_factor_is_that_of_cholesky(M):
    root = np.random.default_rng(M).normal(size=(M, M + 3))
    A = root @ root.T + np.eye(M)
    Phi = np.random.default_rng(0).normal(size=(4, M))
    with jax.enable_x64(True):
        factor = np.asarray(inverse_factor(jnp.asarray(A)))
        smoothed = np.asarray(apply_inverse(jnp.asarray(factor), jnp.asarray(Phi)))
    np.testing.assert_allclose(factor, np.linalg.inv(np.linalg.cholesky(A)), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(smoothed, Phi @ np.linalg.inv(A), rtol=1e-7, atol=1e-9)


def test_there_is_none_of_an_indefinite_matrix():
    for place in (0, 100):
        A = jnp.eye(128).at[place, place].set(-1.0)
        assert jnp.isnan(inverse_factor(A)[-1, -1])
