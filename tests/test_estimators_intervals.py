"""Quantiles and intervals of observations, against Gaussians that are known exactly."""

from statistics import NormalDist

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_estimators_kernel import X_NEW, X, dense, given, y

Q = [0.01, 0.25, 0.5, 0.9]


@pytest.fixture(scope="module")
def model():
    return given().fit(X, y)


def test_quantiles_are_those_of_the_dense_posterior_with_its_noise(model):
    exact = dense(X, y)
    found = model.predict_quantiles(X_NEW, Q)
    assert found.shape == (len(X_NEW), len(Q)) and found.dtype == np.float64
    for row, mean, variance in zip(found, exact.mean, np.diag(exact.covariance) + exact.noise, strict=True):
        known = NormalDist(float(mean), float(variance) ** 0.5)
        assert_allclose([known.cdf(value) for value in row], Q, atol=1e-4)


def test_the_median_is_the_mean_and_quantiles_rise(model):
    found = model.predict_quantiles(X_NEW, Q)
    assert_array_equal(found[:, 2], model.predict(X_NEW))
    assert np.all(np.diff(found, axis=1) > 0)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.95])
def test_intervals_are_quantiles_and_cover_as_often_as_they_say(model, level):
    """Of 4,000 observations drawn at each row, within 4 standard errors of a share."""
    found = model.predict_interval(X_NEW, level)
    assert_array_equal(found, model.predict_quantiles(X_NEW, [(1 - level) / 2, (1 + level) / 2]))
    exact, S = dense(X, y), 4_000
    std = np.sqrt(np.diag(exact.covariance) + exact.noise)
    draws = exact.mean[:, None] + std[:, None] * np.random.default_rng(0).normal(size=(len(X_NEW), S))
    covered = np.mean((draws > found[:, :1]) & (draws < found[:, 1:]), axis=1)
    assert np.all(np.abs(covered - level) < 4 * np.sqrt(level * (1 - level) / S) + 1e-4)


def test_the_usual_interval_is_of_95_percent(model):
    assert_array_equal(model.predict_interval(X_NEW), model.predict_interval(X_NEW, 0.95))


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, float("nan")])
def test_levels_outside_are_refused(model, level):
    with pytest.raises(ValueError, match="level is .*above 0 and below 1"):
        model.predict_interval(X_NEW, level)


@pytest.mark.parametrize("q", [[0.0], [0.5, 1.0], [[0.5]], 0.5, [float("nan")]])
def test_other_quantiles_are_refused(model, q):
    with pytest.raises(ValueError, match="q is .*above 0 and below 1"):
        model.predict_quantiles(X_NEW, q)
