"""How many neighbours are enough: asked beyond 100,000 rows, said in the plan, taken over from it."""

import numpy as np
import pytest

import stochgp.estimators.local_choice as local_choice
from stochgp import KernelGPRegressor, kernels

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, size=(400, 2))
Y = np.sin(X[:, 0]) + 0.5 * GENERATOR.normal(size=400)
SETTINGS = {"kernel": kernels.RBF([0.3, 0.3]), "learner": None, "noise_variance": 0.3, "random_state": 0}


def fitted(**more):
    return KernelGPRegressor(prediction="local", **SETTINGS, **more).fit(X, Y)


def test_few_rows_keep_their_neighbours():
    found = fitted()
    assert found.plan_["neighbours"]["choice"] == 256
    assert "100000" in found.plan_["neighbours"]["why"]


def test_many_rows_take_the_fewest_that_lose_little_and_the_plan_brings_them_back(monkeypatch):
    """64 neighbours reach three lengthscales far: they know what 256 do. The plan says what each number loses."""
    monkeypatch.setattr(local_choice, "EXACT_ROWS", 300)
    found = fitted()
    chosen = found.plan_["neighbours"]
    assert chosen["choice"] in (64, 128)
    assert "64 lose" in chosen["why"] and "100.0%" in chosen["why"]
    again = fitted(plan=found.plan_)
    assert again.plan_["neighbours"]["choice"] == chosen["choice"]
    (mean, std), (mean_again, std_again) = (m.predict(X[:9], return_std=True) for m in (found, again))
    np.testing.assert_array_equal(mean, mean_again)
    assert std == pytest.approx(std_again, rel=1e-6)


@pytest.mark.filterwarnings("ignore:the time limit left no time to learn")
def test_where_time_is_short_no_numbers_are_compared(monkeypatch):
    """Each number of neighbours has programs of its own to compile."""
    monkeypatch.setattr(local_choice, "EXACT_ROWS", 300)
    found = fitted(time_limit=1e-3)
    assert found.plan_["neighbours"] == {"choice": 256, "why": "there was no time to compare with fewer"}
    assert found.plan_["calibration_rows"]["choice"] == 64
