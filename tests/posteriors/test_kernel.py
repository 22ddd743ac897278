"""Variances from near rows, and means of cancelling weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from systems import KERNEL, cancelling

from stochgp.kernels import Matern32
from stochgp.kernels import dense as dense_kernels
from stochgp.likelihoods.noise import known_noise
from stochgp.parameters import cast
from stochgp.posteriors import ExactKernelPosterior, KernelSystem, SampledKernelPosterior
from stochgp.posteriors import exact as exact_module
from stochgp.posteriors.kernel import KernelFunctions, with_information
from stochgp.priors import prior_functions
from stochgp.solvers import CG
from tests.posteriors.test_calibration import ONES, WEIGHTS, N, exact, sampled

pytestmark = pytest.mark.usefixtures("double")
AT = np.concatenate([np.random.default_rng(3).uniform(-2, 2, (10, 2)), [[2.5, 0], [3, 1], [4, 0], [9, 9]]])


@pytest.mark.parametrize("count", [ONES, WEIGHTS])
def test_given_all_rows_variances_are_exact_whatever_the_solver_left(count):
    made = sampled(count)
    near = made.near.moments(AT, N)
    wanted = exact(count).mean_and_variance(AT)[1]
    assert_allclose(with_information(near, 1.0), wanted, rtol=1e-4)


def test_more_information_makes_variances_smaller_but_not_those_far_from_all_rows():
    posterior = sampled()
    near = posterior.near.moments(np.concatenate([AT, [[1e4, 1e4]]]), 6)
    once, twice = (with_information(near, tau) for tau in (1.0, 2.0))
    assert np.all(twice <= once) and np.all(once <= 1.3 * (1 + 1e-6))
    assert_allclose(once, near[1], rtol=1e-12)
    assert np.all(twice[:10] < 0.9 * once[:10])
    assert_allclose(twice[-1], 1.3, rtol=1e-6)


def many(n_rows=600):
    """Rows of 2 inputs, of which 48 tell less than all, and the exact variances at other places."""
    generator = np.random.default_rng(0)
    X, Z = generator.uniform(-2, 2, (n_rows, 2)), generator.uniform(-2.5, 2.5, (200, 2))
    y = np.sin(X[:, 0]) + generator.normal(size=n_rows)
    held = KernelSystem(Matern32([2.0, 2.0], 1.0), jnp.asarray(X), np.ones(n_rows), known_noise(1.0), 64)
    alpha = jnp.asarray(np.linalg.solve(np.asarray(held.operator.dense()), y)[:, None])
    return ExactKernelPosterior(held, alpha, 1.0, y), Z


@pytest.mark.parametrize("solved", ["by a factor", "by steps"])
def test_information_makes_variances_of_near_rows_right_on_average(solved, monkeypatch):
    """The mean logarithm of their ratio to exact ones is within 0.03 at new rows, and was more than 0.07; the τ is that of the left-out rows."""
    posterior, Z = many()
    wanted = posterior.mean_and_variance(Z)[1]
    monkeypatch.setattr(exact_module, "EXACT_ROWS", 100)
    if solved == "by steps":
        parts = posterior.system, posterior.weights, 1.0, CG(), 1e-9, posterior.y
        posterior = SampledKernelPosterior(*parts, np.zeros(len(posterior.y)))
    plain = posterior.mean_and_variance(Z)[1]
    assert np.mean(np.log(plain / wanted)) > 0.07 and np.all(plain > wanted * (1 - 1e-4))
    made = posterior.with_information()
    assert abs(np.mean(np.log(made.mean_and_variance(Z)[1] / wanted))) < 0.03
    rows = np.arange(len(posterior.y))
    left = made.left_out_variances(rows) - 1.0
    right = 1 / np.diag(np.linalg.inv(np.asarray(made.system.operator.dense()))) - 1.0
    assert abs(np.mean(np.log(left / right))) < 0.03


def test_a_single_row_tells_its_own_variance():
    held = KernelSystem(Matern32(1.0, 1.0), jnp.zeros((1, 1)), np.ones(1), known_noise(0.25), 64)
    posterior = SampledKernelPosterior(held, jnp.ones((1, 1)), 1.0, CG(), 1e-9, np.ones(1), np.zeros(1))
    assert posterior.with_information().information == 1.0
    assert posterior.calibrated()[1] == 1.0
    assert_allclose(posterior.mean_and_variance(np.zeros((1, 1)))[1], 1 - 1 / 1.25, rtol=1e-5)


def test_isolated_rows_have_no_information_to_multiply():
    X = 100.0 * np.arange(200)[:, None]
    held = KernelSystem(Matern32(1.0, 1.0), jnp.asarray(X), np.ones(200), known_noise(0.25), 64)
    parts = held, jnp.ones((200, 1)), 1.0, CG(), 1e-9, X[:, 0], np.zeros(200)
    posterior = SampledKernelPosterior(*parts).with_information()
    assert_allclose(posterior.mean_and_variance(X[:3] + 50.0)[1], 1.0, rtol=1e-6)


def test_moments_of_float32_are_summed_in_float64():
    """Weights of rows that come twice are 10⁶ and opposite: mean and functions are those of the same entries in NumPy."""
    rows, W = cancelling()
    system = KernelSystem(
        cast(KERNEL, "float32"), jnp.asarray(rows, jnp.float32), np.ones(len(rows)), known_noise(1e-6), 14
    )
    prior = prior_functions(system.kernel, 2, 2, key=jax.random.key(0), dtype=jnp.dtype(jnp.float32))
    posterior = SampledKernelPosterior(
        system, jnp.asarray(W[:, :1]), 1.0, CG(), 1e-3, rows[:, 0], np.zeros(len(rows))
    )
    Z = np.asarray(rows[:7] + 0.1, np.float32)
    across = lambda Z: dense_kernels.block(system.kernel, Z, np.asarray(system.X)).astype(np.float64) @ W
    mean, _ = posterior.mean_and_variance(Z)
    assert_allclose(mean, across(Z)[:, 0], rtol=1e-4, atol=1e-4)
    assert_allclose(posterior.mean(Z), across(Z)[:, 0], rtol=1e-4, atol=1e-4)
    functions = KernelFunctions(system.operator, prior, system.operator.pad(jnp.asarray(W[:, 1:])))
    drawn = np.asarray(prior(jnp.asarray(Z)))[:, :2]
    assert_allclose(functions(jnp.asarray(Z)) - drawn, across(Z)[:, 1:], rtol=1e-4, atol=1e-4)
