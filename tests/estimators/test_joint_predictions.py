"""Predictions of several points together, which the bridge to BoTorch takes: those of `predict`, with slopes, or a refusal when made."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from stochgp import (
    FeatureGPRegressor,
    KernelGPRegressor,
    SparseGPRegressor,
    kernels,
    learners,
    likelihoods,
    solvers,
)
from stochgp.contrib.joint_predictions import joint_moments, pull, values
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.numerics.trees import Trees
from stochgp.observations import Dispersion

_generator = np.random.default_rng(0)
X = _generator.uniform([0, 10], [1, 12], (50, 2))
y = 40 + 5 * np.sin(5 * X[:, 0]) * (X[:, 1] - 10.5) + 0.1 * _generator.normal(size=50)
SETS = _generator.uniform([0, 10], [1, 12], (3, 4, 2))
ROWS = SETS.reshape(-1, 2)
KERNEL = kernels.Matern52([1.0, 1.2], 1.0)
KEPT = {"learner": None, "likelihood": Gaussian(known_noise(0.01)), "dtype": "float64", "random_state": 0}
TREES = Trees(jnp.array([[0, 1]], jnp.int32), jnp.array([[0.1, -0.2]]), jnp.array([[0.3, -0.5, 0.9, 0.1]]))
LAWS = {
    "factor": Dispersion(3.1),
    "trees and Student's t": Dispersion(0.4, 5.0, TREES),
}
MAKERS = {
    "exact": lambda: KernelGPRegressor(KERNEL, solver="cholesky", **KEPT),
    "samples": lambda: KernelGPRegressor(KERNEL, solver=solvers.CG(), **KEPT),
    "feature": lambda: FeatureGPRegressor(
        "rff",
        kernel=KERNEL,
        n_features=40,
        learner=learners.FullBatch(epochs=5),
        dtype="float64",
        random_state=0,
    ),
    "sparse": lambda: SparseGPRegressor(
        KERNEL, likelihood="student-t", n_inducing=20, learner=learners.SVGP(epochs=2), random_state=0
    ),
}
_made = {}


def made(name, law=None):
    if name not in _made:
        _made[name] = MAKERS[name]().fit(X, y)
    model = _made[name]
    observation = dataclasses.replace(model._fitted.observation, inflation=LAWS.get(law))
    model._fitted = dataclasses.replace(model._fitted, observation=observation)
    return model


CASES = (
    [(name, None) for name in MAKERS]
    + [("exact", law) for law in LAWS]
    + [("samples", "trees and Student's t")]
)


@pytest.mark.parametrize(("name", "law"), CASES)
def test_moments_are_those_of_predict(name, law):
    model = made(name, law)
    found = joint_moments(model)
    mean, covariance = values(found, SETS)
    expected, std = model.predict(ROWS, return_std=True)
    assert_allclose(mean.ravel(), expected, rtol=1e-6)
    rtol = 4 * (2 / 64) ** 0.5 if name == "samples" else 1e-5
    assert_allclose(np.diagonal(covariance, axis1=1, axis2=2).ravel(), std**2, rtol=rtol, atol=1e-6)
    if name != "samples":
        whole = model.predict(SETS[1], return_cov=True)[1]
        assert_allclose(covariance[1], whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("law", [None, *LAWS])
def test_slopes_are_differences(law):
    """Of a random linear function of means and covariances."""
    found = joint_moments(made("exact", law))
    by_mean, by_covariance = _generator.normal(size=(3, 4)), _generator.normal(size=(3, 4, 4))

    def total(sets):
        mean, covariance = values(found, sets)
        return np.sum(by_mean * mean) + np.sum(by_covariance * covariance)

    slope = pull(found, SETS, by_mean, by_covariance)
    for place in [(0, 0, 0), (1, 2, 1), (2, 3, 0)]:
        step = np.zeros_like(SETS)
        step[place] = 1e-5
        assert_allclose(slope[place], (total(SETS + step) - total(SETS - step)) / 2e-5, rtol=1e-4, atol=1e-4)


COUNTS = np.random.default_rng(1).poisson(3.0, 50)
REFUSED = {
    "log rate": (lambda: SparseGPRegressor(likelihood="poisson", n_inducing=5, learner=learners.SVGP(epochs=1)).fit(X, COUNTS), "the moments of f"),
    "transformed": (lambda: KernelGPRegressor(KERNEL, **KEPT | {"likelihood": likelihoods.Warped("auto", "log")}).fit(X, y), "the moments of f"),
    "local": (lambda: KernelGPRegressor(KERNEL, solver="local", **KEPT).fit(X, y), "solver='cholesky'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gaussian_posterior_of_targets_is_refused_when_made(name):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=words) as caught:
        joint_moments(make())
    assert "\n" not in str(caught.value)
