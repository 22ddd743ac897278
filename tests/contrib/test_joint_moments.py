"""Means and covariances of sets of rows, and their slopes, against the posteriors' own and against differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from stochgp.contrib.joint_predictions import moments_of, pull, values
from tests.posteriors.test_contract import BY_SOLVING, GLOBAL, D, local, made

pytestmark = pytest.mark.usefixtures("double")
_generator = np.random.default_rng(4)
Z = _generator.uniform(-2, 2, (3, 4, D))
FAR = Z + 50.0
_drawn = eqx.filter_jit(lambda functions, rows: functions(rows))


@pytest.mark.parametrize("name", GLOBAL)
def test_moments_of_sets_are_those_of_the_posterior(name):
    posterior, moments = made(name), moments_of(made(name))
    functions = posterior.functions(64, key=jax.random.key(0)) if name in BY_SOLVING else None
    for sets in (Z, FAR):
        mean, covariance = values(moments, sets)
        assert mean.shape == (3, 4) and covariance.shape == (3, 4, 4)
        wanted = (np.reshape(part, (3, 4)) for part in posterior.mean_and_variance(sets.reshape(-1, D)))
        for rows, m, C, expected, variance in zip(sets, mean, covariance, *wanted, strict=True):
            assert_allclose(m, expected, rtol=1e-7, atol=1e-8)
            assert np.linalg.eigvalsh(C).min() > -1e-9
            if functions is not None:
                drawn = np.asarray(_drawn(functions, jnp.asarray(rows))) - expected[:, None]
                assert_allclose(C, drawn @ drawn.T / 64, rtol=1e-6, atol=1e-8)
            else:
                assert_allclose(np.diagonal(C), variance, rtol=1e-6, atol=1e-8)
                assert_allclose(C, posterior.covariance(rows), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", GLOBAL)
def test_slopes_are_differences(name):
    """Of a random linear function of means and covariances, not symmetric in the latter."""
    moments = moments_of(made(name))
    by_mean, by_covariance = _generator.normal(size=(3, 4)), _generator.normal(size=(3, 4, 4))

    def total(sets):
        mean, covariance = values(moments, sets)
        return np.sum(by_mean * mean) + np.sum(by_covariance * covariance)

    slope = pull(moments, Z, by_mean, by_covariance)
    assert slope.shape == Z.shape
    for place in [(0, 0, 0), (1, 2, 1), (2, 3, 0)]:
        step = np.zeros_like(Z)
        step[place] = 1e-5
        assert_allclose(slope[place], (total(Z + step) - total(Z - step)) / 2e-5, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BY_SOLVING)
def test_a_set_does_not_depend_on_the_others(name):
    moments = moments_of(made(name))
    mean, covariance = values(moments, Z)
    alone = values(moments, Z[1:2])
    assert_allclose(alone[0][0], mean[1], rtol=1e-12)
    assert_allclose(alone[1][0], covariance[1], rtol=1e-10, atol=1e-14)


def test_posteriors_without_covariances_are_refused():
    with pytest.raises(ValueError, match="has no covariances between rows"):
        moments_of(local())
