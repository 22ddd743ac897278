"""Pools of members whose moments are known: draws and covariances of observations, and the standard deviation that a correction leaves."""

import itertools

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import FeatureGPRegressor, GPRegressor, load
from stochgp.data.rows import Rows
from stochgp.distributions import Normal, PITRecalibration
from stochgp.pools.comparing import Comparison
from stochgp.pools.point_mass import ByClass, ConstantDraws
from stochgp.pools.pool import Pool
from stochgp.pools.pool_division import held_out_in_time
from stochgp.pools.pooling import AbstractPooling, Pooling, Predicted

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

    def covariance(self, X, *, include_noise, free):
        return self.C

    def sample_functions(self, n, *, key, budget):
        return ConstantDraws(self.m, n, None)

    def observed(self, functions, X, *, key):
        z = np.random.default_rng(1).standard_normal((len(X), functions.n_samples))
        return functions.at_numbers(X) + np.linalg.cholesky(self.C + 1e-12 * np.eye(len(X))) @ z


class ByRow(AbstractPooling):
    by_row = True

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
    found = pool.covariance(X, include_noise=True, free=0)
    assert_allclose(found, second - np.outer(mean, mean), atol=1e-12)
    assert_allclose(found.diagonal() ** 0.5, pool.mean_and_std(X, include_noise=True)[1])


def test_draws_of_a_hurdle_have_the_covariance_of_its_observations():
    pool, S = Pool(MEMBERS, ByRow()), 40_000
    functions = pool.sample_functions(S, key=jax.random.key(0), budget=None)
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
    level = np.log([0.25, 0.75])
    pool = Pool(MEMBERS, Pooling(level, np.zeros(2)))
    functions = pool.sample_functions(2_000, key=jax.random.key(0), budget=None)
    drawn = pool.observed(functions, X, key=jax.random.key(1))
    of_first = np.asarray(functions.u) < 0.25
    assert_array_equal(abs(drawn) < 1e-4, np.broadcast_to(of_first, drawn.shape))
    found = pool.covariance(X, include_noise=True, free=0)
    assert_allclose(found, 0.75 * (C + 25.0) - 3.75**2, atol=1e-12)


def test_what_decides_is_the_kind_of_the_pooling():
    assert Pooling(np.zeros(1), np.zeros(1)).is_joint and not ByClass(None).is_joint


@pytest.mark.parametrize("members", [MEMBERS[1:], (Member(1.0, C), MEMBERS[1])], ids=len)
def test_the_standard_deviation_of_an_observation_is_that_of_its_corrected_distribution(members):
    pooling = Pooling(np.zeros(len(members)), np.zeros(len(members)))
    pool = Pool(members, pooling, PITRecalibration(2.0, 1.5, 0.1, 500))
    mean, std = pool.mean_and_std(X, include_noise=True)
    assert_allclose(std, pool.distribution(X).std, rtol=1e-12)
    assert_allclose(mean, pool.mean(X))
    plain = Pool(members, pooling)
    assert np.all(std < 0.9 * plain.mean_and_std(X, include_noise=True)[1])
    of_f = pool.mean_and_std(X, include_noise=False)[1]
    assert_allclose(of_f, plain.mean_and_std(X, include_noise=False)[1])


def test_rows_between_blocks_of_time_are_enough_to_correct_probabilities_by():
    for n, expected in ((1_200, 240), (4_000, 400), (20_000, 1_000)):
        rows = Rows(np.zeros((n, 1)), np.zeros(n), None, np.repeat(np.arange(40, dtype=np.int32), n // 40))
        found = held_out_in_time(rows, True, np.random.default_rng(0))
        assert found.single.sum() >= 0.95 * expected * (1 if n > 1_200 else 0.8)


def test_the_best_of_members_is_one_that_no_constant_beats():
    y = np.random.default_rng(0).normal(size=400)
    means = np.stack([y + 5.0, 0.9 * y], axis=1)
    nothing = np.zeros(400)
    predicted = Predicted(np.zeros((400, 2)), means, y, nothing + 1, np.arange(400), nothing, nothing)
    scores = {"sharp": {"nlpd": -1.0}, "right": {"nlpd": 2.0}}
    comparison = Comparison(dict.fromkeys(scores), scores, lambda rows: np.arange(400), mixes=False)
    assert comparison._best_alone(predicted, True).picked.members == [1]
    useless = predicted._replace(mean=means + 9.0)
    assert comparison._best_alone(useless, True).picked.members == [0]


@pytest.fixture(scope="module")
def prices():
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(400, 2))
    return X, np.exp(X[:, 0] + 0.8 * generator.normal(size=400))


def _pool(**settings):
    member = FeatureGPRegressor("linear", epochs=5, likelihood="gaussian")
    return GPRegressor(members={"one": member, "other": member}, random_state=0, **settings)


def test_quantiles_of_positive_skewed_targets_are_positive(prices, tmp_path):
    X, y = prices
    model = _pool().fit(X, y)
    assert model.plan_["positive"]["choice"] is True and "CRPS" in model.plan_["positive"]["why"]
    found = model.predict_distribution(X)
    assert np.all(found.quantile([1e-4, 0.025]) > 0) and np.all(found.logpdf(-0.1) == -np.inf)
    assert np.all(model.predict_interval(X)[:, 0] > 0)
    assert_allclose(model.predict(X, return_std=True, include_noise=True)[1], found.std)
    model.save(tmp_path / "model")
    assert_array_equal(load(tmp_path / "model").predict_interval(X), model.predict_interval(X))
    plain = _pool(target="real").fit(X, y)
    assert "positive" not in plain.plan_ and np.mean(plain.predict_interval(X)[:, 0] < 0) > 0.5
    assert found.crps(y).mean() <= plain.predict_distribution(X).crps(y).mean()


def test_targets_that_are_not_positive_and_skewed_have_no_truncated_distributions(prices):
    X, y = prices
    for other in (y - 1.0, 20 + np.log(y)):
        model = _pool().fit(X, other)
        assert "positive" not in model.plan_ and not model._pooling.positive
