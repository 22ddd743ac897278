"""Sparse regressors whose functions grow: `fit`, and `partial_fit` on a stream with saving on the way."""

import itertools
import warnings
from functools import partial

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from stochgp import SparseGPRegressor, load
from stochgp.learners import IVSGPR, SVDGP, SVGP, InverseRoot
from stochgp.learners.descent import cosine
from stochgp.variational import DecoupledMean
from stochgp.variational.decoupled import JITTER

_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, size=(400, 2)) * [1.0, 100.0]
y = 5 + 3 * np.sin(2 * X[:, 0]) + 0.3 * _generator.normal(size=400)
# Of models that take a few steps, as most do here.
pytestmark = pytest.mark.filterwarnings("ignore:only .* of new rows, before the update")
# Fits and streams of 100 rows at a time share the compiled steps of the learner "svdgp".
MIRROR = InverseRoot(1.0, 1.0)
SETTINGS = {"n_inducing": 24, "random_state": 0}
STREAM = SETTINGS | {"learner": SVDGP(epochs=64, learning_rate=0.03, mirror_rate=MIRROR)}


def said(call):
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(entry.message) for entry in caught]


def streamed(cuts, model=None, unit=1.0):
    model = SparseGPRegressor(**STREAM) if model is None else model
    for a, b in itertools.pairwise(cuts):
        model.partial_fit(X[a:b], unit * y[a:b])
    return model


@pytest.fixture(scope="module")
def whole():
    return streamed([0, 100, 200, 300])


def test_a_stream_is_learned(whole):
    mean, std = whole.predict(X, return_std=True)
    assert np.mean((mean - y) ** 2) < 0.2 * np.var(y)
    assert np.all(std > 0) and np.all(
        std <= np.sqrt(float(whole.kernel_.variance)) * np.std(y[:100]) * 1.0001
    )
    steps = 3 * 64
    assert (whole.n_rows_, whole.n_iter_, len(whole.history_)) == (300, steps, 1)
    assert whole.history_[-1]["step"] == steps and not whole.converged_
    assert float(whole._fitted.stream.n_rows) == 300
    assert whole.sample_functions(3)(X[:4]).shape == (4, 3)


def test_the_first_call_is_a_fit_and_a_file_on_the_way_changes_no_bit(whole, tmp_path):
    first = streamed([0, 100])
    fitted = SparseGPRegressor(**STREAM).fit(X[:100], y[:100])
    np.testing.assert_array_equal(first.predict(X[:9]), fitted.predict(X[:9]))
    first.partial_fit(X[100:200], y[100:200]).save(tmp_path / "model")
    for model in (first, load(tmp_path / "model")):
        again = streamed([200, 300], model)
        for a, b in zip(
            again.predict(X[:9], return_std=True), whole.predict(X[:9], return_std=True), strict=True
        ):
            np.testing.assert_array_equal(a, b)
        assert again.noise_variance_ == whole.noise_variance_
        assert not hasattr(again, "elbo_") and again.plan_["ended"]["why"] == "a stream has no planned end"


@pytest.mark.parametrize("approximation", ["svdgp", "ivsgpr"])
def test_a_fit_ends_with_the_best_q_of_its_functions(approximation):
    """By plain NumPy: the covariance is k − Q + k_xz A⁻¹ k_zx, A = K + K_zf K_fz/σ²; the mean that of ridge regression on functions of its own, or of the same."""
    is_decoupled = approximation == "svdgp"
    given = STREAM if is_decoupled else STREAM | {"learner": IVSGPR(100, 4), "n_inducing": 9}
    model = SparseGPRegressor(**given, likelihood="gaussian").fit(X[:100], y[:100])
    assert model.plan_["q"]["choice"] == "optimal"
    posterior, process = model._fitted.posterior, model._fitted.posterior.process
    assert isinstance(process, DecoupledMean) == is_decoupled
    learned = float(model._fitted.stream.gp.noise_variance)  # a stream goes on with it
    rows, z = model._fitted.inputs.transform(X[:100]), (y[:100] - y[:100].mean()) / y[:100].std()
    scaled = lambda a: np.asarray(a, np.float64) / np.asarray(model.kernel_.lengthscale, np.float64)
    signal = float(model.kernel_.variance)
    k = lambda a, b: signal * np.exp(-0.5 * np.sum((scaled(a)[:, None] - scaled(b)) ** 2, axis=2))
    K, across = k(process.points, process.points), k(process.points, rows)
    A = K + across @ across.T / learned
    unexplained = k(rows, rows) - across.T @ np.linalg.solve(K, across)
    variance = np.diagonal(unexplained + across.T @ np.linalg.solve(A, across))
    mean = across.T @ np.linalg.solve(A, across @ z) / learned
    if is_decoupled:
        points = process.mean_points[: model.plan_["n_inducing_mean"]["choice"]]  # beside those of weight 0
        own, share = k(points, rows), model.fit_report_["mean_noise"]
        right = own @ own.T + share * learned * (k(points, points) + JITTER * signal * np.eye(len(points)))
        mean = own.T @ np.linalg.solve(right, own @ z)
    with jax.enable_x64(True):
        assert_allclose(posterior.mean_and_variance(rows)[1], variance, rtol=1e-4, atol=1e-7)
        assert_allclose(posterior.mean(rows), mean, atol=2e-4)


def test_rows_after_a_fit_are_observed_as_its_rows_but_for_the_errors_that_its_optimum_had():
    """The line that the fit went around stays; the distribution that held-out errors of its optimum chose goes."""
    model = SparseGPRegressor(**STREAM, mean="linear").fit(X[:100], y[:100])
    before = model._fitted.observation
    after = model.partial_fit(X[100:200], y[100:200])._fitted.observation
    assert before.mean_function is not None and after.mean_function is before.mean_function
    assert after.inflation is None and after.targets is before.targets


def test_rows_after_a_fit_are_learned_at_its_rate():
    """The decay of a run with an end does not hold its stream still; a fit that took no step is begun with."""
    learner = SVDGP(epochs=64, learning_rate=0.03, decay=cosine)
    settings = SETTINGS | {"learner": learner}
    model = SparseGPRegressor(**settings).fit(X[:100], y[:100])
    before = float(model.kernel_.variance)  # the predictions of a fit are those of its optimum
    assert abs(float(model.partial_fit(X[100:200], y[100:200]).kernel_.variance) - before) > 0.01
    with pytest.warns(ConvergenceWarning, match="ended the fit before the first step"):
        late = SparseGPRegressor(**settings, time_limit=1e-6).fit(X[:100], y[:100])
    assert late.partial_fit(X[100:200], y[100:200]).score(X, y) > 0


@pytest.mark.parametrize("approximation", ["svdgp", "ivsgpr"])
@pytest.mark.long
def test_a_stream_learns_by_default(approximation):
    """400 rows in four parts: small errors, honest intervals, and no warnings."""
    model, texts = SparseGPRegressor(**SETTINGS, learner=approximation), []
    for rows in np.split(np.arange(400), 4):
        texts += said(partial(model.partial_fit, X[rows], y[rows]))
    low, high = model.predict_interval(X).T
    assert model.score(X, y) > 0.95 and np.mean((low <= y) & (y <= high)) > 0.9
    assert not texts


def test_losses_of_a_stream_are_in_the_units_of_the_targets(whole):
    large = streamed([0, 100, 200, 300], unit=10.0)
    assert_allclose(large.history_[-1]["loss"] - whole.history_[-1]["loss"], np.log(10), atol=5e-3)


def test_a_shift_of_the_targets_is_said(whole, tmp_path):
    whole.save(tmp_path / "model")
    found = said(lambda: load(tmp_path / "model").partial_fit(X[300:], y[300:] + 1000))
    assert "far from the first rows (distance: targets" in found[0]
    assert all(len(text.splitlines()) == 1 for text in found)


def test_what_does_not_grow_learns_from_no_stream():
    assert not hasattr(SparseGPRegressor(), "partial_fit")
    assert not hasattr(SparseGPRegressor(learner=SVGP()), "partial_fit")
    with pytest.raises(ValueError, match="set n_inducing_mean=None"):
        SparseGPRegressor(learner="ivsgpr", n_inducing_mean=9).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        streamed([0, 100]).partial_fit(X[:, :1], y)
