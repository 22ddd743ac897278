"""One factor for all variances, from training rows predicted without themselves."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from numpy.testing import assert_allclose

from stochgp import kernels
from stochgp.likelihoods.noise import known_noise
from stochgp.numerics.linalg import factorised
from stochgp.posteriors import (
    ExactKernelPosterior,
    KernelSystem,
    SampledKernelPosterior,
)
from stochgp.solvers import CG

pytestmark = pytest.mark.usefixtures("double")
N, NOISE = 60, 0.2
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * GENERATOR.normal(size=N)
Z = GENERATOR.uniform(-2, 2, (7, 2))


ONES, WEIGHTS = np.ones(N), np.random.default_rng(1).choice([0.1, 1.0, 10.0], N)
GROUPS = {
    "pairs": np.arange(N) // 2,
    "of 1 to 20": np.repeat([4, 1, 0, 3, 2], [1, 20, 9, 16, 14]),
    "two": np.arange(N) % 2,
}


def system(count=ONES):
    kernel = kernels.Matern32(jnp.asarray([0.8, 1.5]), jnp.asarray(1.3))
    return KernelSystem(kernel, jnp.asarray(X), count, known_noise(NOISE), 64)


def dense(count=ONES):
    held = system()
    K = np.asarray(matrix(held.kernel, held.X, held.X))
    Q = np.linalg.inv(K + np.diag(NOISE / count))
    return Q, Q @ y


def exact(count=ONES):
    _, alpha = dense(count)
    return ExactKernelPosterior(system(count), jnp.asarray(alpha[:, None]), float(y @ alpha), y)


def sampled(count=ONES):
    """With weights solved for exactly."""
    parts = exact(count)
    return SampledKernelPosterior(parts.system, parts.weights, parts.explained, CG(), 1e-10, y, np.zeros(N))


def left_out(count, group):
    """(y_i − m_i)²/(v_i + σ²) of each row: m_i and v_i given the rows of other groups, by a solve for each, whose noise variances are σ²/ρ."""
    held, squares = system(), np.empty(N)
    K = np.asarray(matrix(held.kernel, held.X, held.X))
    for i in range(N):
        rest = group != group[i]
        solved = np.linalg.solve(K[np.ix_(rest, rest)] + np.diag(NOISE / count[rest]), K[rest, i])
        squares[i] = (y[i] - solved @ y[rest]) ** 2 / (K[i, i] - solved @ K[rest, i] + NOISE)
    return squares


def scale(count, group=None):
    """(1 + n Σρz²/Σρ)/(1 + n), n = (Σρ)²/Σ ρ_g² of rows or groups: their number where they weigh the same."""
    each = np.arange(N) if group is None else group
    n = count.sum() ** 2 / sum(count[each == g].sum() ** 2 for g in np.unique(each))
    return (1 + n * np.average(left_out(count, each), weights=count)) / (1 + n)


@pytest.mark.parametrize("count", [ONES, WEIGHTS, 10 * WEIGHTS])
def test_a_factor_gives_what_rows_predicted_by_the_others_say(count):
    """Each scored as one observation, of variance v + σ², which counts ρ times."""
    assert_allclose(exact(count).calibrated()[1], scale(count), rtol=1e-8)


@pytest.mark.parametrize("count", [ONES, WEIGHTS])
def test_near_rows_agree(count):
    """48 of 59 tell nearly what all do; matrices are in float32."""
    assert_allclose(sampled(count).calibrated()[1], scale(count), rtol=2e-3)


@pytest.mark.parametrize("count", [ONES, WEIGHTS])
@pytest.mark.parametrize("name", GROUPS)
def test_whole_groups_are_left_out(name, count):
    """From all rows of other groups, which are fewer than are looked for."""
    wanted = scale(count, GROUPS[name])
    for posterior in (exact(count), sampled(count)):
        assert_allclose(posterior.calibrated(GROUPS[name])[1], wanted, rtol=1e-4)
    assert abs(wanted / scale(count) - 1) > 0.005


@pytest.mark.parametrize("make", [exact, sampled])
def test_the_mean_stays_and_every_variance_is_scaled(make):
    """The posterior of c k and c σ²; a posterior made anew of that model says the same."""
    c, before = 2.5, make()
    mean, variance = before.mean_and_variance(Z)
    covariance, explained = before.covariance(Z), before.explained
    after = before.scaled(c)
    assert_allclose(after.mean_and_variance(Z)[0], mean, rtol=1e-9)
    assert_allclose(after.mean_and_variance(Z)[1], c * variance, rtol=1e-5)
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
    r = -A @ delta
    off = dataclasses.replace(sampled(), weights=jnp.asarray((alpha + delta)[:, None]), left=r)
    rows = np.arange(0, N, 7)
    V = off.left_out_variances(rows)
    assert_allclose(V, 1 / np.diag(Q)[rows], rtol=2e-3)
    assert_allclose(off.left_out(rows)[0], (alpha + delta)[rows] * V + r[rows], rtol=1e-9)
    wanted = alpha / np.diag(Q) - (A - NOISE * np.eye(N)) @ delta
    known = (alpha + delta) / np.diag(Q) + r
    assert_allclose(wanted - known, (1 / np.diag(Q) - NOISE) * (Q @ r), atol=1e-9)
    scaled = off.scaled(3.0)
    assert_allclose(
        scaled.y - np.asarray(scaled.system.operator.dense() @ scaled.weights)[:, 0], r, atol=1e-9
    )
    assert_allclose(scaled.residual, r)


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
