"""Feature GPs that take in rows piece by piece: the same posterior as in one pass, weights by age, merged models, files."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import stochgp
from stochgp import FeatureGPRegressor, learners

N_FIRST, N = 40, 160
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def rows():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(N, 3))
    y = 5 + 2 * np.sin(X[:, 0]) + 0.2 * generator.normal(size=N)
    return X, y, generator.integers(1, 4, N).astype(float)


X, y, WEIGHT = rows()
NEW = X[:7] + 0.1


@pytest.fixture(scope="module", params=["float32", "float64"])
def first(request, tmp_path_factory):
    """A file of a model that was fitted on the first rows."""
    path = tmp_path_factory.mktemp("model") / "first.stochgp"
    model = FeatureGPRegressor(
        learner=learners.SCGD(epochs=2, learning_rate=0.01), dtype=request.param, random_state=0
    )
    model.fit(X[:N_FIRST], y[:N_FIRST]).save(path)
    return path


features = eqx.filter_jit(lambda of, Z: of(Z))  # one program is compiled sooner than one for each operation


def dense(model, X, y, precision):
    """(mean, std) of f at NEW in float64, from N × N matrices: rows of these precisions, in units of 1/σ²."""
    fitted, variance = model._fitted, model._fitted.stream[1]

    def phi(Z):
        with jax.enable_x64(True):
            seen = jnp.asarray(fitted.inputs.transform(Z, fitted.dtype))
            return np.asarray(features(fitted.posterior.features, seen), np.float64)

    z, s2 = fitted.targets.transform(y), fitted.observation.noise_variance
    A = variance * phi(X) @ phi(X).T + np.diag(s2 / precision)
    cross = variance * phi(NEW) @ phi(X).T
    mean = cross @ np.linalg.solve(A, z)
    latent = np.sum(variance * phi(NEW) ** 2, axis=1) - np.sum(cross * np.linalg.solve(A, cross.T).T, axis=1)
    return fitted.targets.inverse(mean), fitted.target_scale * np.sqrt(latent)


def test_a_hundred_pieces_are_one_pass(first):
    together, pieces = stochgp.load(first), stochgp.load(first)
    together.partial_fit(X[N_FIRST:], y[N_FIRST:], WEIGHT[N_FIRST:])
    for part in np.array_split(np.arange(N_FIRST, N), 100):
        pieces.partial_fit(X[part], y[part], WEIGHT[part])
    for one, other in zip(
        *(model.predict(NEW, return_std=True) for model in (together, pieces)), strict=True
    ):
        assert_allclose(one, other, **TIGHT)
    assert_allclose(together.nlml_, pieces.nlml_, **TIGHT)
    assert together.n_rows_ == pieces.n_rows_ == N


def test_the_posterior_is_that_of_all_rows(first):
    model = stochgp.load(first).partial_fit(X[N_FIRST:], y[N_FIRST:], WEIGHT[N_FIRST:])
    precision = np.concatenate([np.ones(N_FIRST), WEIGHT[N_FIRST:]])
    for found, wanted in zip(model.predict(NEW, return_std=True), dense(model, X, y, precision), strict=True):
        assert_allclose(found, wanted, rtol=1e-6 if model.dtype == "float32" else 1e-9)


def test_what_is_forgotten_weighs_less_with_every_call(first):
    model, forget = stochgp.load(first), 0.5
    for part in (slice(N_FIRST, 100), slice(100, N)):
        model.partial_fit(X[part], y[part], forget=forget)
    age = np.repeat([2, 1, 0], [N_FIRST, 100 - N_FIRST, N - 100])
    for found, wanted in zip(
        model.predict(NEW, return_std=True), dense(model, X, y, forget**age), strict=True
    ):
        assert_allclose(found, wanted, rtol=1e-6 if model.dtype == "float32" else 1e-9)


def test_a_saved_model_goes_on_to_the_same_bits(first, tmp_path):
    model = stochgp.load(first).partial_fit(X[N_FIRST:100], y[N_FIRST:100])
    model.save(tmp_path / "later.stochgp")
    again = stochgp.load(tmp_path / "later.stochgp")
    for one in (model, again):
        one.partial_fit(X[100:], y[100:])
    np.testing.assert_array_equal(model.predict(NEW), again.predict(NEW))
    assert again.drift_ == model.drift_


def test_drift_is_in_standard_deviations_of_the_fit(first):
    with pytest.warns(
        ConvergenceWarning,
        match=r"far from the first rows \(distance: input column 1",
    ):
        model = stochgp.load(first).partial_fit(X[N_FIRST:] + 3, y[N_FIRST:])
    scale = X[:N_FIRST].std(axis=0)
    moved = (X[N_FIRST:] + 3 - X[:N_FIRST].mean(axis=0)) / scale
    assert_allclose(model.drift_["inputs"]["mean"], moved.mean(axis=0), rtol=1e-5)
    assert_allclose(model.drift_["inputs"]["std"], moved.std(axis=0), rtol=1e-5)
    assert_allclose(model.drift_["targets"]["std"], y[N_FIRST:].std() / y[:N_FIRST].std(), rtol=1e-5)


def test_the_first_call_is_a_fit():
    settings = {"learner": learners.SCGD(epochs=1, learning_rate=0.01), "random_state": 0}
    one = FeatureGPRegressor(**settings).partial_fit(X[:N_FIRST], y[:N_FIRST])
    other = FeatureGPRegressor(**settings).fit(X[:N_FIRST], y[:N_FIRST])
    np.testing.assert_array_equal(one.predict(NEW), other.predict(NEW))


def test_a_far_row_of_a_stream_is_bounded(first):
    """A row at 10^30 counts as one at the bound, and a row with such a target is left out."""
    found, known = stochgp.load(first), stochgp.load(first)
    seen = found._fitted.seen
    edge = seen.high + 100 * np.maximum(seen.high - seen.low, found._fitted.inputs.scale)
    with (
        pytest.warns(UserWarning, match="moved to that distance"),
        pytest.warns(UserWarning, match="were dropped"),
        pytest.warns(ConvergenceWarning, match="far from the first"),
    ):
        found.partial_fit([[1e30] * X.shape[1], X[1]], [y[0], 1e30])
    with pytest.warns(ConvergenceWarning, match="far from the first"):
        known.partial_fit([edge], y[:1])
    assert found.n_rows_ == N_FIRST + 1
    assert_allclose(found.predict(X[:5]), known.predict(X[:5]), rtol=1e-6)
