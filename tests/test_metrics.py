"""Scores against their definitions: densities, integrals, plain loops, and what a calibrated forecast must give."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from stochgp import metrics
from stochgp.distributions import Normal, normal_plus_student

RNG = np.random.default_rng(4)
N = 12
MEAN, STD = RNG.normal(size=N), RNG.uniform(0.2, 3.0, size=N)
Y = MEAN + 2 * STD * RNG.normal(size=N)


def test_nlpd_is_the_mean_of_the_log_densities():
    np.testing.assert_allclose(
        metrics.nlpd(Y, MEAN, STD), -np.mean(scipy.stats.norm.logpdf(Y, MEAN, STD)), rtol=1e-14
    )


def test_crps_is_its_integral():
    def score(y, mean, std):
        below = scipy.integrate.quad(lambda t: scipy.stats.norm.cdf(t, mean, std) ** 2, -np.inf, y)[0]
        return below + scipy.integrate.quad(lambda t: scipy.stats.norm.sf(t, mean, std) ** 2, y, np.inf)[0]

    wanted = np.mean([score(*row) for row in zip(Y, MEAN, STD, strict=True)])
    np.testing.assert_allclose(metrics.crps(Y, MEAN, STD), wanted, rtol=1e-7)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.8, 0.95, 0.999])
def test_coverage_counts_the_rows_inside(level):
    inside = 0
    for y, mean, std in zip(Y, MEAN, STD, strict=True):
        low, high = scipy.stats.norm.interval(level, mean, std)
        inside += low <= y <= high
    assert metrics.coverage(Y, MEAN, STD, level) == inside / N


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0, 2.0], [1.0], [1.0]), "y (2,), mean (1,), std (1,)"),
        (([[1.0]], [[1.0]], [[1.0]]), "y (1, 1)"),
        (([], [], []), "N at least 1"),
        (([1.0, 2.0], [1.0, np.nan], [1.0, 1.0]), "mean[1] is nan; 1 of 2 values are not finite"),
        (([1.0], [1.0], [0.0]), "std[0] is 0.0; 1 of 1 values are not positive and finite"),
    ],
)
def test_what_cannot_be_scored_is_refused(arguments, words):
    for score in (metrics.nlpd, metrics.crps, metrics.coverage, metrics.pit):
        with pytest.raises(ValueError) as caught:
            score(*arguments)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_levels_outside_0_1_are_refused():
    with pytest.raises(ValueError, match="level is 95"):
        metrics.coverage(Y, MEAN, STD, 95)


def test_scores_of_distributions_are_those_of_their_means_and_standard_deviations():
    found = Normal(MEAN, STD)
    for score in (metrics.nlpd, metrics.crps, metrics.coverage, metrics.calibration_error):
        assert score(Y, found) == pytest.approx(score(Y, MEAN, STD), rel=1e-14)
    np.testing.assert_array_equal(metrics.pit(Y, found), metrics.pit(Y, MEAN, STD))
    with pytest.raises(ValueError, match="std must be None"):
        metrics.nlpd(Y, found, STD)
    for wrong, words in ((Y[1:], "same shape"), (np.where(Y > 0, Y, np.nan), "not finite")):
        with pytest.raises(ValueError, match=words):
            metrics.crps(wrong, found)


def test_nlpd_is_of_the_density_not_of_a_gaussian_with_the_same_deviation():
    found = normal_plus_student(MEAN, np.zeros(N), STD**2, 3.0)
    wanted = -np.mean(scipy.stats.t.logpdf(Y, 3, MEAN, STD))
    assert metrics.nlpd(Y, found) == pytest.approx(wanted, rel=1e-7)
    assert metrics.nlpd(Y, found.mean, found.std) != pytest.approx(wanted, rel=1e-2)


def test_calibration_error_is_its_integral():
    u = np.sort(metrics.pit(Y, MEAN, STD))
    empirical = lambda p: np.searchsorted(u, p, side="right") / N
    exact = scipy.integrate.quad(lambda p: (empirical(p) - p) ** 2, 0, 1, points=u, limit=200)[0]
    found, noise = metrics.calibration_error(Y, MEAN, STD)
    assert found == pytest.approx(np.sqrt(exact), rel=1e-8)
    assert noise == pytest.approx(np.sqrt(1 / (6 * N)))


def test_coverages_are_at_four_levels_with_their_errors():
    found = metrics.coverages(Y, MEAN, STD)
    assert list(found) == [0.5, 0.8, 0.95, 0.99]
    assert found[0.8] == pytest.approx((metrics.coverage(Y, MEAN, STD, 0.8), np.sqrt(0.16 / N)))
    assert metrics.coverages(Y, Normal(MEAN, STD)) == found


def test_scores_of_classes():
    labels, p = np.array(["a", "b", "b"]), np.array([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    assert metrics.log_loss(labels, np.log(p), ["a", "b"]) == pytest.approx(-np.log(0.5 * 0.8 * 0.1) / 3)
    with pytest.raises(ValueError, match="label 'b' at row 2 is not one of the classes 'a', 'c'"):
        metrics.log_loss(labels, np.log(p), ["a", "c"])
    with pytest.raises(ValueError, match=r"\[3, 2\]"):
        metrics.log_loss(labels, np.log(p[:2]), ["a", "b"])
