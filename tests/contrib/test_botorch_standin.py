"""The bridge to BoTorch on stand-ins of its classes: posteriors are those of the estimator, slopes are differences, in the units of the user."""

import numpy as np
import pytest
from botorch_standin import Context, Tensor, UnsupportedError, bridge
from numpy.testing import assert_allclose

from stochgp import FeatureGPRegressor, KernelGPRegressor, kernels

_generator = np.random.default_rng(0)
X = _generator.uniform([0, 10], [1, 12], (40, 2))
y = 40 + 5 * np.sin(5 * X[:, 0]) * (X[:, 1] - 10.5) + 0.1 * _generator.normal(size=40)
SETS = _generator.uniform([0, 10], [1, 12], (2, 3, 2))
KERNEL = kernels.Matern52([1.0, 1.2], 1.0)
PLACES = [(0, 0, 0), (0, 2, 1), (1, 1, 0)]
STEP = 1e-5


@pytest.fixture(scope="module")
def botorch():
    with bridge() as module:
        yield module


@pytest.fixture(scope="module", params=["kernel", "feature"])
def estimator(request):
    if request.param == "kernel":
        model = KernelGPRegressor(
            KERNEL, learner=None, noise_variance=0.01, solver="cholesky", dtype="float64"
        )
        return model.fit(X, y)
    settings = {"kernel": KERNEL, "n_features": 40, "learner": "full-batch", "epochs": 5}
    return FeatureGPRegressor("rff", dtype="float64", random_state=0, **settings).fit(X, y)


def moved(place, step):
    sets = SETS.copy()
    sets[place] += step
    return Tensor(sets)


def test_the_posterior_is_that_of_the_estimator(botorch, estimator):
    model = botorch.PosteriorModel(estimator)
    found = model.posterior(Tensor(SETS)).mvn
    noisy = model.posterior(Tensor(SETS), observation_noise=True).mvn
    given = model.posterior(Tensor(SETS), observation_noise=Tensor(np.full((2, 3, 1), 0.7))).mvn
    for i, rows in enumerate(SETS):
        mean, covariance = estimator.predict(rows, return_cov=True)
        assert_allclose(found.mean.values[i], mean, rtol=1e-8)
        assert_allclose(found.covariance_matrix.values[i], covariance, rtol=1e-5, atol=1e-6)
        with_noise = estimator.predict(rows, return_std=True, include_noise=True)[1]
        assert_allclose(np.diag(noisy.covariance_matrix.values[i]), with_noise**2, rtol=1e-5)
        more = given.covariance_matrix.values[i] - found.covariance_matrix.values[i]
        assert_allclose(more, 0.7 * np.eye(3), atol=1e-9)


def test_slopes_of_means_and_covariances_are_differences(botorch, estimator):
    model, generator = botorch.PosteriorModel(estimator), np.random.default_rng(1)
    by_mean, by_covariance = generator.normal(size=(2, 3)), generator.normal(size=(2, 3, 3))

    def total(sets):
        mean, covariance = botorch._Call.apply(sets, model._value, model._pull)
        return np.sum(by_mean * mean.values) + np.sum(by_covariance * covariance.values)

    context = Context()
    botorch._Call.forward(context, Tensor(SETS), model._value, model._pull)
    slope, *_ = botorch._Call.backward(context, Tensor(by_mean), Tensor(by_covariance))
    for place in PLACES:
        difference = (total(moved(place, STEP)) - total(moved(place, -STEP))) / (2 * STEP)
        assert_allclose(slope.values[place], difference, rtol=1e-4, atol=1e-5)


def test_functions_and_their_slopes(botorch, estimator):
    draws = estimator.sample_functions(3, random_state=1)
    model = botorch.FunctionModel(draws)
    expected = draws(SETS.reshape(-1, 2)).reshape(2, 3, 3)
    assert_allclose(model.forward(Tensor(SETS)).values, expected, rtol=1e-7)
    assert_allclose(model.subset_output([2]).forward(Tensor(SETS)).values, expected[..., 2:], rtol=1e-7)
    pull, context = np.random.default_rng(2).normal(size=(2, 3, 3)), Context()
    botorch._Call.forward(context, Tensor(SETS), model._value, model._pull)
    slope, *_ = botorch._Call.backward(context, Tensor(pull))
    for place in PLACES:
        ends = [np.sum(pull * model.forward(moved(place, step)).values) for step in (STEP, -STEP)]
        assert_allclose(slope.values[place], (ends[0] - ends[1]) / (2 * STEP), rtol=1e-4, atol=1e-5)


def test_what_is_not_supported_is_refused(botorch, estimator):
    model = botorch.PosteriorModel(estimator)
    with pytest.raises(UnsupportedError, match="were asked for"):
        model.subset_output([1])
    with pytest.raises(UnsupportedError, match="takes in no observations"):
        model.condition_on_observations(Tensor(SETS[0]), Tensor(SETS[0, :, :1]))
    with pytest.raises(ValueError, match=r"X must be \[… q, 2\]"):
        model.posterior(Tensor(SETS[..., :1]))
