"""The exact NLML: the paper's identities, the dense N × N value, gradients, units and the refit of the two variances."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import (
    F_of,
    Theta,
    best_weights,
    dense_nlml,
    features,
    finite_differences,
    full_gradient,
    full_objective,
    g_of,
    noise,
)
from toy import FLOOR, assert_close, make_gp, make_toy, rows_of, theta_of

from stochgp.objectives import (
    moments_of_rows,
    nlml,
    nlml_of_rows,
    nlml_of_spectrum,
    refit,
    spectrum,
)
from stochgp.parameters import partition

SIZES = [(12, 4), (5, 9)]  # more rows than features, more features than rows
sizes = pytest.mark.parametrize(("n", "M"), SIZES)


pytestmark = pytest.mark.usefixtures("strict_double")


def _problem(n, M, seed=0):
    toy, gp = make_toy(n, seed=seed), make_gp(M=M)
    return toy, gp, theta_of(gp)


_moments = eqx.filter_jit(moments_of_rows)  # one program is compiled sooner than one for each operation


def _spectrum(gp, toy):
    return spectrum(_moments(gp, rows_of(toy)))


# Identities of the paper (Theorem 1, with its square)


@sizes
def test_quadratic_form_is_a_ridge_regression(n, M):
    toy, _, theta = _problem(n, M)
    Phi, s2 = features(theta, toy.X), noise(theta, FLOOR)
    w = best_weights(Phi, toy.y, s2)
    by_ridge = np.sum((Phi @ w - toy.y) ** 2) / s2 + w @ w
    assert_close(toy.y @ np.linalg.solve(Phi @ Phi.T + s2 * np.eye(n), toy.y), by_ridge)


@sizes
def test_determinant_by_features(n, M):
    toy, _, theta = _problem(n, M)
    Phi, s2 = features(theta, toy.X), noise(theta, FLOOR)
    dense = np.linalg.slogdet(Phi @ Phi.T + s2 * np.eye(n))[1]
    assert_close(np.linalg.slogdet(F_of(theta, toy))[1] + (n - M) * np.log(s2), dense)


@sizes
def test_objective_at_the_best_weights(n, M):
    toy, _, theta = _problem(n, M)
    w = best_weights(features(theta, toy.X), toy.y, noise(theta, FLOOR))
    by_weights = g_of(theta, w, toy) + np.linalg.slogdet(F_of(theta, toy))[1]
    assert_close(by_weights, full_objective(theta, toy))


# The three ways to the same value


@eqx.filter_jit
def _value_and_gradient(gp, rows):
    trainable, rest = partition(gp)
    value, gradient = jax.value_and_grad(lambda t: nlml_of_rows(eqx.combine(t, rest), rows))(trainable)
    where = (gradient.features.W, gradient.variance.raw, gradient.noise_variance.raw)
    return value, Theta(*where)


@sizes
def test_values_are_the_dense_one(n, M):
    toy, gp, theta = _problem(n, M)
    rows = rows_of(toy)
    moments = _moments(gp, rows)
    dense = dense_nlml(features(theta, toy.X), toy.y, noise(theta, FLOOR))
    assert_close(nlml(moments, gp.variance.value, gp.noise_variance.value), dense)
    assert_close(nlml_of_spectrum(spectrum(moments), float(gp.variance), float(gp.noise_variance))[0], dense)


@sizes
def test_gradient_of_rows_is_the_dense_one(n, M):
    toy, gp, theta = _problem(n, M)
    value, gradient = _value_and_gradient(gp, rows_of(toy))
    assert_close(value, dense_nlml(features(theta, toy.X), toy.y, noise(theta, FLOOR)))
    dense = full_gradient(theta, toy)
    assert_close(gradient, Theta(*(part / (2 * n) for part in dense)))
    by_differences = finite_differences(lambda t: full_objective(t, toy), theta)
    assert_close(dense, by_differences, rtol=1e-6, atol=1e-6)


@sizes
def test_derivatives_by_the_variances(n, M):
    toy, gp, _ = _problem(n, M)
    s = _spectrum(gp, toy)
    v, s2, h = 0.7, 0.3, 1e-6
    _, (by_v, by_s2) = nlml_of_spectrum(s, v, s2)
    value = lambda v, s2: nlml_of_spectrum(s, v, s2)[0]
    np.testing.assert_allclose(by_v, (value(v + h, s2) - value(v - h, s2)) / (2 * h), rtol=1e-7)
    np.testing.assert_allclose(by_s2, (value(v, s2 + h) - value(v, s2 - h)) / (2 * h), rtol=1e-7)


# Moments


def test_moments_by_loops():
    toy, gp, _ = _problem(7, 3)
    weight = np.linspace(0.5, 2.0, 7)
    found = _moments(gp, rows_of(toy, weight=weight))
    Phi = np.tanh(toy.X @ np.asarray(gp.features.W))
    gram, cross = np.zeros((3, 3)), np.zeros(3)
    for phi, y, rho in zip(Phi, toy.y, weight, strict=True):
        gram += rho * np.outer(phi, phi)
        cross += rho * y * phi
    assert_close(found, (gram, cross, weight @ toy.y**2, weight.sum(), 0.0))


def test_moments_of_float32_rows_are_summed_in_float64():
    toy, gp = make_toy(9), make_gp(M=3, dtype=jnp.float32)
    found = _moments(gp, rows_of(toy, dtype=jnp.float32))
    assert {part.dtype for part in found} == {jnp.dtype(jnp.float64)}
    Phi = np.asarray(gp.features(jnp.asarray(toy.X, jnp.float32)), np.float64)
    assert_close(found.gram, Phi.T @ Phi, rtol=1e-14, atol=1e-14)


@sizes
def test_row_weights_are_repeated_rows(n, M):
    toy, gp, _ = _problem(n, M)
    times = np.random.default_rng(3).integers(1, 4, n)
    repeated = rows_of(toy, np.repeat(np.arange(n), times))
    weighted = rows_of(toy, weight=times.astype(float))
    assert_close(_moments(gp, weighted), _moments(gp, repeated))
    assert_close(_value_and_gradient(gp, weighted), _value_and_gradient(gp, repeated))


# Refit


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("start", [(1.0, 0.1), (1e-3, 10.0), (100.0, 1e-4)])
def test_refit_is_stationary_and_never_worse(seed, start):
    toy, gp, _ = _problem(60, 6, seed)
    s = _spectrum(gp, toy)
    v, s2 = refit(s, *start)
    value, (by_v, by_s2) = nlml_of_spectrum(s, v, s2)
    assert value <= nlml_of_spectrum(s, *start)[0]
    assert abs(by_v * v) < 1e-4
    assert abs(by_s2 * s2) < 1e-4


def test_refit_stops_at_the_floor():
    toy, gp, _ = _problem(6, 6)
    exact = toy._replace(y=np.tanh(toy.X @ np.asarray(gp.features.W)) @ np.ones(6))  # no noise at all
    _, s2 = refit(_spectrum(gp, exact), 1.0, 0.5, noise_range=(0.01, 10.0))
    np.testing.assert_allclose(s2, 0.01, rtol=1e-9)


@pytest.mark.parametrize("n", [12, 14])  # whole chunks, and one left over
def test_chunks_change_nothing(n, monkeypatch, traced_afresh):
    toy, gp, theta = _problem(n, 5)
    monkeypatch.setattr("stochgp.objectives.feature.chunk_rows", lambda n_features: 4)
    value, gradient = _value_and_gradient(gp, rows_of(toy))
    assert_close(value, dense_nlml(features(theta, toy.X), toy.y, noise(theta, FLOOR)))
    assert_close(gradient, Theta(*(part / (2 * n) for part in full_gradient(theta, toy))))
