"""Full batch: steps along the exact gradient, the stationary point, and what stochastic learners reach of it."""

import functools

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float
from reference import Theta, dense_nlml, features, full_gradient, noise
from scipy.optimize import minimize_scalar
from toy import FLOOR, KEY, assert_close, make_gp, make_toy, rows_of, theta_of

from stochgp.data.memory import MemorySource
from stochgp.features import AbstractFeatureMap
from stochgp.learners import (
    SCGD,
    ByEvidence,
    FullBatch,
)
from stochgp.learning import fit
from stochgp.models import FeatureGP
from stochgp.objectives import Moments, nlml_and_gradient, nlml_of_spectrum, refit, spectrum
from stochgp.parameters import Frozen, cast, frozen
from stochgp.results import RESULTS

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize(("n", "M"), [(12, 4), (5, 9)])
def test_the_gradient_is_the_exact_one(n, M):
    toy, gp = make_toy(n), make_gp(M=M)
    found = nlml_and_gradient(gp, rows_of(toy))
    theta = theta_of(gp)
    exact = Theta(*(part / (2 * n) for part in full_gradient(theta, toy)))
    assert_close(theta_of(found.gradient), exact)
    assert_close(found.nlml, dense_nlml(features(theta, toy.X), toy.y, noise(theta, FLOOR)))


# Who reaches the optimum


class Stretched(AbstractFeatureMap):
    """φ(x) = tanh(e^r xW) with fixed W: one number to learn beside the two variances."""

    map: Frozen
    r: Float[Array, ""]

    @property
    def n_features(self) -> int:
        return self.map.content.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self.map(jnp.exp(self.r) * X)


@functools.cache
def _stretched():
    """(model at r = 1, (X, y), the lowest exact NLML over r and both variances by a search on a grid and within)."""
    toy, gp = make_toy(200, seed=3), make_gp(M=5, dtype=jnp.float32)
    model = FeatureGP(Stretched(frozen(gp.features), jnp.asarray(1.0, jnp.float32)))

    def profile(r):
        Phi = np.tanh(np.exp(r) * toy.X @ np.asarray(gp.features.W, np.float64))
        s = spectrum(Moments(Phi.T @ Phi, Phi.T @ toy.y, toy.y @ toy.y, np.float64(200)))
        return nlml_of_spectrum(s, *refit(s, 1.0, 0.1))[0]

    grid = np.linspace(-3, 2, 26)
    start = min(grid, key=profile)
    best = minimize_scalar(profile, bounds=(start - 0.2, start + 0.2), method="bounded").fun
    return model, (toy.X, toy.y), best


def test_line_search_reaches_the_optimum_and_stops_there():
    model, rows, best = _stretched()
    learner = FullBatch(
        epochs=200, tolerance=1e-12, evaluator=ByEvidence(refit=False, validation_fraction=0.0)
    )
    found = fit(learner, cast(model, jnp.float64), MemorySource(*rows, dtype=jnp.float64), key=KEY)
    values = [entry["nlml"] for entry in found.history]
    assert values[0] > best + 0.05
    assert np.all(np.diff(values) < 1e-10)
    assert found.result is RESULTS.successful
    assert found.n_iter < 200
    assert found.history[-1]["gradient_norm"] < 1e-5
    np.testing.assert_allclose(found.nlml, best, atol=1e-8)


def test_anchored_scgd_reaches_the_optimum():
    model, rows, best = _stretched()
    learner = SCGD(32, 400, 0.05, optimizer=optax.adam, evaluator=ByEvidence(validation_fraction=0.0))
    found = fit(learner, model, MemorySource(*rows), key=KEY)
    np.testing.assert_allclose(found.nlml, best, atol=1e-3)
