"""Sparse regressors with likelihoods other than constant Gaussian noise: units, laws of observations, draws, files, what is refused."""

import functools

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal

import stochgp
from stochgp import SparseGPRegressor, learners, likelihoods, metrics
from stochgp.parameters import frozen

_generator = np.random.default_rng(0)
N, S = 160, 800
X = _generator.normal(size=(N, 2))
F = np.sin(2 * X[:, 0])
RATE = np.exp(1.5 + F)
SHAPE = 2.0
TARGETS = {
    "student-t": 5 + 3 * (F + 0.2 * _generator.standard_t(3, N)),
    "poisson": _generator.poisson(RATE).astype(float),
    "negative-binomial": _generator.poisson(RATE * _generator.gamma(SHAPE, 1 / SHAPE, N)).astype(float),
}
QUICK = {"n_inducing": 12, "random_state": 0, "learner": learners.SVGP(40, 64, 0.03)}
HALF = slice(0, N // 2)
NEW = X[N // 2 :]


@functools.cache
def fitted(name):
    return SparseGPRegressor(**QUICK, likelihood=name).fit(X[HALF], TARGETS[name][HALF])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.long
def test_the_likelihood_that_made_the_rows_predicts_them_better_than_gaussian_noise(name):
    y = TARGETS[name]
    gaussian = SparseGPRegressor(**QUICK).fit(X[HALF], y[HALF])
    mine, other = (model.predict_distribution(NEW) for model in (fitted(name), gaussian))
    assert metrics.nlpd(y[N // 2 :], mine) < metrics.nlpd(y[N // 2 :], other)


@pytest.mark.parametrize("name", TARGETS)
def test_observations_are_drawn_by_the_law_that_is_predicted(name):
    """Of whole functions and the noise on them, at single rows."""
    model = fitted(name)
    law = model.predict_distribution(NEW[:4])
    draws = model.sample_y(NEW[:4], S, include_noise=True)
    for level in (0.25, 0.75):
        at = law.quantile(level)
        below = (draws <= at[:, None]).mean(axis=1)
        assert np.all(np.abs(below - law.cdf(at)) < 4.5 * np.sqrt(0.25 / S))
    assert_allclose(law.mean, model.predict(NEW[:4]), rtol=1e-12)
    assert_allclose(model.predict(NEW[:4], return_std=True, include_noise=True)[1], law.std, rtol=1e-12)
    assert_array_equal(model.predict_interval(NEW[:4], 0.5), law.interval(0.5))


@pytest.mark.parametrize("name", TARGETS)
def test_functions_have_the_mean_and_deviation_of_predict(name):
    """Of counts these are of e^f, whose moments are those of a lognormal distribution."""
    draws = fitted(name).sample_functions(S)(NEW[:4])
    mean, std = fitted(name).predict(NEW[:4], return_std=True)
    assert np.all(np.abs(draws.mean(axis=1) - mean) < 4.5 * draws.std(axis=1) / np.sqrt(S))
    kurtosis = scipy.stats.kurtosis(draws, axis=1)
    assert_allclose(draws.std(axis=1), std, rtol=4.5 * float(np.sqrt((kurtosis.max() + 2) / (4 * S))))


def test_counts_have_no_units_but_a_prior_mean():
    """Far from all rows the rate is e^(variance/2) times `mean`, or the average count."""
    far, y = np.full((1, 2), 1e3), TARGETS["poisson"][HALF]
    for mean, start in ((None, y.mean()), (7.0, 7.0)):
        model = SparseGPRegressor(**QUICK, likelihood="poisson", mean=mean).fit(X[HALF], y)
        wanted = start * np.exp(float(model.kernel_.variance) / 2)
        assert_allclose(model.predict(far), [wanted], rtol=1e-5)


@pytest.mark.parametrize("name", TARGETS)
def test_a_file_and_a_summary_hold_the_likelihood(name, tmp_path):
    model = fitted(name)
    model.save(tmp_path / "model")
    loaded = stochgp.load(tmp_path / "model")
    assert_array_equal(loaded.predict_interval(NEW[:5]), model.predict_interval(NEW[:5]))
    assert_array_equal(
        loaded.sample_y(NEW[:5], 2, include_noise=True), model.sample_y(NEW[:5], 2, include_noise=True)
    )
    assert str(loaded.likelihood_) == str(model.likelihood_)
    assert f"Distribution of observations: {name}" in model.summary()
    assert hasattr(model, "noise_variance_") == (name == "student-t")


def test_a_value_is_a_likelihood_whose_parameters_are_known_or_learned():
    y = TARGETS["negative-binomial"][HALF]
    held = likelihoods.NegativeBinomial(frozen(np.float32(5.0)))
    model = SparseGPRegressor(**QUICK, likelihood=held).fit(X[HALF], y)
    assert float(model.likelihood_.shape) == 5.0
    learned = SparseGPRegressor(**QUICK, likelihood=likelihoods.NegativeBinomial(5.0)).fit(X[HALF], y)
    assert float(learned.likelihood_.shape) < 5.0


@pytest.mark.long
def test_transformed_targets_may_have_heavy_tails():
    """log y with a Student-t: the interval is that of log y."""
    y = np.exp(F + 0.1 * np.random.default_rng(1).standard_t(3, N))[HALF]
    mine = SparseGPRegressor(**QUICK, likelihood=likelihoods.Warped("student-t", "log")).fit(X[HALF], y)
    logs = SparseGPRegressor(**QUICK, likelihood="student-t").fit(X[HALF], np.log(y))
    assert_allclose(np.log(mine.predict_interval(NEW[:5])), logs.predict_interval(NEW[:5]), rtol=1e-6)
    counts = SparseGPRegressor(**QUICK, likelihood=likelihoods.Warped("student-t", "count")).fit(
        X[HALF], TARGETS["poisson"][HALF]
    )
    draws = counts.sample_y(NEW[:5], 20, include_noise=True)
    assert np.all(draws >= 0) and np.all(draws == np.rint(draws))


REFUSED = {
    "sgpr": (
        {"likelihood": "student-t", "learner": "sgpr"},
        "SGPR needs Gaussian noise, but the likelihood is StudentT",
    ),
    "svdgp": ({"likelihood": "student-t", "learner": "svdgp"}, "SVDGP needs Gaussian noise"),
    "ivsgpr": ({"likelihood": "student-t", "learner": "ivsgpr"}, "IVSGPR needs Gaussian noise"),
    "learner": ({"likelihood": "student-t", "learner": stochgp.learners.SGPR()}, "SGPR needs Gaussian noise"),
    "name": ({"likelihood": "student"}, "did you mean 'student-t'"),
    "classes": ({"likelihood": likelihoods.Softmax(3)}, "for classes, use SparseGPClassifier"),
    "no counts": ({"likelihood": "poisson"}, "counts must be whole numbers of at least 0"),
    "transformed counts": (
        {"likelihood": likelihoods.Warped("poisson", "count")},
        "does not accept a transform",
    ),
    "warped counts": ({"likelihood": likelihoods.Warped("poisson", "log")}, "does not accept a transform"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(name):
    settings, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        SparseGPRegressor(**settings).fit(X, TARGETS["student-t"])
    assert "\n" not in str(caught.value)


def test_a_mean_of_counts_is_positive():
    with pytest.raises(ValueError, match=r"the prior mean of counts must be positive, but is 0\.0"):
        SparseGPRegressor(likelihood="poisson", mean=0.0).fit(X, TARGETS["poisson"])


def test_a_stream_takes_gaussian_noise():
    with pytest.raises(ValueError, match="SVDGP needs Gaussian noise"):
        SparseGPRegressor(learner="svdgp", likelihood="student-t").partial_fit(X, TARGETS["student-t"])
