"""Estimated log-determinants: against dense values within their standard errors, and exactly where nothing is random."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix

from stochgp import kernels
from stochgp.data.rows import Data
from stochgp.models import KernelGP
from stochgp.objectives.kernel import nlml
from stochgp.objectives.slq import Root, log_determinant, nlml_estimate
from stochgp.operators import KernelOperator
from stochgp.parameters import frozen

N, D = 400, 3
N_SE = 4.0


pytestmark = pytest.mark.usefixtures("double")


@functools.cache
def make_problem(s2, dtype="float32"):
    """(operator, dense A in float64)."""
    with jax.enable_x64(True):
        X = np.random.default_rng(0).normal(size=(N, D))
        kernel = kernels.Matern32([0.7, 1.0, 1.5], 2.0)
        operator = KernelOperator.of(kernel, jnp.asarray(X, dtype), s2, tile=150)
        return operator, np.asarray(matrix(kernel, jnp.asarray(X), jnp.asarray(X))) + s2 * np.eye(N)


@pytest.mark.parametrize("s2", [0.1, 1e-4])
@pytest.mark.parametrize("rank", [0, None])
def test_it_is_within_its_standard_errors_of_the_dense_value(s2, rank):
    operator, A = make_problem(s2)
    exact = np.linalg.slogdet(A)[1]
    steps = 60 if rank == 0 and s2 < 0.01 else 25
    found = [log_determinant(operator, key=jax.random.key(i), rank=rank, n_steps=steps) for i in range(5)]
    value = np.mean([f.value for f in found])
    stderr = np.sqrt(np.mean([f.stderr**2 for f in found]) / len(found))
    assert 0 < stderr < 0.05 * N
    assert abs(value - exact) < N_SE * stderr + 1e-3


@pytest.mark.long
def test_the_standard_error_is_that_of_the_estimates():
    operator, _ = make_problem(0.1)
    found = [log_determinant(operator, key=jax.random.key(i), n_probes=4) for i in range(60)]
    spread = np.std([f.value for f in found], ddof=1)
    stated = np.sqrt(np.mean([f.stderr**2 for f in found]))
    assert abs(spread / stated - 1) < N_SE * np.sqrt(
        1 / 120 + 1 / 360
    )  # of a ratio of two standard deviations


def test_the_root_is_a_root():
    generator = np.random.default_rng(1)
    F, diagonal = generator.normal(size=(4, 9)), generator.uniform(0.5, 2, 9)
    P = F.T @ F + np.diag(diagonal)
    root = Root.of(F, diagonal)
    inverse = np.asarray(jax.vmap(root.solve, 1, 1)(jnp.eye(9)))
    np.testing.assert_allclose(inverse @ P @ inverse.T, np.eye(9), atol=1e-12)
    np.testing.assert_allclose(
        np.asarray(jax.vmap(root.solve_transposed, 1, 1)(jnp.eye(9))), inverse.T, atol=1e-14
    )
    np.testing.assert_allclose(root.log_determinant, np.linalg.slogdet(P)[1])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_estimated_nlml_is_near_the_exact_one(weighted):
    generator = np.random.default_rng(2)
    X, y = generator.normal(size=(N, D)), generator.normal(size=N)
    rho = generator.uniform(0.5, 2, N) if weighted else np.ones(N)
    gp = KernelGP(kernels.Matern32([0.7, 1.0, 1.5], 2.0), frozen(jnp.asarray(0.2)))
    operator = KernelOperator.of(gp.kernel, jnp.asarray(X, jnp.float32), jnp.asarray(0.2 / rho))
    A = np.asarray(operator.dense(), np.float64)
    alpha = np.linalg.solve(A, y) * (1 + 1e-3 * generator.normal(size=N))  # the error shows in second order
    explained = float(y @ alpha)
    found = nlml_estimate(operator, explained, jnp.asarray(alpha[:, None]), key=jax.random.key(0), weight=rho)
    assert abs(found.value - nlml(gp, Data(X, y, rho))) < N_SE * found.stderr + 1e-4
