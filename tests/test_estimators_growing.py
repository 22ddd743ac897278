"""Sparse regressors whose functions grow: `fit`, and `partial_fit` on a stream with saving on the way."""

import itertools

import numpy as np
import pytest

from stochgp import SparseGPRegressor, load
from stochgp.learners import SVGP

_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, size=(400, 2)) * [1.0, 100.0]
y = 5 + 3 * np.sin(2 * X[:, 0]) + 0.3 * _generator.normal(size=400)
SETTINGS = {"approximation": "svdgp", "n_inducing": 16, "n_inducing_mean": 96, "random_state": 0}
STREAM = SETTINGS | {"learning_rate": 0.03, "batch_size": 40, "epochs": 12}


def streamed(cuts, model=None):
    model = SparseGPRegressor(**STREAM) if model is None else model
    for a, b in itertools.pairwise(cuts):
        model.partial_fit(X[a:b], y[a:b])
    return model


@pytest.fixture(scope="module")
def whole():
    return streamed([0, 80, 400])


def test_a_stream_is_learned(whole):
    mean, std = whole.predict(X, return_std=True)
    assert np.mean((mean - y) ** 2) < 0.2 * np.var(y)
    assert np.all(std > 0) and np.all(std <= np.sqrt(float(whole.kernel_.variance)) * np.std(y[:80]) * 1.0001)
    assert (whole.n_rows_, whole.n_iter_, len(whole.history_)) == (400, 120, 96)
    assert whole.history_[-1]["step"] == 120 and not whole.converged_
    assert whole.sample_functions(3)(X[:4]).shape == (4, 3)


def test_portions_and_a_file_on_the_way_change_no_bit(whole, tmp_path):
    first = streamed([0, 80, 95, 230])
    first.save(tmp_path / "model")
    for model in (first, load(tmp_path / "model")):
        again = streamed([230, 400], model)
        for a, b in zip(
            again.predict(X[:9], return_std=True), whole.predict(X[:9], return_std=True), strict=True
        ):
            np.testing.assert_array_equal(a, b)
        assert again.noise_variance_ == whole.noise_variance_


@pytest.mark.parametrize("approximation", ["svdgp", "ivsgpr"])
def test_fit_learns_too(approximation):
    more = {"approximation": approximation, "epochs": 30, "batch_size": 40, "learning_rate": 0.03}
    if approximation == "ivsgpr":
        more["n_inducing_mean"] = None
    model = SparseGPRegressor(**SETTINGS | more).fit(X, y)
    assert model.score(X, y) > 0.8 and np.isfinite(model.elbo_)
    assert model.plan_["n_inducing"]["choice"] == 16
    with pytest.raises(ValueError, match="leaves no stream"):
        model.partial_fit(X, y)


def test_what_does_not_grow_learns_from_no_stream():
    assert not hasattr(SparseGPRegressor(), "partial_fit")
    with pytest.raises(TypeError, match="SVGP learns from no stream"):
        SparseGPRegressor(approximation="svdgp", learner=SVGP()).partial_fit(X, y)
    with pytest.raises(ValueError, match="leave it None"):
        SparseGPRegressor(approximation="ivsgpr", n_inducing_mean=9).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        streamed([0, 80]).partial_fit(X[:, :1], y)
