"""The posterior of a feature GP against the dense formulas, and its function samples."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import dense_posterior, features, noise
from toy import FLOOR, KEY, make_gp, make_toy, rows_of, theta_of

from stochgp.data.rows import Data
from stochgp.numerics.clustered import folds
from stochgp.objectives import moments_of_rows, spectrum
from stochgp.posteriors import FeaturePosterior
from stochgp.posteriors.feature import BLOCK, FOLDS

sizes = pytest.mark.parametrize(("n", "M"), [(12, 4), (5, 9)])


pytestmark = pytest.mark.usefixtures("strict_double")


def _posterior(n, M, *, dtype=jnp.float64, weight=None):
    toy, gp = make_toy(n), make_gp(M=M, dtype=dtype)
    s = spectrum(moments_of_rows(gp, rows_of(toy, dtype=dtype, weight=weight)))
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


@sizes
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_variance_is_the_diagonal_and_not_negative(n, M, dtype):
    posterior, _, _, X = _posterior(n, M, dtype=dtype)
    X = jnp.tile(
        X, (posterior.block_rows // len(X), 1)
    )  # features of other numbers of rows are rounded otherwise
    mean, variance = posterior.mean_and_variance(X)
    assert np.all(np.asarray(variance) >= 0)
    np.testing.assert_allclose(variance, np.diag(posterior.covariance(X)), rtol=1e-12)
    np.testing.assert_array_equal(mean, posterior.mean(X))


def test_variance_where_nothing_is_left_to_learn():
    """10⁶ repetitions of every row: the variance is that of F⁻¹, tiny, and not below 0."""
    posterior, _, toy, _ = _posterior(12, 4, dtype=jnp.float32, weight=np.full(12, 1e6))
    variance = np.asarray(posterior.mean_and_variance(jnp.asarray(toy.X, jnp.float32))[1])
    assert np.all((variance >= 0) & (variance < 1e-5))


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


def test_sample_moments_within_four_standard_errors():
    posterior, _, _, X = _posterior(12, 4)
    S = 20_000
    draws = np.asarray(posterior.functions(S, key=KEY)(X))
    mean, covariance = np.asarray(posterior.mean(X)), np.asarray(posterior.covariance(X))
    assert np.all(np.abs(draws.mean(1) - mean) < 4 * np.sqrt(np.diag(covariance) / S))
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / S)
    assert np.all(np.abs(np.cov(draws) - covariance) < 4 * error)


def test_samples_are_functions():
    posterior, _, _, X = _posterior(12, 4)
    samples = posterior.functions(3, key=KEY)
    assert samples.n_samples == 3
    assert samples(X).shape == (8, 3)
    np.testing.assert_allclose(samples(X[2:5]), samples(X)[2:5], rtol=1e-12)  # the same functions anywhere
    again, other = (posterior.functions(3, key=k) for k in (KEY, jax.random.key(9)))
    np.testing.assert_array_equal(again(X), samples(X))
    assert not np.any(np.asarray(other(X)) == np.asarray(samples(X)))


def test_gradient_of_a_sample_by_finite_differences():
    posterior, _, _, X = _posterior(12, 4)
    f = eqx.filter_jit(lambda x: posterior.functions(1, key=KEY)(x[None])[0, 0])
    x, h = X[0], 1e-6
    steps = h * jnp.eye(2, dtype=x.dtype)
    differences = [(f(x + step) - f(x - step)) / (2 * h) for step in steps]
    np.testing.assert_allclose(jax.grad(f)(x), differences, rtol=1e-6)


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
        gp.features, spectrum(moments_of_rows(gp, rows_of(rows, weight=rows.weight))), *variances
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
