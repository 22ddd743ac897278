"""Predictions of transformed targets stay within what the training targets support."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners, likelihoods, load
from stochgp.observations.observation import supported_by
from stochgp.parameters import value_of

RNG = np.random.default_rng(0)
N = 300
X = RNG.normal(size=(N, 2))
Y = np.exp(3 * X[:, 0] + 5 * RNG.normal(size=N))  # log normal, of a mean that no 300 targets show
COUNTS = np.where(RNG.uniform(size=N) < 0.4, 0, RNG.poisson(1000 * np.exp(RNG.normal(size=N))))


def test_the_support_is_the_range_of_the_targets_and_as_much_on_either_side():
    assert supported_by(np.linspace(1, 5, 40)) == (-3.0, 9.0)
    assert supported_by(np.linspace(1, 5, 20)) == (-7.0, 13.0)
    assert supported_by(np.ones(5)) == (-np.inf, np.inf)


@pytest.mark.parametrize(("transform", "y"), [("log", Y), ("count", COUNTS)])
@pytest.mark.parametrize("kind", ["kernel", "feature"])
def test_no_prediction_is_beyond_the_largest_target_by_more_than_the_range(kind, transform, y, tmp_path):
    settings = {
        "likelihood": likelihoods.Warped("gaussian", transform),
        "learner": learners.FullBatch(epochs=3),
        "random_state": 0,
        "missing": "keep",
    }
    model = (KernelGPRegressor if kind == "kernel" else FeatureGPRegressor)(**settings).fit(X, y)
    low, high = supported_by(y)
    with pytest.warns(UserWarning, match=rf"of {N} predicted means are outside .*: medians replace them"):
        mean = model.predict(X)
    assert low <= mean.min() and mean.max() <= high
    with warnings.catch_warnings(action="ignore"):
        for noise in (False, True):
            assert model.predict(X, return_std=True, include_noise=noise)[1].max() <= high - low
        found = model.predict_distribution(X)
        assert_array_equal(found.mean, mean)
        medians = np.clip(found.quantile(0.5), low, high)
        assert np.any(mean == medians)
        model.save(tmp_path / "model")
        assert_array_equal(load(tmp_path / "model").predict(X), mean)


def test_new_targets_widen_the_support():
    model = KernelGPRegressor(
        likelihood=likelihoods.Warped("gaussian", "log"),
        learner=learners.FullBatch(epochs=2, spread=1.0),
        random_state=0,
    )
    y = np.exp(X[:, 0])
    model.fit(X, y)
    R = np.ptp(y)
    with warnings.catch_warnings(action="ignore"):
        model.update(X[:2] + 0.1, np.array([1e3, 1e-3]))
    assert_allclose(model._fitted.observation.support, [1e-3 - R, 1e3 + R])


@pytest.mark.parametrize("n_rare", [1, N // 2])
def test_a_network_takes_a_rare_category_for_at_most_eight_standard_deviations(n_rare):
    rare = np.column_stack([X, np.arange(N) < n_rare]).astype(float)
    model = FeatureGPRegressor(
        "mlp", likelihood="gaussian", learner=learners.SCGD(epochs=1), random_state=0
    ).fit(rare, X[:, 0])
    bound = model.features_.left.network
    Z = model._fitted.inputs.transform(rare, np.float32)
    limits = np.stack([Z.min(axis=0), Z.max(axis=0)])
    for side, expected in zip((bound.low, bound.high), np.clip(limits, -8, 8), strict=True):
        assert_array_equal(np.asarray(value_of(side)), expected)
    assert (Z[0, 2] > 17) == (n_rare == 1)
