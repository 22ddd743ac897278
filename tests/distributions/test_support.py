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

LOG = transforms.Log()
SUPPORT = (-10.0, 30.0)
MEAN, STD = np.array([1.0, 1.0, 40.0]), np.array([0.3, 5.0, 0.1])  # of log y: as usual, too wide, too far
FAR = Warped(Normal(MEAN, STD), LOG, SUPPORT)


def test_a_mean_that_the_targets_do_not_support_is_the_median_within_the_support():
    with pytest.warns(UserWarning, match="2 of 3 predicted means lie beyond -10 to 30"):
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
        PITRecalibration(0.7, 0.8, 0.1, 500)(FAR),
        PITRecalibration(0.7, 0.8, 0.1, 500)(Mixture((FAR, FAR), np.array([0.5, 0.5]))),
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
