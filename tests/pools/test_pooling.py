"""Weights of pools are those of the highest score, and what they promise of rows near and far."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose
from scipy.special import logsumexp, softmax

from stochgp.data import Standardiser
from stochgp.data.model_rows import ModelRows
from stochgp.distributions import Normal
from stochgp.likelihoods import Gaussian, constant_noise
from stochgp.observations import Dispersion, Observation
from stochgp.pools.pooling import (
    LEAST_OF_ANY,
    Distance,
    Pooling,
    Predicted,
    between,
    chosen,
    column_of_time,
    distance_of,
    fitted_weights,
    limited,
    log_density_of_wider,
    near_and_far,
    scores,
    width,
)

R = 600
GENERATOR = np.random.default_rng(0)


def gaussian(y, mean, std):
    return -0.5 * np.log(2 * np.pi * std**2) - 0.5 * ((y - mean) / std) ** 2


def predicted(means, stds, y, distance=None):
    logp = np.stack([gaussian(y, m, s) for m, s in zip(means, stds, strict=True)], axis=1)
    mean = np.stack([np.broadcast_to(m, y.shape) for m in means], axis=1)
    cell = np.arange(len(y)) % 64
    distance = np.zeros(len(y)) if distance is None else distance
    return Predicted(logp, mean, y, np.ones(len(y)), cell, distance, np.full(len(y), y.mean()))


def two_experts(errors=(0.5, 0.6), n=R):
    """Members whose errors are independent: their mean is better than either."""
    f = GENERATOR.normal(size=n)
    members = [f + s * GENERATOR.normal(size=n) for s in errors]
    return predicted(members, [np.hypot(s, 0.1) for s in errors], f + 0.1 * GENERATOR.normal(size=n))


def test_weights_are_the_optimum_of_densities_and_means():
    """Against a minimiser that knows no gradient."""
    found = two_experts()

    def loss(a):
        w = softmax([0.0, a])
        log_density, mean = np.asarray(logsumexp(found.log_density + np.log(w), axis=1)), found.mean @ w
        return -np.mean(scores(log_density, mean, found.y, found.weight))

    best: Any = scipy.optimize.minimize_scalar(
        loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}
    )
    level, slope = fitted_weights(found, False)
    assert_allclose(level, [0.0, best.x], atol=1e-4)
    assert not slope.any()


def test_gradients_are_differences(monkeypatch):
    found = two_experts()._replace(distance=GENERATOR.normal(size=R), weight=GENERATOR.uniform(0.5, 2, R))
    seen: list[Any] = []
    monkeypatch.setattr(
        scipy.optimize, "minimize", lambda loss, start, **_: seen.append(loss) or _Found(start)
    )
    fitted_weights(found, True)
    at = np.array([0.3, -0.7])
    gradient = seen[0](at)[1]
    differences = [(seen[0](at + h)[0] - seen[0](at - h)[0]) / 2e-6 for h in 1e-6 * np.eye(2)]
    assert_allclose(gradient, differences, rtol=1e-6)


class _Found:
    def __init__(self, x):
        self.x = x


def test_a_row_of_weight_2_counts_as_two():
    found = two_experts()
    weight = GENERATOR.integers(1, 3, R).astype(float)
    twice = np.repeat(np.arange(R), weight.astype(int))
    weighted = fitted_weights(found._replace(weight=weight), False)
    assert_allclose(weighted[0], fitted_weights(found.some(twice), False)[0], atol=1e-5)


def test_a_pool_of_independent_members_stays_and_beats_both():
    picked = chosen(two_experts(), ["a", "b"], by_distance=True)
    assert picked.members == [0, 1] and not picked.slope.any()
    found = two_experts(n=20_000)
    w = softmax(picked.level)
    pool = np.mean(
        scores(
            np.asarray(logsumexp(found.log_density + np.log(w), axis=1)),
            found.mean @ w,
            found.y,
            found.weight,
        )
    )
    singles = [
        np.mean(scores(found.log_density[:, k], found.mean[:, k], found.y, found.weight)) for k in range(2)
    ]
    assert pool > max(singles) + 0.02


def test_a_member_that_says_nothing_is_left_out():
    """Its predictions are those of the other with noise: no weight, or the other alone."""
    y = GENERATOR.normal(size=R)
    good = y + 0.1 * GENERATOR.normal(size=R)
    picked = chosen(
        predicted([good, good + GENERATOR.normal(size=R)], [0.1, 1.1], y), ["good", "bad"], by_distance=True
    )
    assert picked.members == [0] and picked.average.tolist() == [1.0]


def test_a_member_whose_mean_is_clearly_worse_than_a_constant_has_no_weight():
    """Its density is the best: it alone knows how the errors of each row are spread, as a logarithm does of counts that are often 0."""
    s = np.exp(GENERATOR.normal(size=R))
    f = GENERATOR.normal(size=R)
    y = f + s * GENERATOR.normal(size=R)
    far = np.where(np.arange(R) % 50 == 0, 60.0, 2.0)
    found = predicted([y.mean() + far, f, y.mean() - far], [s, np.full(R, 2.0), s], y)
    logp = gaussian(y, f, s)
    found = found._replace(log_density=np.stack([logp, found.log_density[:, 1], logp], axis=1))
    assert found.informative() == [1]
    picked = chosen(found, ["a", "b", "c"], by_distance=True)
    assert picked.members == [1]
    of_bad = found.of([0, 2])
    assert of_bad.informative() == [0, 1], "where a constant beats all, none is left out for it"
    noisy = predicted([y.mean() + 0.1 * GENERATOR.normal(size=R), f], [s, s], y)
    assert noisy.informative() == [0, 1], "worse by chance is not clearly worse"


def test_numbers_of_members_are_those_of_all_that_were_tried():
    found = two_experts()
    bad = np.full((R, 1), 50.0)
    three = found._replace(
        log_density=np.concatenate([found.log_density[:, :1], found.log_density], axis=1),
        mean=np.concatenate([bad, found.mean], axis=1),
    )
    two, picked = (chosen(one, names, by_distance=False) for one, names in ((found, "ab"), (three, "zab")))
    assert picked.members == [k + 1 for k in two.members] == [1, 2]
    assert_allclose(picked.average, two.average)
    assert "1 members predict worse than a constant" in picked.why


def test_weights_follow_the_distance_where_members_are_best_near_and_far():
    distance = np.repeat([-1.0, 1.0], R // 2)
    y = GENERATOR.normal(size=R)
    errors = [np.where(distance < 0, 0.1, 1.0), np.where(distance < 0, 1.0, 0.3)]
    means = [y + s * GENERATOR.normal(size=R) for s in errors]
    picked = chosen(predicted(means, errors, y, distance), ["near", "far"], by_distance=True)
    assert picked.members == [0, 1]
    near, far = (softmax(picked.level + picked.slope * d) for d in (-1.0, 1.0))
    assert near[0] > 0.9 and far[1] > 0.8
    blind = chosen(predicted(means, errors, y, distance), ["near", "far"], by_distance=False)
    assert not blind.slope.any()


def test_near_and_far_rows_have_the_pools_that_each_kind_asks_for():
    """At the low end of the distance and below the weights are those of near rows alone, at the high end those of far ones; log odds are linear between."""
    one, other = two_experts(), two_experts((0.6, 0.5))
    found = Predicted(*(np.concatenate(pair) for pair in zip(one, other, strict=True)))
    far = np.arange(2 * R) >= R
    distance = np.where(far, 1.5, -1.5)
    picked = near_and_far(found._replace(distance=distance), ["a", "b"], far)
    odds = lambda d: np.diff(picked.level + picked.slope * d)[0]
    for rows, d in ((~far, -1.5), (far, 1.5)):
        level = chosen(found.some(rows), ["a", "b"], by_distance=False).level
        assert_allclose(odds(d), np.diff(level)[0], atol=1e-9)
    assert_allclose(odds(0.0), (odds(-1.5) + odds(1.5)) / 2, atol=1e-9)
    assert picked.members == [0, 1] and picked.slope[1] > 0


def test_a_member_of_one_end_alone_has_next_to_nothing_at_the_other():
    y, far = GENERATOR.normal(size=2 * R), np.arange(2 * R) >= R
    errors = [np.where(far, 1.0, 0.1), np.where(far, 0.1, 1.0)]
    means = [y + s * GENERATOR.normal(size=2 * R) for s in errors]
    means, errors = [*means, means[0] + GENERATOR.normal(size=2 * R)], [*errors, np.sqrt(errors[0] ** 2 + 1)]
    found = predicted(means, errors, y, np.where(far, 0.5, -0.5))
    picked = near_and_far(found, ["near", "far", "bad"], far)
    assert picked.members == [0, 1]  # who has no weight at either end is left out
    near, beyond = (softmax(picked.level + picked.slope * d) for d in (-0.5, 0.5))
    assert near[1] <= 1.1 * LEAST_OF_ANY and beyond[0] <= 1.1 * LEAST_OF_ANY
    same = near_and_far(found.of([0, 2]), ["near", "bad"], far)
    assert same.members == [0] and same.average.tolist() == [1.0]


def test_between_are_the_medians_of_both_kinds():
    X, near, far = (
        np.zeros((1, 2)),
        0.1 + GENERATOR.uniform(size=(31, 2)),
        3 + GENERATOR.uniform(size=(31, 2)),
    )
    distance = distance_of(X, np.ones(2), 0)
    found = between(distance, near, far)
    assert found is not None
    logs = [np.median(np.log(np.linalg.norm(rows, axis=1))) for rows in (near, far)]
    assert_allclose([found.low, found.high], logs)
    assert between(distance, far, near) is None


def test_a_column_of_time_alone_measures_distances_in_time():
    time = np.sort(GENERATOR.uniform(0, 100, 60))
    X = np.column_stack([GENERATOR.normal(size=60), time])
    block = np.repeat(np.arange(12), 5)
    some = GENERATOR.permutation(60)
    assert column_of_time(X[some], block[some]) == 1
    assert column_of_time(X[:, :1], block) is None
    years = np.repeat([2020.0, 2021.0, 2022.0], 20)
    assert (
        column_of_time(np.column_stack([np.ones(60), years, time]), block) == 2
    )  # four blocks are of one year
    found = distance_of(X[:50], np.array([1.0, 4.0]), 0, 1)
    wanted = np.log(np.abs(X[50:, 1] - X[49, 1]) / 4)
    assert_allclose(found(X[50:]), wanted, rtol=1e-9)
    assert_allclose(found.joined(X[50:])(X[50:] + [1e9, 0]), np.log(1e-12))


def test_few_rows_take_the_best_member():
    y = GENERATOR.normal(size=60)
    found = predicted([y + 0.5, y + 0.1], [0.5, 0.1], y)
    picked = chosen(found, ["a", "b"], by_distance=True)
    assert picked.members == [1] and "too few" in picked.why


def test_a_member_with_a_density_of_zero_does_not_lose_the_pool():
    found = two_experts()
    found.log_density[:5, 1] = -np.inf
    picked = chosen(found, ["a", "b"], by_distance=True)
    assert 0 in picked.members and np.isfinite(picked.level).all()


@pytest.mark.parametrize("D", [1, 3])
def test_distances_are_those_to_the_nearest_row_within_what_was_held_out(D):
    X, Z, scale = GENERATOR.normal(size=(50, D)), GENERATOR.normal(size=(20, D)), GENERATOR.uniform(1, 3, D)
    distance = Distance(np.ascontiguousarray(X / scale), scale)
    wanted = np.log(np.linalg.norm((Z[:, None] - X) / scale, axis=2).min(axis=1))
    assert_allclose(distance(Z), wanted, rtol=1e-9)
    within = limited(distance, Z)
    far, nearest = within(Z + 1e6), within(X[:1])
    assert_allclose(far - nearest, within.high - within.low)
    pooling = Pooling(np.zeros(2), np.array([0.0, 1.0]), within)
    weights = pooling.weights(Z)
    assert weights.shape == (20, 2)
    assert_allclose(weights.sum(axis=1), 1)
    assert (np.diff(weights[np.argsort(within(Z)), 1]) >= -1e-12).all()


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_a_width_is_that_of_the_highest_density_and_at_least_one(factor):
    """Errors of variance `factor` times what is said, in the rows that count; others are far off."""
    generator = np.random.default_rng(0)
    n, std = 4_000, 0.5
    rows = np.arange(n) % 4 > 0
    mean = generator.normal(size=n)
    y = mean + std * np.sqrt(factor) * generator.normal(size=n) + 100 * ~rows
    found = width(Normal(mean, np.full(n, std)), y, rows, np.ones(n))
    assert abs(found / max(factor, 1.0) - 1) < 0.1
    wider = Normal(mean, np.full(n, std * np.sqrt(3.0)))
    assert_allclose(log_density_of_wider(Normal(mean, np.full(n, std)), y, 3.0), wider.logpdf(y), rtol=1e-9)


@pytest.mark.parametrize("inflation", [None, Dispersion(2.0, 5.0), Dispersion(None, 5.0), Dispersion(None)])
def test_a_wider_observation_has_variances_times_the_factor(inflation):
    plain = Observation(Standardiser.identity(()), Gaussian(constant_noise(0.5)), inflation)
    X = ModelRows(np.zeros((3, 2)), Standardiser.identity((2,)), "float64")
    mean, variance = np.zeros((3, 1)), np.array([[0.1], [1.0], [3.0]])
    std = [found.mean_and_std(mean, variance, X)[1] for found in (plain, plain.widened(4.0))]
    assert_allclose(std[1], 2 * std[0], rtol=1e-6)
