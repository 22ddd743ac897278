"""Moments that the training targets support, and distributions of positive numbers."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import lognorm

from stochgp import transforms
from stochgp.distributions import (
    Mixture,
    Normal,
    PITRecalibration,
    Recalibrated,
    Rounded,
    Student,
    Warped,
)
from stochgp.distributions.transformed import truncated

LOG = transforms.Log()
SUPPORT = (-10.0, 30.0)
MEAN, STD = np.array([1.0, 1.0, 40.0]), np.array([0.3, 5.0, 0.1])  # of log y: as usual, too wide, too far
FAR = Warped(Normal(MEAN, STD), LOG, SUPPORT)


def test_a_mean_that_the_targets_do_not_support_is_the_median_within_the_support():
    with pytest.warns(UserWarning, match="2 of 3 predicted means are outside .*, -10 to 30"):
        mean = FAR.mean
    assert_allclose(mean, [lognorm(0.3, scale=np.e).mean(), np.e, 30.0], rtol=1e-6)


def test_a_standard_deviation_beyond_the_support_is_that_of_observations_cut_there():
    std, drawn = FAR.std, np.clip(FAR.sample(0, 200_000), *SUPPORT)
    assert_allclose(std[0], lognorm(0.3, scale=np.e).std(), rtol=1e-6)
    assert_allclose(std[1], drawn[1].std(), rtol=0.02)
    assert std[2] < 1e-6


def test_without_a_support_moments_are_as_they_were():
    with warnings.catch_warnings(action="error"):
        plain, usual = Warped(Normal(MEAN, STD), LOG), FAR[:1]
        assert plain.mean[1] > 1e5 and plain.std[2] > 1e16
        assert_array_equal(plain[:1].mean, usual.mean)
        assert_array_equal(plain[:1].std, usual.std)
        assert usual.limits == SUPPORT


@pytest.mark.filterwarnings("ignore:.*medians")
@pytest.mark.parametrize(
    "found",
    [
        FAR,
        Rounded(FAR),
        Mixture((FAR, Normal(np.zeros(3), np.ones(3))), np.array([0.06, 0.94])),
        PITRecalibration(0.7, 0.8)(FAR),
        PITRecalibration(0.7, 0.8)(Mixture((FAR, FAR), np.array([0.5, 0.5]))),
        Recalibrated(FAR, PITRecalibration(0.5, 0.5)),
        Warped(Student(MEAN, STD, 3.0), LOG, SUPPORT),
        Rounded(Warped(Normal(MEAN, STD), transforms.Log(0.5), SUPPORT)),
    ],
    ids=lambda found: f"{type(found).__name__}",
)
def test_moments_of_all_distributions_of_transformed_targets_are_bounded(found):
    mean, std = found.mean, found.std
    assert np.all((mean >= SUPPORT[0]) & (mean <= SUPPORT[1] * (1 + 1e-9)))
    assert np.all(std <= SUPPORT[1] - SUPPORT[0])


def test_of_positive_numbers_the_lower_half_is_that_given_y_above_0_and_the_upper_half_as_it_was():
    parts = (Normal(np.array([0.1, 2.0]), np.ones(2)), Normal(np.ones(2), 3 * np.ones(2)))
    base = Mixture(parts, np.array([0.4, 0.6]))
    found, c = truncated(base), base.cdf(0.0)[:, None]
    h = (1 + c) / 2
    low, high = np.array([[0.05, 0.3]] * 2), base.quantile([0.8, 0.99])
    assert_allclose(found.logpdf(low), base.logpdf(low) + np.log(h / (h - c)))
    assert_allclose(found.cdf(low), h * (base.cdf(low) - c) / (h - c))
    assert_allclose(found.logpdf(high), base.logpdf(high))
    assert_allclose(found.sf(high), base.sf(high))
    y = np.linspace(-1, 9, 2 * 40).reshape(2, 40)
    assert_allclose(found.cdf(y) + found.sf(y), 1.0)
    assert np.all(found.cdf(y) <= base.cdf(y) + 1e-12)
    assert np.all(found.logpdf(-1.0) == -np.inf) and np.all(found.cdf(-1.0) == 0.0)
    p = [1e-6, 0.025, 0.5, 0.999]
    assert np.all(found.quantile(p) > 0)
    assert_allclose(found.cdf(found.quantile(p)), [p] * 2, rtol=1e-6)
    assert np.all(found.sample(0, 1_000) > 0)
    above = found.quantile([0.8, 0.99])
    assert np.all(found.crps(above) < base.crps(above))
    for row in ([0], [1]):
        _check_integrals(found[row], base[row].quantile(h[row[0], 0])[0])


def _check_integrals(one, middle):
    """By Gauss-Legendre nodes between 0, 1, the middle, where the density jumps, and 30."""
    nodes, w = np.polynomial.legendre.leggauss(200)
    ends = np.sort([0.0, 1.0, middle, 30.0])
    half = np.diff(ends)[:, None] / 2
    t, w = (ends[:-1, None] + half * (nodes + 1)).ravel(), (half * w).ravel()
    density, F = np.exp(one.logpdf(t[None])[0]), one.cdf(t[None])[0]
    assert_allclose(w @ density, 1.0, rtol=1e-7)
    assert_allclose(w @ (t * density), one.mean[0], rtol=1e-5)
    exact = w @ np.square(F - (t > 1))
    assert_allclose(one.crps(1.0)[0], exact, rtol=1e-5)


def test_far_below_0_and_above_it_truncation_is_a_number_and_nothing():
    found = truncated(Normal(np.array([-40.0, 50.0]), np.ones(2)))
    assert np.isfinite(found.logpdf(0.01)[0])
    y = np.array([[49.0], [51.0]]).T.repeat(2, 0)
    assert_allclose(found.logpdf(y)[1], Normal(np.array([50.0]), np.ones(1)).logpdf(y[1:])[0])
