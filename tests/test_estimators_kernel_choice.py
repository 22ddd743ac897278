"""kernel="auto"."""

import dataclasses

import numpy as np
import pytest

from stochgp import KernelGPRegressor
from stochgp.estimators import kernel_choice
from stochgp.estimators.kernel import FEWEST_FOR_CHOICE


def walk(n):
    """Brownian motion, which is Matérn 1/2 between its rows."""
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(-2, 2, n))
    return x[:, None], np.cumsum(np.sqrt(np.diff(x, prepend=-2)) * generator.normal(size=n))


@pytest.fixture
def quick(monkeypatch):
    trial = dataclasses.replace(kernel_choice.TRIAL, epochs=16, n_neighbours=16, n_centres=256)
    monkeypatch.setattr(kernel_choice, "TRIAL", trial)
    monkeypatch.setattr(kernel_choice, "CANDIDATES", ("matern32", "matern12", "rbf"))


def test_a_random_walk_asks_for_a_rough_kernel_and_a_plan_repeats_the_choice(quick):
    X, y = walk(400)
    model = KernelGPRegressor("auto", epochs=5, random_state=0).fit(X, y)
    told = model.plan_["kernel"]
    assert told["choice"] == "matern12" and "matern32" in told["why"] and "±" in told["why"]
    assert type(model.kernel_).__name__ == "Matern12"
    again = KernelGPRegressor("auto", epochs=5, random_state=0, plan=model.plan_).fit(X, y)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_few_rows_have_the_usual_kernel():
    X, y = walk(FEWEST_FOR_CHOICE - 1)
    model = KernelGPRegressor("auto", epochs=2, random_state=0).fit(X, y)
    assert model.plan_["kernel"]["choice"] == kernel_choice.USUAL


def test_a_sum_has_a_broad_and_a_short_term():
    kernel = kernel_choice.kernel_called("matern32 + matern12", 4, variance=2.0, dtype="float32")
    assert float(kernel.left.variance) == float(kernel.right.variance) == 1.0
    np.testing.assert_allclose(np.asarray(kernel.left.lengthscale), 4.0)
    np.testing.assert_allclose(np.asarray(kernel.right.lengthscale), 1.0)
