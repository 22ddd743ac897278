"""Pools of members whose moments are known: draws, covariances and standard deviations of observations."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp.distributions import Normal
from stochgp.pools.pool import Pool
from stochgp.pools.targets import Hurdle
from stochgp.pools.weights import PoolWeights

C = np.array([[4.0, 1.5, 0.0], [1.5, 2.0, 0.3], [0.0, 0.3, 1.0]])  # of observations
X = np.zeros((3, 1))


class Member:
    """Observations N(mean, C)."""

    encoder = seen = None

    def __init__(self, mean, C):
        self.m, self.C = mean, C

    def mean(self, X):
        return np.full(len(X), self.m)

    def mean_and_std(self, X, *, include_noise):
        return self.mean(X), np.sqrt(self.C.diagonal())

    def distribution(self, X):
        return Normal(*self.mean_and_std(X, include_noise=True))

    def covariance(self, X, *, include_noise):
        return self.C

    def sample_functions(self, n, *, key):
        return Hurdle(self.m, 1.0, n_samples=n)

    def observed(self, functions, X, *, key):
        z = np.random.default_rng(1).standard_normal((len(X), functions.n_samples))
        return functions.at_numbers(X) + np.linalg.cholesky(self.C + 1e-12 * np.eye(len(X))) @ z


class ByRow:
    is_joint = positive = calibration = False

    def weights(self, X):
        return np.array([[0.3, 0.7], [0.6, 0.4], [0.9, 0.1]])


MEMBERS = Member(0.0, np.zeros((3, 3))), Member(5.0, C)


def test_of_a_hurdle_observations_have_indicators_that_are_independent_from_row_to_row():
    w, means, covariances = ByRow().weights(X), (0.0, 5.0), (np.zeros((3, 3)), C)
    mean, second = np.zeros(3), np.zeros((3, 3))
    for which in itertools.product(range(2), repeat=3):
        p = np.prod(w[range(3), which])
        m = np.take(means, which)
        same = np.equal.outer(which, which)
        within = np.where(same, np.choose(which, covariances), 0.0)
        mean += p * m
        second += p * (np.outer(m, m) + within)
    pool = Pool(MEMBERS, ByRow())
    found = pool.covariance(X, include_noise=True)
    assert_allclose(found, second - np.outer(mean, mean), atol=1e-12)
    assert_allclose(found.diagonal() ** 0.5, pool.mean_and_std(X, include_noise=True)[1])


def test_draws_of_a_hurdle_have_the_covariance_of_its_observations():
    pool, S = Pool(MEMBERS, ByRow()), 40_000
    functions = pool.sample_functions(S, key=jax.random.key(0))
    drawn = pool.observed(functions, X, key=jax.random.key(1))
    other = ByRow().weights(X)[:, 1]
    expected = np.outer(other, other) * C  # of different rows
    expected[np.diag_indices(3)] = pool.mean_and_std(X, include_noise=True)[1] ** 2
    d = drawn - pool.mean(X)[:, None]
    errors = np.std(d[:, None] * d[None], axis=2) / S**0.5
    assert np.all(abs(np.mean(d[:, None] * d[None], axis=2) - expected) < 4 * errors + 1e-12)
    assert_array_equal(drawn, pool.observed(functions, X, key=jax.random.key(1)))
    of_f = functions.at_numbers(X)
    assert np.all((of_f == 0) == (functions.u < ByRow().weights(X)[:, [0]]))


def test_of_an_ordinary_pool_one_member_has_the_observations_of_all_rows():
    pool = Pool(MEMBERS, PoolWeights(["a", "b"], np.array([0.25, 0.75]), ""))
    assert pool.pooling.is_joint and not Hurdle.is_joint
    functions = pool.sample_functions(2_000, key=jax.random.key(0))
    drawn = pool.observed(functions, X, key=jax.random.key(1))
    of_first = np.asarray(functions.u) < 0.25
    assert_array_equal(abs(drawn) < 1e-4, np.broadcast_to(of_first, drawn.shape))
    found = pool.covariance(X, include_noise=True)
    assert_allclose(found, 0.75 * (C + 25.0) - 3.75**2, atol=1e-12)


@pytest.mark.parametrize("members", [MEMBERS[1:], (Member(0.5, C), MEMBERS[1])], ids=len)
def test_the_standard_deviation_of_an_observation_is_that_of_its_truncated_distribution(members):
    names, w = [*"ab"][: len(members)], np.full(len(members), 1 / len(members))
    pooling = PoolWeights(names, w, "")
    pool = Pool(members, replace(pooling, positive=True))
    mean, std = pool.mean_and_std(X, include_noise=True)
    assert_allclose(std, pool.distribution(X).std, rtol=1e-12)
    assert_allclose(mean, pool.mean(X))
    plain = Pool(members, pooling)
    assert np.all(std != plain.mean_and_std(X, include_noise=True)[1])
    of_f = pool.mean_and_std(X, include_noise=False)[1]
    assert_allclose(of_f, plain.mean_and_std(X, include_noise=False)[1])
