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
    """In about 99 of 100 draws; here in at least 57 of 60, 4 standard errors away."""
    assert sum(PITRecalibration.fit(*rows(150, 1.0, seed)) is None for seed in range(60)) >= 57


def test_what_cannot_be_recalibrated_is_refused():
    with pytest.raises(ValueError, match="15 left-out rows are too few"):
        PITRecalibration.fit(*rows(15, 2.0))
    found, y = rows(300, 2.0)
    with pytest.raises(ValueError, match="repeated targets"):
        PITRecalibration.fit(found, np.rint(y))
    with pytest.raises(ValueError, match="50 left-out rows"):
        PITRecalibration.fit(found, y, groups=np.arange(300) // 6)
    with pytest.raises(ValueError, match="300 left-out targets are wanted"):
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


def test_rows_of_a_group_count_once():
    found, y = rows(960, 2.0)
    once = ConformalScores.fit(found, y, groups=np.repeat(np.arange(96), 10))
    assert once.n_rows == 96


def test_weights_enter_the_recalibration_as_repeated_rows_do():
    """(a, b) is where the mean of log R' over the repeated rows is highest; its slopes there are 0."""
    found, y = rows(400, 2.0)
    count = np.random.default_rng(1).integers(1, 5, 400)
    made = PITRecalibration.fit(found, y, weight=count)
    u = np.repeat(np.clip(found.cdf(y), 1e-12, 1 - 1e-12), count)
    law = lambda a, b: scipy.stats.beta(a, b).logpdf(u).mean()
    assert made is not None
    np.testing.assert_allclose(made.gain, law(made.a, made.b), rtol=1e-9)
    for step in ((1e-3, 0), (0, 1e-3)):
        assert made.gain > max(law(made.a + sign * step[0], made.b + sign * step[1]) for sign in (1, -1))
    plain = PITRecalibration.fit(found, y)
    assert plain.a != made.a
    for factor in (1 / 128, 8.0):
        assert PITRecalibration.fit(found, y, weight=np.full(400, factor)) == plain


def test_equal_weights_are_no_more_rows():
    """A hundred times the weight is no evidence: calibrated rows stay as they are in 57 of 60 draws, as without weights."""
    kept = [
        PITRecalibration.fit(*rows(150, 1.0, seed), weight=np.full(150, 100.0)) is None for seed in range(60)
    ]
    assert sum(kept) >= 57


def test_weights_enter_conformal_intervals_as_repeated_rows_do():
    """r is the k-th smallest score of the repeated rows, k = ⌈Σρ (1 + 1/n) level⌉, n = (Σρ)²/Σρ²."""
    found, y = rows(200, 2.0)
    count = np.random.default_rng(1).integers(1, 5, 200)
    n = count.sum() ** 2 / (count**2).sum()
    scores, many = ConformalScores.fit(found, y, weight=count), np.repeat(np.abs(found.cdf(y) - 0.5), count)
    for level in (0.3, 0.8, 0.95):
        k = int(np.ceil(count.sum() * (1 + 1 / n) * level))
        assert scores.reach(level) == np.sort(many)[k - 1]
    with pytest.raises(ValueError, match=f"{n:.4g} left-out rows are too few for intervals of 0.999"):
        scores.reach(0.999)
    for factor in (0.01, 7.0):
        plain, equal = (ConformalScores.fit(found, y, weight=w) for w in (None, np.full(200, factor)))
        for level in np.linspace(0.05, 0.99, 30):
            assert plain.reach(level) == equal.reach(level)
    with pytest.raises(ValueError, match="200 positive numbers"):
        ConformalScores.fit(found, y, weight=np.zeros(200))


def test_the_row_of_a_group_is_drawn_by_weight():
    """One of two rows that weigh 1 and 3: the heavy one in ¾ of 4,000 groups, within 4 standard errors."""
    y = np.tile([0.1, 2.0], 4000)
    found, weight = Normal(np.zeros(8000), np.ones(8000)), np.tile([1.0, 3.0], 4000)
    scores = ConformalScores.fit(found, y, groups=np.repeat(np.arange(4000), 2), weight=weight)
    assert len(scores.scores) == 4000 and (scores.weight == 1).all()
    assert abs(np.mean(scores.scores > 0.3) - 0.75) < 4 * (0.75 * 0.25 / 4000) ** 0.5
