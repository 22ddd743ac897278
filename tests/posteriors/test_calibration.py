"""One factor for all variances, from training rows predicted without themselves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from stochgp import kernels
from stochgp.likelihoods.noise import known_noise
from stochgp.numerics.linalg import factorised
from stochgp.posteriors import (
    ExactKernelPosterior,
    KernelSystem,
    SampledKernelPosterior,
    calibration,
    sample_targets,
)
from stochgp.posteriors.sampled import FEWEST_SAMPLES, NoiseDraws
from stochgp.priors import prior_functions
from stochgp.solvers import CG, Cholesky

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
    K = np.asarray(held.kernel.matrix(held.X, held.X))
    Q = np.linalg.inv(K + np.diag(NOISE / count))
    return Q, Q @ y


def exact(count=ONES):
    _, alpha = dense(count)
    return ExactKernelPosterior(system(count), jnp.asarray(alpha[:, None]), float(y @ alpha), Cholesky())


def sampled(n_samples, count=ONES):
    """With weights solved for exactly."""
    held, (Q, alpha) = system(count), dense(count)
    prior = prior_functions(held.kernel, 2, n_samples, key=jax.random.key(0), dtype=jnp.float64)
    b = np.asarray(sample_targets(held.operator, prior, held.X, key=jax.random.key(1)))
    parts = (jnp.asarray(alpha[:, None]), float(y @ alpha), prior, jnp.asarray(Q @ b), CG(), 1e-10)
    return SampledKernelPosterior(held, *parts, y=y, draws=NoiseDraws((N,), (jax.random.key(1),)))


def test_a_scaled_posterior_keeps_what_is_left_of_its_right_hand_sides():
    """Those of samples are multiplied by √c, that of the mean is not: then c A of the weights divided is the same A w."""
    posterior, generator = sampled(3), np.random.default_rng(0)
    left = 0.1 * generator.normal(size=(N, 4))
    made = calibration.scaled(dataclasses.replace(posterior, left=jnp.asarray(left)), 4.0)
    weights = [np.concatenate([p.weights, p.sample_weights], axis=1) for p in (posterior, made)]
    before, after = (p.system.operator.dense() @ w for p, w in zip((posterior, made), weights, strict=True))
    times = np.array([1.0, 2.0, 2.0, 2.0])
    assert_allclose(after + made.left, (before + left) * times, rtol=1e-10, atol=1e-12)


def left_out(count, group):
    """(y_i − m_i)²/(v_i + σ²) of each row: m_i and v_i given the rows of other groups, by a solve for each, whose noise variances are σ²/ρ."""
    held, squares = system(), np.empty(N)
    K = np.asarray(held.kernel.matrix(held.X, held.X))
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
    assert_allclose(calibration.calibrated(exact(count))[1], scale(count), rtol=1e-8)


@pytest.mark.parametrize("count", [ONES, WEIGHTS])
def test_samples_agree_within_their_errors(count):
    """The estimates of variances are unbiased, with relative standard deviations of at most 2/√(S − 4); those of the rows share their samples."""
    S, wanted = 400, scale(count)
    assert abs(calibration.calibrated(sampled(S, count))[1] - wanted) < 3 * wanted * 2 / (S - 4) ** 0.5


@pytest.mark.parametrize("S", [8, 16])
def test_variances_from_few_samples_are_unbiased(S):
    """Over 150 sets of samples, relative to 1/Q_ii − σ_i², the variance of f, of weighted rows, to 1/Q_ii of others: 1 to 4 standard errors.

    An estimate with S in the place of S − 2 would be 33 or 14 % too large.
    """
    Q, _ = dense(WEIGHTS)
    own, root = NOISE / WEIGHTS, np.linalg.cholesky(np.linalg.inv(dense()[0]) - NOISE * np.eye(N))
    blank, ratios = sampled(S, WEIGHTS), []
    for seed in range(150):
        key = jax.random.key(seed)
        drawn = np.asarray(jax.random.normal(key, (N, S), jnp.float64))
        b = root @ np.random.default_rng(seed).normal(size=(N, S)) + np.sqrt(own)[:, None] * drawn
        made = dataclasses.replace(blank, sample_weights=jnp.asarray(Q @ b), draws=NoiseDraws((N,), (key,)))
        V, exact_V = made.left_out_variances, 1 / np.diag(Q)
        off = np.where(WEIGHTS == 1, 0, own)
        assert (off <= V).all()
        ratios.append([np.mean(((V - off) / (exact_V - off))[w == WEIGHTS]) for w in (0.1, 1.0, 10.0)])
    mean, error = np.mean(ratios, axis=0), np.std(ratios, axis=0) / 150**0.5
    assert (np.abs(mean - 1) < 4 * error).all()
    assert (error < 0.06).all()


@pytest.mark.parametrize("count", [ONES, WEIGHTS])
@pytest.mark.parametrize("name", GROUPS)
def test_whole_groups_are_left_out(name, count, monkeypatch):
    """By blocks of the inverse, of a few groups at a time; and from samples by all rows of other groups, which are fewer than are looked for."""
    monkeypatch.setattr(calibration, "COLUMNS", 12)
    wanted = scale(count, GROUPS[name])
    assert_allclose(calibration.calibrated(exact(count), GROUPS[name])[1], wanted, rtol=1e-8)
    assert_allclose(calibration.calibrated(sampled(3, count), GROUPS[name])[1], wanted, rtol=1e-6)
    assert abs(wanted / scale(count) - 1) > 0.005


def test_a_large_factor_leaves_groups_out_by_neighbours(monkeypatch):
    """No block is as large as a group."""
    monkeypatch.setattr(calibration, "SMALL", N - 1)
    posterior, group = dataclasses.replace(exact(), y=y), GROUPS["of 1 to 20"]
    assert_allclose(calibration.calibrated(posterior, group)[1], scale(ONES, group), rtol=1e-6)
    assert calibration.calibrated(exact(), group)[1] == 1.0  # without its targets


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
    off = dataclasses.replace(sampled(16), weights=jnp.asarray((alpha + delta)[:, None]))
    r = -A @ delta
    assert_allclose(off.residual, r, atol=1e-10)
    V, rows = 14 / np.sum(np.asarray(off.sample_weights) ** 2, axis=1), np.arange(0, N, 7)
    errors = (alpha + delta)[rows] * V[rows] + r[rows]
    assert_allclose(off.errors_without(rows), errors / V[rows] ** 0.5, rtol=1e-9)
    wanted = alpha / np.diag(Q) - (A - NOISE * np.eye(N)) @ delta
    known = (alpha + delta) / np.diag(Q) + r
    assert_allclose(wanted - known, (1 / np.diag(Q) - NOISE) * (Q @ r), atol=1e-9)
    scaled = calibration.scaled(off, 3.0)
    assert_allclose(
        scaled.y - np.asarray(scaled.system.operator.dense() @ scaled.weights)[:, 0], r, atol=1e-9
    )
    assert_allclose(scaled.residual, r)


def test_deviations_know_what_the_solver_left():
    """f_s − mean = f₀ₛ − Ku_s at the training rows, whatever the u_s are."""
    posterior, delta = sampled(8, WEIGHTS), 0.02 * np.random.default_rng(0).normal(size=(N, 9))
    A = np.asarray(posterior.system.operator.dense())
    u = np.asarray(posterior.sample_weights) + delta[:, 1:]
    off = dataclasses.replace(posterior, sample_weights=jnp.asarray(u), left=jnp.asarray(-A @ delta))
    d = np.asarray(posterior.prior(posterior.system.X)) - (A - np.diag(NOISE / WEIGHTS)) @ u
    assert_allclose(off.squared_deviations, np.mean(d**2, axis=1), rtol=1e-8)


def test_few_samples_say_nothing():
    posterior = sampled(FEWEST_SAMPLES - 1)
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
