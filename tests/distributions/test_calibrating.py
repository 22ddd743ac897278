"""Corrections by left-out rows: what they reach when predictions are wrong, that they refuse what they cannot know, and leave what is right."""

import numpy as np
import pytest
import scipy.stats

from stochgp import metrics
from stochgp.distributions import ConformalScores, Normal, PITRecalibration


def rows(n, spread, seed=0):
    """Predictions N(0, 1) of targets of standard deviation `spread`."""
    return Normal(np.zeros(n), np.ones(n)), spread * np.random.default_rng(seed).normal(size=n)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_recalibration_helps_on_other_rows(spread):
    correct = PITRecalibration.fit(*rows(1000, spread))
    found, y = rows(4000, spread, seed=1)
    assert correct is not None and correct.gain > 0.05
    assert metrics.nlpd(y, correct(found)) < metrics.nlpd(y, found) - 0.05
    assert metrics.calibration_error(y, correct(found))[0] < 0.3 * metrics.calibration_error(y, found)[0]


def test_calibrated_predictions_are_left_as_they_are():
    """In about 99 of 100 draws; here in at least 28 of 30, 4 standard errors away."""
    assert sum(PITRecalibration.fit(*rows(150, 1.0, seed)) is None for seed in range(30)) >= 28


def test_what_cannot_be_recalibrated_is_refused():
    with pytest.raises(ValueError, match="15 held-out rows are too few"):
        PITRecalibration.fit(*rows(15, 2.0))
    found, y = rows(300, 2.0)
    with pytest.raises(ValueError, match="targets are repeated"):
        PITRecalibration.fit(found, np.rint(y))
    with pytest.raises(ValueError, match="must contain 300 held-out targets"):
        PITRecalibration.fit(found, y[1:])


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_conformal_intervals_cover_as_they_promise(level):
    """Averaged over calibration rows: in [level, level + 1/(n + 1)], within 4 standard errors."""
    n, repeats, shares = 499, 200, []
    for seed in range(repeats):
        scores = ConformalScores.fit(*rows(n, 2.5, seed))
        low, high = scores.interval(Normal(np.zeros(1), np.ones(1)), level)[0]
        shares.append(scipy.stats.norm.cdf(high / 2.5) - scipy.stats.norm.cdf(low / 2.5))
    error = 4 * np.std(shares) / np.sqrt(repeats)
    assert level - error < np.mean(shares) < level + 1 / (n + 1) + error


@pytest.mark.parametrize(("level", "least"), [(0.95, 19), (0.99, 99), (0.5, 1)])
def test_conformal_intervals_need_rows(level, least):
    ConformalScores.fit(*rows(least, 1.0)).reach(level)
    if least > 1:
        with pytest.raises(ValueError, match=f"at least {least} are needed"):
            ConformalScores.fit(*rows(least - 1, 1.0)).reach(level)


def test_scores_give_the_intervals_of_every_level():
    """The k-th smallest |u − ½|, k = ⌈(n + 1) level⌉."""
    y = np.random.default_rng(0).normal(size=99)
    found = ConformalScores.fit(Normal(np.zeros(99), np.ones(99)), y)
    smallest = np.sort(np.abs(scipy.stats.norm.cdf(y) - 0.5))
    for level, k in ((0.5, 50), (0.8, 80), (0.99, 99)):
        assert found.reach(level) == smallest[k - 1]
