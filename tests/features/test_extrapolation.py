"""What a feature GP says beyond the range of its rows: nothing new inside, the spread of the targets far outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

import stochgp
from stochgp import FeatureGPRegressor, features, learners
from stochgp.data.memory import MemorySource
from stochgp.learners import SCGD
from stochgp.learning import fit
from stochgp.models import FeatureGP
from stochgp.posteriors import FeaturePosterior

D, M, DRAWS = 3, 512, 40
LIMITS = np.array([[-1.0, 0.0, -2.0], [1.0, 0.5, 2.0]])
SLOPES, VARIANCE = np.array([0.5, 2.0, 1.0]), 1.7


def inside(n):
    return LIMITS[0] + np.random.default_rng(0).uniform(size=(n, D)) * np.ptp(LIMITS, axis=0)


def drawn(seed, **options):
    key = jax.random.key(seed)
    return features.Extrapolation.init(
        LIMITS, VARIANCE, SLOPES, n_features=M, key=key, dtype=jnp.float64, **options
    )


def test_features_are_zero_in_the_box_and_have_the_variances_of_a_difference_outside():
    """φ(x)·φ(z) = k(x, z) − k(x, cz) − k(cx, z) + k(cx, cz), on average over draws of the frequencies, within five standard errors."""
    box = np.concatenate([inside(20), LIMITS])
    outside = inside(6) + np.array(
        [[0.5, 0, 0], [0, 0.2, 0], [0, 0, -5], [2, 1, 0], [1e3, 0, 0], [-40, 8, 90]]
    )
    nearest = np.clip(outside, *LIMITS)
    ell = np.sqrt(VARIANCE / 2) / SLOPES
    k = lambda A, B: VARIANCE / 2 * np.exp(-np.sum(((A[:, None] - B) / ell) ** 2, axis=2) / 2)
    wanted = k(outside, outside) - k(outside, nearest) - k(nearest, outside) + k(nearest, nearest)
    with jax.enable_x64(True):
        maps = [drawn(seed) for seed in range(DRAWS)]
        assert all(np.all(np.asarray(phi(jnp.asarray(box))) == 0) for phi in maps[:3])
        found = np.array([np.asarray(phi(jnp.asarray(outside))) for phi in maps])
    grams = np.einsum("sim,sjm->sij", found, found)
    error = grams.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    assert np.all(np.abs(grams.mean(axis=0) - wanted) < 5 * error + 1e-12)
    assert_allclose(np.diag(wanted)[-2:], VARIANCE, rtol=1e-6)  # far away


def test_slopes_at_the_edges_are_those_asked_for():
    """E (f(x)/h)² → slopes² for x at a distance h outside of an edge; `longest` is the longest lengthscale."""
    h = 1e-4
    with jax.enable_x64(True):
        for d in range(D):
            x = inside(1)
            x[0, d] = LIMITS[1, d] + h
            squares = [float(jnp.sum(drawn(seed)(jnp.asarray(x)) ** 2)) / h**2 for seed in range(DRAWS)]
            error = np.std(squares, ddof=1) / np.sqrt(DRAWS)
            assert abs(np.mean(squares) - SLOPES[d] ** 2) < 5 * error
        kernel = drawn(0, longest=0.6).fourier.kernel.value
        assert_allclose(kernel.lengthscale.value, np.minimum(np.sqrt(VARIANCE / 2) / SLOPES, 0.6))


def test_bounds_leave_learning_as_it_is():
    """Steps, evaluations and evidence of the bounded network are those of the network itself, to the last bit."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 2)).astype(np.float32)
    y = np.sin(X[:, 0]) + 0.1 * generator.normal(size=120)
    limits, key = np.stack([X.min(axis=0), X.max(axis=0)]), jax.random.key(1)
    found = []
    for given in ({}, {"limits": limits}):
        phi = features.resolve("mlp", n_inputs=2, key=key, X_sample=jnp.asarray(X), **given)
        learner = SCGD(batch_size=20, epochs=3, learning_rate=0.01)
        found.append(fit(learner, FeatureGP(phi, 0.1), MemorySource(X, y), key=key))
    plain, bounded = found
    assert plain.nlml == bounded.nlml
    assert_array_equal(plain.evidence.moments.gram, bounded.evidence.moments.gram)


@pytest.fixture(scope="module")
def fitted():
    generator = np.random.default_rng(0)
    X = generator.uniform(-1, 1, size=(200, 2)) * [1.0, 50.0]
    y = 30 + 4 * np.sin(2 * X[:, 0]) + 0.3 * generator.normal(size=200)
    return (
        FeatureGPRegressor(learner=learners.SCGD(epochs=10, learning_rate=0.01), random_state=0).fit(X, y),
        X,
        y,
    )


def without(model):
    """The posterior of the learned features alone."""
    posterior, stream = model._fitted.posterior, model._fitted.stream
    phi = posterior.features.left
    moments, M = stream[0], phi.n_features
    assert np.all(moments.gram[M:] == 0) and np.all(moments.cross[M:] == 0)
    own = moments._replace(gram=moments.gram[:M, :M], cross=moments.cross[:M])
    s2 = float(posterior.noise.level)
    return FeaturePosterior.of(phi, stochgp.objectives.spectrum(own), stream[1], s2)


def test_rows_in_the_range_are_predicted_by_the_learned_features_alone(fitted):
    model, X, _ = fitted
    f = model._fitted
    with jax.enable_x64(True):
        mean, variance = without(model).mean_and_variance(f.inputs.transform(X, np.float32))
    found, std = model.predict(X, return_std=True)
    assert_allclose(found, f.targets.inverse(np.asarray(mean)), rtol=1e-9)
    assert_allclose(std, f.target_scale * np.sqrt(variance), rtol=1e-7)


def test_far_from_the_rows_means_stay_and_standard_deviations_are_those_of_the_targets(fitted):
    """Impossible inputs are predicted within the range of the targets, about, with their spread, within the error of 64 frequencies."""
    model, _, y = fitted
    far = np.array([[0.0, 1e6], [0.0, -1e9], [300.0, 0.0], [-1e4, 1e7]])
    mean, std = model.predict(far, return_std=True)
    assert np.all(np.abs(mean - y.mean()) < 2 * np.ptp(y))
    phi = np.asarray(model.features_.right(jnp.asarray(model._fitted.inputs.transform(far, np.float32))))
    own = np.sum(phi**2, axis=1) * model._fitted.stream[1]
    assert np.all(np.abs(own - 1) < 5 / np.sqrt(2 * 64))
    assert np.all(std > 0.9 * np.sqrt(own) * y.std())
    draws = model.sample_functions(500, random_state=0)(far)
    assert_allclose(draws.std(axis=1), std, rtol=5 / np.sqrt(2 * 500))


def test_rows_outside_that_are_taken_in_are_learned_from(fitted, tmp_path):
    """After `partial_fit` f is known there, and as in dense algebra; from a file too."""
    model, _, _ = fitted
    model.save(tmp_path / "model")
    later, rows = stochgp.load(tmp_path / "model"), np.tile([[5.0, 0.0]], (20, 1))
    far = rows[:1]
    assert_array_equal(later.predict(far, return_std=True), model.predict(far, return_std=True))
    before = later.predict(far, return_std=True)[1][0]
    with pytest.warns(ConvergenceWarning, match="far from the first rows"):
        later.partial_fit(rows, np.full(20, 60.0))
    mean, std = later.predict(far, return_std=True)
    assert std[0] < before / 3 and abs(mean[0] - 60) < 3 * std[0] + 1
    assert later.predict(far)[0] != model.predict(far)[0]
