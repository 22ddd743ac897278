"""Temperature scaling: found where probabilities are wrong by a power, left out where they are right, and never another class."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax

from stochgp.distributions import Categorical, TemperatureScaling

N = 20_000
GENERATOR = np.random.default_rng(0)
LOGS = log_softmax(2 * GENERATOR.normal(size=(N, 4)), axis=1)
Y = (np.exp(LOGS).cumsum(axis=1) < GENERATOR.uniform(size=(N, 1))).sum(axis=1)


@pytest.mark.parametrize("temperature", [0.5, 1.5, 3.0])
def test_probabilities_to_a_power_get_that_temperature_back(temperature):
    wrong = Categorical(log_softmax(temperature * LOGS, axis=1))
    found = TemperatureScaling.fit(wrong, Y)
    assert_allclose(found.temperature, temperature, rtol=0.05)  # 4 standard errors of 1.2 %
    right = found(wrong)
    assert_allclose(right.probabilities.sum(axis=1), 1, rtol=1e-12)
    assert_array_equal(np.argmax(right.log_probabilities, axis=1), np.argmax(LOGS, axis=1))
    gain = np.mean(right.logpdf(Y) - wrong.logpdf(Y))
    assert_allclose(found.gain, gain, rtol=1e-6)


def test_right_probabilities_stay_in_99_of_100_draws():
    changed = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        rows = generator.permutation(N)[:300]
        y = (np.exp(LOGS[rows]).cumsum(axis=1) < generator.uniform(size=(300, 1))).sum(axis=1)
        found = TemperatureScaling.fit(Categorical(LOGS[rows]), y)
        changed += found is not None
    assert changed <= 2 + 4 * np.sqrt(2)


def test_of_rows_without_a_mistake_the_prior_bounds_how_sure_probabilities_become():
    logs = np.log(np.tile([[0.8, 0.2]], (200, 1)))
    found = TemperatureScaling.fit(Categorical(logs), np.zeros(200))
    assert np.exp(-2.5) <= found.temperature < 1
    more = TemperatureScaling.fit(Categorical(np.tile(logs, (10, 1))), np.zeros(2_000))
    assert more.temperature < found.temperature


def test_a_row_of_weight_2_counts_twice():
    wrong = Categorical(log_softmax(2 * LOGS[:500], axis=1))
    twice = Categorical(np.concatenate([wrong.log_probabilities, wrong.log_probabilities[:200]]))
    weight = np.where(np.arange(500) < 200, 2.0, 1.0)
    a = TemperatureScaling.fit(wrong, Y[:500], weight=weight)
    b = TemperatureScaling.fit(twice, np.concatenate([Y[:500], Y[:200]]))
    assert_allclose(a.temperature, b.temperature, rtol=2e-3)  # but for how many rows the prior weighs as


def test_classes_that_were_impossible_change_nothing():
    logs = LOGS[:400].copy()
    logs[:, 0] = -np.inf
    assert TemperatureScaling.fit(Categorical(logs), Y[:400]) is None
    kept = TemperatureScaling(2.0)(Categorical(logs)).probabilities
    assert not kept[:, 0].any() and np.isfinite(kept).all()


def test_few_rows_are_refused():
    with pytest.raises(ValueError, match="99 held-out rows are too few"):
        TemperatureScaling.fit(Categorical(LOGS[:99]), Y[:99])
    with pytest.raises(ValueError, match="but has the shape"):
        TemperatureScaling.fit(Categorical(LOGS[:200]), Y[:199])
