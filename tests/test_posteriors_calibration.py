"""One factor for all variances, from training rows predicted without themselves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from stochgp import kernels
from stochgp.numerics.dense_factor import factorised
from stochgp.posteriors import (
    ExactKernelPosterior,
    KernelSystem,
    SampledKernelPosterior,
    calibration,
    sample_targets,
)
from stochgp.posteriors.base import known_noise
from stochgp.priors import prior_functions
from stochgp.solvers import CG, Cholesky

pytestmark = pytest.mark.usefixtures("double")
N, NOISE = 60, 0.2
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * GENERATOR.normal(size=N)
Z = GENERATOR.uniform(-2, 2, (7, 2))


def system():
    kernel = kernels.Matern32(jnp.asarray([0.8, 1.5]), jnp.asarray(1.3))
    return KernelSystem(kernel, jnp.asarray(X), np.ones(N), known_noise(NOISE), 64)


def dense():
    held = system()
    K = np.asarray(held.kernel.matrix(held.X, held.X))
    Q = np.linalg.inv(K + NOISE * np.eye(N))
    return Q, Q @ y


def exact():
    _, alpha = dense()
    return ExactKernelPosterior(system(), jnp.asarray(alpha[:, None]), float(y @ alpha), Cholesky())


def sampled(n_samples):
    """With weights solved for exactly."""
    held, (Q, alpha) = system(), dense()
    prior = prior_functions(held.kernel, 2, n_samples, key=jax.random.key(0), dtype=jnp.float64)
    b = np.asarray(sample_targets(held.operator, prior, held.X, key=jax.random.key(1)))
    parts = (jnp.asarray(alpha[:, None]), float(y @ alpha), prior, jnp.asarray(Q @ b), CG(), 1e-10)
    return SampledKernelPosterior(held, *parts)


def test_a_scaled_posterior_keeps_what_is_left_of_its_right_hand_sides():
    """Those of samples are multiplied by √c, that of the mean is not: then c A of the weights divided is the same A w."""
    posterior, generator = sampled(3), np.random.default_rng(0)
    left = 0.1 * generator.normal(size=(N, 4))
    made = calibration.scaled(dataclasses.replace(posterior, left=jnp.asarray(left)), 4.0)
    weights = [np.concatenate([p.weights, p.sample_weights], axis=1) for p in (posterior, made)]
    before, after = (p.system.operator.dense() @ w for p, w in zip((posterior, made), weights, strict=True))
    times = np.array([1.0, 2.0, 2.0, 2.0])
    assert_allclose(after + made.left, (before + left) * times, rtol=1e-10, atol=1e-12)


def closed_form():
    """Rasmussen and Williams (2006), 5.10 to 5.12: errors α_i/Q_ii of variance 1/Q_ii."""
    Q, alpha = dense()
    return alpha**2 / np.diag(Q)


def test_a_factor_gives_the_closed_form():
    squares = closed_form()
    assert_allclose(calibration.calibrated(exact())[1], (1 + squares.sum()) / (1 + N), rtol=1e-10)


def test_samples_agree_within_their_errors():
    """(S − 2)/Σu² is unbiased with relative standard deviation √(2/(S − 4)); the rows' estimates share their samples."""
    S, squares = 400, closed_form()
    wanted = (1 + squares.sum()) / (1 + N)
    error = wanted * (2 / (S - 4)) ** 0.5
    assert abs(calibration.calibrated(sampled(S))[1] - wanted) < 3 * error


@pytest.mark.parametrize("make", [exact, lambda: sampled(16)])
def test_the_mean_stays_and_every_variance_is_scaled(make):
    """The posterior of c k and c σ²; a posterior made anew of that model says the same."""
    c, before = 2.5, make()
    mean, variance = before.mean_and_variance(Z)
    covariance, explained = before.covariance(Z), before.explained
    after = calibration.scaled(before, c)
    assert_allclose(after.mean_and_variance(Z)[0], mean, rtol=1e-9)
    assert_allclose(after.mean_and_variance(Z)[1], c * variance, rtol=1e-9)
    assert_allclose(after.covariance(Z), c * covariance, rtol=1e-6, atol=1e-8)
    assert float(after.noise.level) == pytest.approx(c * NOISE)
    assert after.explained == pytest.approx(explained / c)
    assert float(after.system.kernel.variance) == pytest.approx(1.3 * c)


def test_a_scaled_factor_is_that_of_the_scaled_matrix():
    A = np.cov(GENERATOR.normal(size=(5, 20)))
    scaled = factorised(lambda: A.copy()).times(3.0)
    assert_allclose(np.tril(scaled.L) @ np.tril(scaled.L).T, 3 * A, rtol=1e-12)


def test_errors_of_rows_left_out_know_what_the_solver_left():
    """The mean of α off by δ is off by −Kδ at every row; of its error without row i all is known but (1/Q_ii − σ²)(Qr)_i, r = −Aδ."""
    Q, alpha = dense()
    A, delta = np.linalg.inv(Q), 0.02 * GENERATOR.normal(size=N)
    off = dataclasses.replace(sampled(16), weights=jnp.asarray((alpha + delta)[:, None]), y=y)
    r = -A @ delta
    assert_allclose(off.residual, r, atol=1e-10)
    V, rows = calibration.left_out_variances(off), np.arange(0, N, 7)
    errors = (alpha + delta)[rows] * V[rows] + r[rows]
    assert_allclose(calibration.left_out_errors(off, rows), errors / V[rows] ** 0.5, rtol=1e-9)
    wanted = alpha / np.diag(Q) - (A - NOISE * np.eye(N)) @ delta
    known = (alpha + delta) / np.diag(Q) + r
    assert_allclose(wanted - known, (1 / np.diag(Q) - NOISE) * (Q @ r), atol=1e-9)
    scaled = calibration.scaled(off, 3.0)
    assert_allclose(
        scaled.y - np.asarray(scaled.system.operator.dense() @ scaled.weights)[:, 0], r, atol=1e-9
    )
    assert_allclose(scaled.residual, r)


def test_few_samples_say_nothing():
    posterior = sampled(calibration.FEWEST_SAMPLES - 1)
    assert calibration.calibrated(posterior) == (posterior, 1.0)
    none = dataclasses.replace(posterior, prior=None, sample_weights=None)
    assert calibration.calibrated(none)[1] == 1.0


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.RBF(0.5, 2.0),
        kernels.Linear(0.7) + kernels.Constant(0.2),
        kernels.Matern12(1.0) * kernels.Periodic(1.0, 2.0),
        kernels.Warped(kernels.Matern52(0.7), jnp.tanh),
    ],
)
def test_kernels_are_scaled(kernel):
    rows = jnp.asarray(X[:5])
    assert_allclose(kernel.times(3.0).matrix(rows, rows), 3 * kernel.matrix(rows, rows), rtol=1e-6)
