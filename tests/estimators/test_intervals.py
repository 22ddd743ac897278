"""Quantiles and intervals of observations, against Gaussians that are known exactly."""

import copy
import dataclasses
from statistics import NormalDist
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import ndtri
from scipy.stats import kstest, t

from stochgp import likelihoods, load
from tests.families.test_kernel import X_NEW, X, dense, given, y

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


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, float("nan")])
def test_levels_outside_are_refused(model, level):
    with pytest.raises(ValueError, match="level must be between 0 and 1, but is"):
        model.predict_interval(X_NEW, level)


@pytest.mark.parametrize("q", [[0.0], [0.5, 1.0], [[0.5]], 1.5, [float("nan")]])
def test_other_quantiles_are_refused(model, q):
    with pytest.raises(ValueError, match="q must be a number between 0 and 1 .*, but is"):
        model.predict_quantiles(X_NEW, q)


def test_the_distribution_says_what_predictions_intervals_and_quantiles_say(model):
    found = model.predict_distribution(X_NEW)
    mean, std = model.predict(X_NEW, return_std=True, include_noise=True)
    assert_array_equal(found.mean, mean)
    assert_array_equal(found.std, std)
    assert_array_equal(found.quantile(Q), model.predict_quantiles(X_NEW, Q))
    assert_array_equal(found.quantile(Q), mean[:, None] + std[:, None] * ndtri(Q))
    assert_array_equal(found.interval(0.9), model.predict_interval(X_NEW, 0.9))


def with_likelihood(model, likelihood):
    """The same posterior with another likelihood, of the standardised targets."""
    other = copy.copy(model)
    observation = dataclasses.replace(model._fitted.observation, likelihood=likelihood)
    other._fitted = dataclasses.replace(model._fitted, observation=observation)
    return other


def test_student_t_noise_comes_in_target_units(model, tmp_path):
    """Density of y = mean + s (N(0, v) + σ t) against quadrature over f."""
    noise = model._fitted.posterior.noise
    heavy = with_likelihood(model, likelihoods.StudentT(3.0, noise))
    mean, std = model.predict(X_NEW, return_std=True)
    scale = model._fitted.target_scale * float(noise.level) ** 0.5
    z = np.linspace(-9, 9, 4001)
    w = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    at = mean + 1.3 * scale
    found = heavy.predict_distribution(X_NEW)
    exact = t.pdf((at[:, None] - mean[:, None] - std[:, None] * z) / scale, 3.0) @ w / scale
    assert_allclose(np.exp(found.logpdf(at)), exact, rtol=1e-5)
    assert_allclose(found.std, np.sqrt(std**2 + 3 * scale**2), rtol=1e-10)
    assert_array_equal(heavy.predict(X_NEW), model.predict(X_NEW))
    heavy.save(tmp_path / "heavy")
    again = load(tmp_path / "heavy").predict_distribution(X_NEW)
    assert_array_equal(again.quantile(Q), found.quantile(Q))


def test_student_t_noise_is_drawn_with_its_tails(model):
    heavy = with_likelihood(model, likelihoods.StudentT(3.0, 0.5))
    zero = SimpleNamespace(at_numbers=lambda X: np.zeros((len(X), 40)))
    draws = heavy._fitted.observed(zero, np.resize(X_NEW, (100, X_NEW.shape[1])), key=jax.random.key(1))
    scale = heavy._fitted.target_scale * 0.5**0.5
    assert draws.shape == (100, 40) and kstest(draws.ravel() / scale, t(3.0).cdf).pvalue > 1e-4
    assert heavy.sample_y(X_NEW[:2], 3, include_noise=True).shape == (2, 3)
