"""Local prediction: exact with all rows as neighbours, the same for a row in any company, calibrated by left-out rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from toy import KEY

import stochgp.posteriors.local as local
from stochgp.data import Neighbours
from stochgp.kernels import RBF, Matern32, Warped
from stochgp.models import KernelGP
from stochgp.networks import mlp
from stochgp.numerics.seeds import random_rows
from stochgp.posteriors import LocalPosterior


def _data(n=60, d=2, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.uniform(-2, 2, size=(n, d)).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + 0.1 * generator.normal(size=n)).astype(np.float32)
    return X, y, generator.uniform(0.5, 2, size=n).astype(np.float32)


GP = KernelGP(RBF([0.7, 1.5], 1.3), 0.02)


def _exact(gp, X, y, weight, Z):
    """Dense, in float64: m = k(z, X)A⁻¹y, v = k(z, z) − k(z, X)A⁻¹k(X, z)."""
    with jax.enable_x64(True):
        X, Z = (jnp.asarray(part, jnp.float64) for part in (X, Z))
        K, across = np.asarray(matrix(gp.kernel, X, X)), np.asarray(matrix(gp.kernel, X, Z))
        prior = np.diagonal(matrix(gp.kernel, Z, Z))
    A = K + np.diag(float(gp.noise_variance) / weight)
    return across.T @ np.linalg.solve(A, y), prior - np.sum(across * np.linalg.solve(A, across), axis=0)


@functools.cache
def _posterior(n_neighbours=12):
    return LocalPosterior(GP, *_data(), n_neighbours)


NETWORK = mlp(2, (4, 2), key=KEY)
KERNELS = {
    "rbf": GP.kernel,
    "matern of one column": Matern32(0.8, 1.1, active_dims=(1,)),
    "sum": RBF([0.7, 1.5]) + Matern32(2.0, 0.3),
    "warped": Warped(RBF([0.7, 1.5]), NETWORK),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("n_neighbours", [60, 10**6])
def test_with_all_rows_it_is_the_exact_posterior(name, n_neighbours):
    X, y, weight = _data()
    Z = _data(5, seed=1)[0]
    gp = KernelGP(KERNELS[name], 0.02)
    found = LocalPosterior(gp, X, y, weight, n_neighbours).mean_and_variance(Z)
    for a, b in zip(found, _exact(gp, X, y, weight, Z), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_it_is_the_exact_posterior_of_the_rows_near():
    """Near in inputs divided by √lengthscale."""
    X, y, weight = _data()
    Z = _data(5, seed=1)[0]
    scale = np.sqrt([0.7, 1.5])
    near = Neighbours(X / scale).query(Z / scale, 12)
    found = _posterior().mean_and_variance(Z)
    for i, S in enumerate(near):
        wanted = _exact(GP, X[S], y[S], weight[S], Z[i : i + 1])
        np.testing.assert_allclose([found[0][i], found[1][i]], np.ravel(wanted), rtol=1e-5, atol=1e-6)


def _scale(X, y, weight, group, near=lambda i, rest: rest):
    """(1 + n Σρz²/Σρ)/(1 + n), n = (Σρ)²/Σ ρ_g²: each row as one observation, by the posterior of those of other groups that are near to it."""
    squares, weight = np.empty(len(y)), weight.astype(np.float64)
    n = weight.sum() ** 2 / sum(weight[group == g].sum() ** 2 for g in np.unique(group))
    with jax.enable_x64(True):
        rows = jnp.asarray(X, jnp.float64)
        K = np.asarray(matrix(GP.kernel, rows, rows))
    for i in range(len(y)):
        rest = near(i, np.flatnonzero(group != group[i]))
        solved = np.linalg.solve(K[np.ix_(rest, rest)] + np.diag(0.02 / weight[rest]), K[rest, i])
        squares[i] = (y[i] - solved @ y[rest]) ** 2 / (K[i, i] - solved @ K[rest, i] + 0.02)
    return (1 + n * np.average(squares, weights=weight)) / (1 + n)


GROUPS = np.repeat(np.arange(6), [1, 20, 9, 16, 4, 10])


def test_calibration_leaves_groups_out(monkeypatch):
    """By all rows of other groups, and by the 5 nearest of them, in inputs over √lengthscale; neighbours in one group are too few in two."""
    X, y, weight = _data()
    place = X / np.sqrt([0.7, 1.5])

    def nearest(i, rest):
        return rest[np.argsort(np.sum((place[rest] - place[i]) ** 2, axis=1))[:5]]

    for n, near in ((10**6, lambda i, rest: rest), (5, nearest)):
        found = LocalPosterior(GP, X, y, weight, n).calibrated(60, 0, GROUPS)[0]
        np.testing.assert_allclose(found.scale, _scale(X, y, weight, GROUPS, near), rtol=1e-4)
    monkeypatch.setattr(local, "GAIN", np.inf)
    fewest, _ = LocalPosterior(GP, X, y, weight, 40).calibrated(60, 0, GROUPS, 5)
    np.testing.assert_allclose(fewest.scale, found.scale, rtol=1e-6)
    two = (GROUPS == 1).astype(int)
    whole = LocalPosterior(GP, X, y, weight, 50).calibrated(60, 0, two)[0]
    np.testing.assert_allclose(whole.scale, _scale(X, y, weight, two), rtol=1e-4)


def test_calibration_leaves_each_row_out():
    """Each by the posterior of all rows but it."""
    X, y, weight = _data()
    found, _ = LocalPosterior(GP, X, y, weight, 10**6).calibrated(60, 0)
    np.testing.assert_allclose(found.scale, _scale(X, y, weight, np.arange(60)), rtol=1e-4)
    Z = _data(5, seed=1)[0]
    plain = LocalPosterior(GP, X, y, weight, 10**6).mean_and_variance(Z)
    scaled = found.mean_and_variance(Z)
    np.testing.assert_array_equal(scaled[0], plain[0])
    np.testing.assert_allclose(scaled[1], found.scale * plain[1])
    np.testing.assert_allclose(float(found.noise.level), found.scale * 0.02, rtol=1e-6)
    assert found.calibrated(60, 0)[0].scale == found.scale


def test_calibration_mends_a_wrong_noise():
    """With σ² and k four times too large, c is 1/4 of what it is, but for its one more row; n of unequal weights is (Σρ)²/Σρ²."""
    data = _data(300)
    rho = data[2][random_rows(300, 200, (1, 2))]
    n = np.sum(rho) ** 2 / np.sum(rho**2)
    wrong = KernelGP(RBF([0.7, 1.5], 4 * 1.3), 0.08)
    right, found = (LocalPosterior(gp, *data, 30).calibrated(200, (1, 2))[0].scale for gp in (GP, wrong))
    np.testing.assert_allclose(found, right / 4 + 0.75 / (1 + n), rtol=1e-5)


def test_neighbours_are_doubled_while_the_density_increases(monkeypatch):
    """Each number has its own c. Gains are equal to those of dense algebra. The result is equal to a calibration with the chosen number."""
    data = _data(80)
    posterior = LocalPosterior(GP, *data, 40)

    def loss(n):
        alone, _ = LocalPosterior(GP, *data, n).calibrated(50, 3)
        rows = random_rows(80, 50, 3)
        mean, variance, _ = alone.left_out(rows, n)
        V, weight = alone.scale * (variance + 0.02), data[2][rows].astype(np.float64)
        return np.average(np.log(V) + (data[1][rows] - mean) ** 2 / V, weights=weight) / 2, alone

    gains = {n: loss(n // 2)[0] - loss(n)[0] for n in (6, 12, 24)} | {40: loss(24)[0] - loss(40)[0]}
    assert gains[6] > gains[12] > 1e-6
    for least, chosen, tried in (
        (np.inf, 3, [6]),
        (gains[12] + 1e-6, 6, [6, 12]),
        (-np.inf, 40, [6, 12, 24, 40]),
    ):
        monkeypatch.setattr(local, "GAIN", least)
        found, told = posterior.calibrated(50, 3, None, 3)
        assert found.n_neighbours == chosen and list(told) == tried
        np.testing.assert_allclose(list(told.values()), [gains[n] for n in tried], atol=1e-6)
        np.testing.assert_allclose(found.scale, loss(chosen)[1].scale, rtol=1e-6)
        Z = _data(5, seed=1)[0]
        np.testing.assert_allclose(
            found.mean_and_variance(Z)[1], loss(chosen)[1].mean_and_variance(Z)[1], rtol=1e-6
        )


DIFFICULT = {
    "one row": (np.zeros((1, 2)), np.ones(1)),
    "two rows": (np.eye(2), np.ones(2)),
    "equal rows": (np.ones((30, 2)), np.arange(30.0)),
    "constant targets": (np.random.default_rng(0).normal(size=(30, 2)), np.zeros(30)),
}


@pytest.mark.parametrize("name", DIFFICULT)
def test_difficult_rows_are_finite(name):
    X, y = (part.astype(np.float32) for part in DIFFICULT[name])
    noiseless = KernelGP(RBF([0.7, 1.5]), 2e-6)
    posterior = LocalPosterior(noiseless, X, y, np.ones(len(y), np.float32), 12).calibrated(20, 0)[0]
    mean, variance = posterior.mean_and_variance(np.concatenate([X[:1], X[:1] + 9]))
    assert np.all(np.isfinite(mean))
    assert np.all((variance >= 0) & np.isfinite(variance))
    assert posterior.scale > 0


def test_equal_rows_without_noise_are_finite():
    """They make a singular matrix; a jitter makes it regular."""
    X = np.ones((6, 2), np.float32)
    gp = KernelGP(RBF([0.7, 1.5]), 2e-6)
    mean, variance = LocalPosterior(gp, X, X[:, 0], np.full(6, 1e12, np.float32), 6).mean_and_variance(X[:1])
    assert np.isfinite(mean) and variance > 0
