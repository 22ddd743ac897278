"""The posterior of a feature GP against the dense formulas, and its function samples."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from reference import dense_posterior, features, noise
from toy import FLOOR, make_gp, make_toy, rows_of, theta_of

from stochgp.data.rows import Data
from stochgp.numerics.clustered import folds
from stochgp.objectives import moments_of_rows, spectrum
from stochgp.posteriors import FeaturePosterior
from stochgp.posteriors.feature import BLOCK, FOLDS

_moments = eqx.filter_jit(moments_of_rows)
sizes = pytest.mark.parametrize(("n", "M"), [(12, 4), (5, 9)])


pytestmark = pytest.mark.usefixtures("strict_double")


def _posterior(n, M, *, dtype=jnp.float64, weight=None):
    toy, gp = make_toy(n), make_gp(M=M, dtype=dtype)
    s = spectrum(_moments(gp, rows_of(toy, dtype=dtype, weight=weight)))
    posterior = FeaturePosterior.of(gp.features, s, float(gp.variance), float(gp.noise_variance))
    return posterior, gp, toy, jnp.asarray(np.random.default_rng(5).normal(size=(8, 2)), dtype)


@sizes
def test_moments_are_the_dense_ones(n, M):
    posterior, gp, toy, X = _posterior(n, M)
    theta = theta_of(gp)
    mean, covariance = dense_posterior(
        features(theta, toy.X), toy.y, noise(theta, FLOOR), features(theta, np.asarray(X))
    )
    np.testing.assert_allclose(posterior.mean(X), mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance(X), covariance, rtol=1e-9, atol=1e-10)


def test_row_weights_are_repeated_rows():
    times = np.array([1, 3, 2, 1, 4])
    weighted, gp, toy, X = _posterior(5, 4, weight=times.astype(float))
    theta, rows = theta_of(gp), np.repeat(np.arange(5), times)
    mean, covariance = dense_posterior(
        features(theta, toy.X[rows]), toy.y[rows], noise(theta, FLOOR), features(theta, np.asarray(X))
    )
    np.testing.assert_allclose(weighted.mean(X), mean, rtol=1e-9)
    np.testing.assert_allclose(weighted.covariance(X), covariance, rtol=1e-9, atol=1e-12)


def test_float32_features_are_continued_in_float64():
    """The posterior is that of the float32 features, to float64 accuracy."""
    posterior, gp, toy, X = _posterior(40, 6, dtype=jnp.float32)
    X = jnp.tile(X, (posterior.block_rows // len(X), 1))
    base = lambda X: np.asarray(gp.features(jnp.asarray(X, jnp.float32)), np.float64)
    v, s2 = float(gp.variance), float(gp.noise_variance)
    y = np.asarray(toy.y, np.float32).astype(np.float64)
    mean, covariance = dense_posterior(v**0.5 * base(toy.X), y, s2, v**0.5 * base(X))
    assert posterior.mean(X).dtype == jnp.float64
    np.testing.assert_allclose(posterior.mean(X), mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance(X), covariance, rtol=1e-9, atol=1e-10)


# Function samples


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_errors_of_left_out_rows_are_those_of_posteriors_without_their_fold(grouped, weighted):
    n, M = 60, 4
    toy, gp = make_toy(n), make_gp(M=M)
    weight = np.random.default_rng(1).integers(1, 4, n).astype(float) if weighted else None
    group = np.arange(n) % 25 if grouped else None
    data = Data(np.asarray(toy.X), np.asarray(toy.y), weight, group)
    variances = float(gp.variance), float(gp.noise_variance)
    of = lambda rows: FeaturePosterior.of(
        gp.features, spectrum(_moments(gp, rows_of(rows, weight=rows.weight))), *variances
    )
    asked = np.arange(3, n, 2)
    found = of(data).errors_of_left_out(asked, data, variances[1])
    fold, wanted = folds(n, group, FOLDS), np.empty(n)
    assert grouped or fold.max() == FOLDS - 1
    for k in np.unique(fold):
        mean, variance = of(data.take(fold != k)).mean_and_variance(_block(data.X))
        error = data.y - np.asarray(mean)[:n]
        z = error / np.sqrt(np.asarray(variance)[:n] + variances[1])
        wanted[fold == k] = z[fold == k]
    np.testing.assert_allclose(found, wanted[asked], rtol=1e-7)


def _block(X):
    """Filled up to the rows of a block."""
    return jnp.asarray(np.concatenate([X, np.zeros((BLOCK - len(X), X.shape[1]))]))
