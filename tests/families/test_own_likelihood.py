"""A likelihood of the user's own, in a file of its own, from `fit` to a file and back."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from stochgp import FeatureGPRegressor, KernelGPRegressor, SparseGPRegressor, learners, likelihoods

_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, (600, 1))
NOISE = 0.4  # b
Y = 7 + 3 * (np.sin(2 * X[:, 0]) + NOISE * _generator.laplace(size=600))
NEW = np.linspace(-1.8, 1.8, 20)[:, None]
QUICK = {"n_inducing": 20, "learner": learners.SVGP(100, 60, 0.03), "random_state": 0}


@pytest.fixture(scope="module")
def Laplace(own_parts):
    return own_parts.Laplace


@pytest.fixture(scope="module")
def model(Laplace):
    return SparseGPRegressor(likelihood=Laplace(0.5), **QUICK).fit(X, Y)


def test_it_is_learned_and_predicts_in_target_units(model):
    assert model.plan_["likelihood"]["choice"] == "Laplace"
    b = float(model.likelihood_.scale) * Y.std()
    assert_allclose(b, 3 * NOISE, rtol=0.2)  # the standard error of b is 4 %
    mean, std = model.predict(NEW, return_std=True)
    assert np.abs(mean - 7 - 3 * np.sin(2 * NEW[:, 0])).max() < 0.8
    found = model.predict_distribution(NEW)
    assert_allclose(found.mean, mean, rtol=1e-9)
    assert_allclose(found.std**2, std**2 + 2 * b**2, rtol=1e-5)
    noisy = model.predict(NEW, return_std=True, include_noise=True)[1]
    assert_array_equal(noisy, found.std)
    assert_allclose(model.predict_interval(NEW, 0.9), found.quantile([0.05, 0.95]))
    assert_allclose(np.diag(model.predict(NEW, return_cov=True, include_noise=True)[1]), noisy**2, rtol=1e-6)
    low, high = model.predict_interval(X, 0.9).T
    assert np.mean((low <= Y) & (high >= Y)) == pytest.approx(0.9, abs=4 * (0.09 / 600) ** 0.5)


@pytest.mark.long
def test_draws_of_observations_are_of_it(model):
    draws = model.sample_y(NEW[:1], 400, include_noise=True)[0]
    found = model.predict_distribution(NEW[:1]).cdf(draws[None])[0]
    assert stats.kstest(found, "uniform").pvalue > 1e-4


def test_it_may_be_transformed(Laplace):
    model = SparseGPRegressor(likelihood=likelihoods.Warped(Laplace(0.4), "log"), **QUICK).fit(
        X, np.exp(Y / 4)
    )
    assert np.isfinite(model.predict_distribution(NEW).logpdf(np.exp(NEW[:, 0]))).all()


@pytest.mark.parametrize("kind", [KernelGPRegressor, FeatureGPRegressor])
def test_other_families_say_which_takes_it(kind, Laplace):
    with pytest.raises(TypeError, match="only SparseGPRegressor accepts it") as caught:
        kind(likelihood=Laplace()).fit(X[:30], Y[:30])
    assert "\n" not in str(caught.value)


def test_a_learner_that_cannot_take_it_says_which_can(Laplace):
    with pytest.raises(ValueError, match="likelihood is Laplace; the learners 'svgp' and 'vgp' accept any"):
        SparseGPRegressor(likelihood=Laplace(), learner="sgpr").fit(X[:30], Y[:30])


def test_a_name_of_another_family_is_told():
    with pytest.raises(
        ValueError,
        match="only SparseGPRegressor accepts likelihood='poisson'; KernelGPRegressor accepts 'auto'",
    ):
        KernelGPRegressor(likelihood="poisson").fit(X[:30], Y[:30])
