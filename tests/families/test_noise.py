"""The noise variance that is given is kept; what is learned, and its floors, follow the scale of the targets."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sweeps import some_of

from stochgp import FeatureGPRegressor, KernelGPRegressor
from stochgp.learners import BSGD, SCGD
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise

_generator = np.random.default_rng(0)
X, X_NEW = _generator.normal(size=(80, 2)), _generator.normal(size=(30, 2))
y = np.sin(X[:, 0]) + 0.1 * _generator.normal(size=80)


@pytest.mark.parametrize("value", some_of([0.3, 1e-6, 1e-8, 1e-30], [0.3, 1e-30]))
@pytest.mark.parametrize("learner", ["auto", BSGD(epochs=2), None], ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_noise_variance_that_is_given_is_kept(learner, value):
    """The kernel alone is learned, and every variance of an observation holds the value."""
    model = KernelGPRegressor("rbf", learner=learner, likelihood=Gaussian(known_noise(value)), random_state=0)
    model.fit(X, y)
    assert_allclose(model.noise_variance_ / y.var(), value, rtol=1e-6)
    changed = float(model.kernel_.variance) != 1
    assert changed == (learner is not None)
    clean, noisy = (model.predict(X_NEW, return_std=True, include_noise=also)[1] for also in (False, True))
    assert_allclose(noisy**2 - clean**2, value * y.var(), rtol=1e-6, atol=1e-9)


def test_a_noise_variance_beyond_the_numbers_of_the_dtype_is_refused():
    tiny = Gaussian(known_noise(1e-60))
    with pytest.raises(ValueError, match="noise variance is 1e-60, outside the range of float32"):
        KernelGPRegressor(likelihood=tiny).fit(X, y)
    model = KernelGPRegressor(likelihood=tiny, dtype="float64", random_state=0).fit(X, y)
    assert_allclose(model.noise_variance_ / y.var(), 1e-60, rtol=1e-9)


FEATURES = {
    "features": "rff",
    "n_features": 30,
    "learner": SCGD(epochs=4, learning_rate=0.01),
    "dtype": "float64",
}
FAMILIES = {
    "kernel": lambda **settings: KernelGPRegressor(**settings),
    "kernel in float64": lambda **settings: KernelGPRegressor(dtype="float64", **settings),
    "mini-batches": lambda **settings: KernelGPRegressor(learner=BSGD(batch_size=16, epochs=3), **settings),
    "features": lambda **settings: FeatureGPRegressor(**FEATURES, **settings),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("factor", some_of([1e-12, 1e-6, 1e10], [1e-12, 1e10]))
def test_without_standardising_a_fit_follows_the_units_of_the_targets(name, factor):
    """c·y has c times the mean and the standard deviation, c² times the noise variance, and log c more NLML per row.

    Not to the last bit: logarithms of variances round differently, and a fit ends where a few steps change the loss by less than 1e-4 nats.
    """
    first, second = (FAMILIES[name](standardize=False, random_state=0).fit(X, c * y) for c in (1.0, factor))
    wanted, found = (model.predict(X_NEW, return_std=True) for model in (first, second))
    for a, b in zip(wanted, found, strict=True):
        assert_allclose(b, factor * a, rtol=2e-3, atol=2e-3 * factor)
    assert_allclose(second.noise_variance_, factor**2 * first.noise_variance_, rtol=2e-3)
    assert_allclose(second.nlml_ - np.log(factor), first.nlml_, atol=1e-3)


@pytest.mark.parametrize("name", ["kernel", "features"])
def test_targets_whose_squares_the_dtype_cannot_hold_are_refused(name):
    model = FAMILIES[name](standardize=False, random_state=0).set_params(dtype="float32")
    for factor in (1e30, 1e-30):
        with pytest.raises(ValueError, match="too small or too large for float32"):
            model.fit(X, factor * y)
    wide = FAMILIES[name](standardize=False, random_state=0).set_params(dtype="float64").fit(X, 1e30 * y)
    mean, std = wide.predict(X, return_std=True, include_noise=True)
    assert np.mean(np.abs(1e30 * y - mean) <= 2 * std) > 0.8
