"""Variances from samples: two estimates of each, combined by what each is worth."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from systems import KERNEL, cancelling

from stochgp.likelihoods.noise import known_noise
from stochgp.parameters import cast
from stochgp.posteriors import KernelSystem, SampledKernelPosterior, sample_targets
from stochgp.posteriors.base import variance_of_samples
from stochgp.posteriors.kernel import KernelFunctions, cross
from stochgp.priors import prior_functions
from stochgp.solvers import CG
from tests.posteriors.test_calibration import dense, sampled

pytestmark = pytest.mark.usefixtures("double")
S, SETS = 64, 120


def stated(t):
    return (2 / S) ** 0.5 * (1 - t) / np.sqrt(t**2 + (1 - t) ** 2)


@pytest.mark.parametrize("t", [0.001, 0.02, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999])
def test_its_error_is_the_stated_one(t):
    """Of 20,000 rows with independent samples: the root mean square within 6 %, which is more than four of its standard errors, and a tenth of it is bias at most."""
    generator, v, k = np.random.default_rng(0), 3.0 * t, 3.0
    d, g = (generator.normal(size=(20_000, S)) * np.sqrt(var) for var in (v, k - v))
    error = (
        np.asarray(variance_of_samples(*(jnp.asarray(part) for part in (d, g, np.full(len(d), k))))) / v - 1
    )
    assert_allclose(np.mean(error**2) ** 0.5, stated(t), rtol=0.06)
    assert abs(np.mean(error)) < 0.1 * stated(t)


@functools.cache
def exact_and_sampled():
    """(v and k at rows near to the training rows and far from them, the estimates of many sets of samples)."""
    posterior, (Q, _) = sampled(S), dense()
    Z = np.concatenate([np.random.default_rng(3).uniform(-2, 2, (10, 2)), [[2.5, 0], [3, 1], [4, 0], [9, 9]]])
    held = posterior.system
    across, k = (
        np.asarray(held.kernel.matrix(held.X, jnp.asarray(Z))),
        float(held.kernel.diag(jnp.asarray(Z))[0]),
    )
    found = []
    for seed in range(SETS):
        keys = jax.random.split(jax.random.key(seed), 2)
        prior = prior_functions(held.kernel, 2, S, key=keys[0], n_features=200, dtype=jnp.float64)
        u = Q @ np.asarray(sample_targets(held.operator, prior, held.X, key=keys[1]))
        made = dataclasses.replace(posterior, prior=prior, sample_weights=jnp.asarray(u))
        found.append(np.asarray(made.mean_and_variance(Z)[1]))
    return k - np.sum(across * (Q @ across), axis=0), k, np.array(found)


def test_a_posterior_s_variances_have_the_stated_error():
    """Over sets of samples, within a quarter: they are draws of random features, of which four functions share each set."""
    v, k, found = exact_and_sampled()
    t, error = v / k, np.sqrt(np.mean((found / v - 1) ** 2, axis=0))
    assert t.min() < 0.3 and np.sum(t > 0.6) >= 3
    near = t < 0.9
    assert_allclose(error[near], stated(t)[near], rtol=0.25)
    assert np.all(error[~near] < 0.03)


def test_moments_of_float32_are_summed_in_float64():
    """Weights of rows that come twice are 10⁶ and opposite: mean, residual, samples and functions are those of the same entries in NumPy."""
    rows, W = cancelling()
    system = KernelSystem(
        cast(KERNEL, "float32"), jnp.asarray(rows, jnp.float32), np.ones(len(rows)), known_noise(1e-6), 14
    )
    prior = prior_functions(system.kernel, 2, 2, key=jax.random.key(0), dtype=jnp.dtype(jnp.float32))
    posterior = SampledKernelPosterior(
        system, jnp.asarray(W[:, :1]), 1.0, prior, jnp.asarray(W[:, 1:]), CG(), 1e-3, y=rows[:, 0]
    )
    Z = np.asarray(rows[:7] + 0.1, np.float32)
    across = lambda Z: np.asarray(cross(system.operator, Z)[0], np.float64).T @ W
    mean, _ = posterior.mean_and_variance(Z)
    assert_allclose(mean, across(Z)[:, 0], rtol=1e-4, atol=1e-4)
    assert_allclose(posterior.mean(Z), across(Z)[:, 0], rtol=1e-4, atol=1e-4)
    fitted = rows[:, 0] - 1e-6 * W[:, 0].astype(np.float64) - posterior.residual
    assert_allclose(fitted, across(rows.astype(np.float32))[:, 0], rtol=1e-4, atol=1e-4)
    functions = KernelFunctions(system.operator, prior, system.operator.pad(jnp.asarray(W[:, 1:])))
    drawn = np.asarray(prior(jnp.asarray(Z)))[:, :2]
    assert_allclose(functions(jnp.asarray(Z)) - drawn, across(Z)[:, 1:], rtol=1e-4, atol=1e-4)


def test_far_from_all_rows_it_is_the_prior_s():
    posterior = sampled(8)
    Z = np.full((3, 2), 1e4)
    assert_allclose(
        posterior.mean_and_variance(Z)[1], posterior.system.kernel.diag(jnp.asarray(Z)), rtol=1e-12
    )
