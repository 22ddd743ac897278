"""FeatureGPRegressor: units, weights, predictions, samples, attributes, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import FeatureGPRegressor, kernels, learners, networks
from stochgp.data.rows import MERGED_ROWS

QUICK = {
    "features": "rff",
    "n_features": 40,
    "learner": learners.BSGD(epochs=60, learning_rate=0.01),
    "random_state": 0,
}


def make_data(n=60, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 2)) * [3.0, 0.1] + [2013.0, -5.0]
    y = 40.0 + 10.0 * np.sin(X[:, 0]) + generator.normal(size=n)
    return X, y


@pytest.fixture(scope="module")
def fitted():
    X, y = make_data()
    return FeatureGPRegressor(**QUICK).fit(X, y), X, y


def dense_posterior(model, X, y, X_new):
    """(nlml per datum, mean, covariance) in target units by an N × N matrix, from the fitted features and variances."""
    f = model._fitted
    with jax.enable_x64(True):
        phi = lambda A: np.asarray(
            model.features_(jnp.asarray(f.inputs.transform(A, np.float32))), np.float64
        )
        Phi, Phi_new = phi(X), phi(X_new)
    s = f.target_scale
    variance = (model.history_[-1]["variance"], model.noise_variance_)
    best = min((e for e in model.history_ if "step" in e), key=lambda e: e["nlml"])
    variance = best["variance"]
    K = variance * Phi @ Phi.T + model.noise_variance_ * np.eye(len(y))
    residual = y - f.targets.mean
    solved = np.linalg.solve(K, residual)
    nlml = (residual @ solved + np.linalg.slogdet(K)[1] + len(y) * np.log(2 * np.pi)) / (2 * len(y))
    K_new = variance * Phi_new @ Phi.T
    covariance = variance * Phi_new @ Phi_new.T - K_new @ np.linalg.solve(K, K_new.T)
    assert s > 1  # otherwise the units would not be tested
    return nlml, f.targets.mean + K_new @ solved, covariance


def test_nlml_mean_and_covariance_are_those_of_the_dense_gp_in_target_units(fitted):
    model, X, y = fitted
    X_new = make_data(7, seed=1)[0]
    nlml, mean, covariance = dense_posterior(model, X, y, X_new)
    assert_allclose(model.nlml_, nlml, rtol=1e-6)
    found_mean, found = model.predict(X_new, return_cov=True)
    assert_allclose(found_mean, mean, rtol=1e-6)
    assert_allclose(found, covariance, rtol=1e-4, atol=1e-4)
    assert found_mean.dtype == found.dtype == np.float64


def test_the_three_uncertainties_agree(fitted):
    model, X, _ = fitted
    mean, std = model.predict(X, return_std=True)
    assert_allclose(mean, model.predict(X), rtol=1e-12)
    assert_allclose(np.diag(model.predict(X, return_cov=True)[1]), std**2, rtol=1e-9)
    noisy = model.predict(X, return_std=True, include_noise=True)[1]
    assert_allclose(noisy**2, std**2 + model.noise_variance_, rtol=1e-9)
    added = model.predict(X, return_cov=True, include_noise=True)[1] - model.predict(X, return_cov=True)[1]
    assert_allclose(added, model.noise_variance_ * np.eye(len(X)), atol=1e-9)
    assert std.min() > 0
    with pytest.raises(ValueError, match="cannot both be True"):
        model.predict(X, return_std=True, return_cov=True)


def test_samples_have_the_posterior_moments(fitted):
    model, X, _ = fitted
    S, X = 4000, X[:5]
    mean, covariance = model.predict(X, return_cov=True)
    draws = model.sample_y(X, S, random_state=1)
    std = np.sqrt(np.diag(covariance))
    assert draws.shape == (5, S)
    assert np.all(np.abs(draws.mean(axis=1) - mean) < 5 * std / S**0.5)
    error = np.sqrt((std[:, None] ** 2 * std**2 + covariance**2) / S)
    assert np.all(np.abs(np.cov(draws) - covariance) < 5 * error)
    noisy = model.sample_y(X, S, random_state=1, include_noise=True) - draws
    assert_allclose(noisy.var(), model.noise_variance_, rtol=5 * (2 / noisy.size) ** 0.5)


def test_weights_are_repetitions_and_order_does_not_matter():
    X, y = make_data(30)
    weight = np.random.default_rng(0).integers(0, 4, 30)
    model = FeatureGPRegressor(**QUICK | {"learner": learners.BSGD(epochs=3, learning_rate=0.01)})
    weighted = model.fit(X, y, sample_weight=weight).predict(X)
    order = np.random.default_rng(1).permutation(np.arange(30).repeat(weight))
    assert_array_equal(model.fit(X[order], y[order]).predict(X), weighted)
    assert MERGED_ROWS >= 30


def test_a_prior_mean_is_in_target_units():
    """With it the posterior is the dense one of y + 7 less 7; without standardising there is none, and no scale."""
    X, y = make_data()
    model = FeatureGPRegressor(mean=-7.0, **QUICK).fit(X, y)
    assert float(model._fitted.targets.mean) == -7.0
    X_new = make_data(7, seed=1)[0]
    nlml, mean, _ = dense_posterior(model, X, y, X_new)
    assert_allclose(model.predict(X_new), mean, rtol=1e-6)
    assert_allclose(model.nlml_, nlml, rtol=1e-6)
    raw = FeatureGPRegressor(
        standardize=False, **QUICK | {"learner": learners.BSGD(epochs=1, learning_rate=0.01)}
    ).fit(X, y)
    assert float(raw._fitted.targets.mean) == 0 and raw._fitted.target_scale == 1


def test_same_seed_same_model_and_generators_move_on():
    X, y = make_data(20)
    fit = lambda state: (
        FeatureGPRegressor(
            **QUICK | {"learner": learners.BSGD(epochs=2, learning_rate=0.01), "random_state": state}
        )
        .fit(X, y)
        .predict(X)
    )
    assert_array_equal(fit(3), fit(3))
    assert_array_equal(fit(np.random.default_rng(3)), fit(np.random.default_rng(3)))
    generator = np.random.default_rng(3)
    assert np.any(fit(generator) != fit(generator))
    with pytest.raises(ValueError, match="random_state"):
        fit(-1)


@pytest.mark.parametrize(
    "setting",
    [
        {"features": "nystrom", "n_features": None},
        pytest.param({"features": "orf", "kernel": "matern32"}, marks=pytest.mark.long),
        pytest.param({"features": "attention", "n_features": None}, marks=pytest.mark.long),
        {"features": "mlp", "n_features": None, "kernel": "rbf", "dtype": "float64"},
        {"features": networks.mlp(2, (8, 5), key=jax.random.key(0)), "n_features": None},
        {"kernel": kernels.RBF(lengthscale=[1.0, 2.0])},
        {"learner": learners.SCGD(epochs=2, learning_rate=0.01)},
        {"learner": learners.Minimax(epochs=2, learning_rate=0.01)},
        {"learner": learners.FullBatch(epochs=2)},
    ],
    ids=["nystrom", "orf", "attention", "deep", "network", "kernel", "scgd", "minimax", "full-batch"],
)
def test_every_kind_of_map_and_learner(setting):
    X, y = make_data(20)
    model = FeatureGPRegressor(
        **QUICK | {"learner": learners.BSGD(epochs=2, learning_rate=0.01)} | setting
    ).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all() and (std >= 0).all() and np.isfinite(model.nlml_)


@pytest.mark.filterwarnings("ignore:all targets are equal")
@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.ones((1, 2)), np.array([3.0])),
        (make_data(20)[0], np.full(20, 1e6)),
        (np.ones((10, 2)), np.arange(10.0)),
        (np.repeat(make_data(3)[0], 50, axis=0), np.repeat([1.0, 2.0, 4.0], 50)),
        (make_data(20)[0] * 1e100, make_data(20)[1] * 1e100),
    ],
    ids=["one row", "equal targets", "constant inputs", "duplicates", "huge"],
)
def test_degenerate_data_give_finite_answers(X, y):
    model = FeatureGPRegressor(learner=learners.SCGD(epochs=3), random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True, include_noise=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
    if np.ptp(y) == 0:
        assert_allclose(mean, y, rtol=1e-6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"learner": "scdg"}, "did you mean 'scgd'"),
        ({"features": "rrf"}, "did you mean 'rff'"),
        ({"dtype": "float16"}, "dtype"),
        ({"time_limit": -1}, "time_limit"),
        ({"mean": np.nan}, "mean"),
        ({"memory_limit": "1 apple"}, "not a size"),
        ({"memory_limit": 1000}, "memory_limit is 1 kB"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(setting, message):
    X, y = make_data(10)
    with pytest.raises(ValueError, match=message) as caught:
        FeatureGPRegressor().set_params(**setting).fit(X, y)
    assert "\n" not in str(caught.value)
