"""Variances from samples: two estimates of each, combined by what each is worth."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from systems import KERNEL, cancelling

from stochgp.likelihoods.noise import known_noise
from stochgp.parameters import cast
from stochgp.posteriors import KernelSystem, SampledKernelPosterior, calibration, sample_targets
from stochgp.posteriors.base import variance_of_samples
from stochgp.posteriors.kernel import KernelFunctions, cross
from stochgp.posteriors.sampled import NoiseDraws
from stochgp.priors import prior_functions
from stochgp.solvers import CG
from tests.posteriors.test_calibration import ONES, WEIGHTS, N, X, dense, exact, sampled, system

pytestmark = pytest.mark.usefixtures("double")
S, SETS = 64, 120


def stated(t):
    return (2 / S) ** 0.5 * (1 - t) / np.sqrt(t**2 + (1 - t) ** 2)


@pytest.mark.parametrize("t", [0.001, 0.02, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999])
def test_its_error_is_the_stated_one(t):
    """Of 20,000 rows with independent samples: the root mean square within 6 %, which is more than four of its standard errors, and a tenth of it is bias at most."""
    generator, v, k = np.random.default_rng(0), 3.0 * t, 3.0
    d, g = (generator.normal(size=(20_000, S)) * np.sqrt(var) for var in (v, k - v))
    error = (
        np.asarray(variance_of_samples(*(jnp.asarray(part) for part in (d, g, np.full(len(d), k))))) / v - 1
    )
    assert_allclose(np.mean(error**2) ** 0.5, stated(t), rtol=0.06)
    assert abs(np.mean(error)) < 0.1 * stated(t)


AT = np.concatenate([np.random.default_rng(3).uniform(-2, 2, (10, 2)), [[2.5, 0], [3, 1], [4, 0], [9, 9]]])


def variances(near=None):
    """Of f at rows near to the training rows and far from them, given all of these or the `near` of each."""
    held, every = system(), range(N)
    K, across = (np.asarray(held.kernel.matrix(held.X, jnp.asarray(rows))) for rows in (X, AT))
    found = np.asarray(held.kernel.diag(jnp.asarray(AT))).copy()
    for i, own in enumerate([every] * len(AT) if near is None else near):
        own = np.asarray(own)
        A = K[np.ix_(own, own)] + np.diag(held.row_noise[own])
        found[i] -= across[own, i] @ np.linalg.solve(A, across[own, i])
    return found


@functools.cache
def estimates(n_neighbours):
    """Of many sets of samples."""
    posterior, (Q, _) = sampled(S), dense()
    posterior = dataclasses.replace(posterior, n_neighbours=n_neighbours)
    held, found = posterior.system, []
    for seed in range(SETS):
        keys = jax.random.split(jax.random.key(seed), 2)
        prior = prior_functions(held.kernel, 2, S, key=keys[0], n_features=200, dtype=jnp.float64)
        u = Q @ np.asarray(sample_targets(held.operator, prior, held.X, key=keys[1]))
        new = {"prior": prior, "sample_weights": jnp.asarray(u), "draws": NoiseDraws((N,), (keys[1],))}
        found.append(np.asarray(dataclasses.replace(posterior, **new).mean_and_variance(AT)[1]))
    return np.array(found)


def nearest(n_neighbours):
    return dataclasses.replace(sampled(S), n_neighbours=n_neighbours).nearest(AT)


@pytest.mark.parametrize("n_neighbours", [0, 1, 3])
def test_a_posterior_s_variances_have_the_stated_error(n_neighbours):
    """Over sets of samples, within a quarter: they are draws of random features, of which four functions share each set."""
    v, found = variances(), estimates(n_neighbours)
    t, error = v / variances(nearest(n_neighbours)), np.sqrt(np.mean((found / v - 1) ** 2, axis=0))
    assert t.min() < (0.3 if n_neighbours == 0 else 0.8) and np.sum(t > 0.6) >= 3
    near = t < 0.9
    assert_allclose(error[near], stated(t)[near], rtol=0.25)
    assert np.all(error[~near] < 0.03)


def test_the_nearest_rows_are_those_of_highest_correlation_and_bound_the_variance():
    held, near = system(), nearest(5)
    across = np.asarray(held.kernel.matrix(jnp.asarray(AT), held.X))
    assert_array_equal(near[:-1], np.argsort(-across, axis=1)[:-1, :5])  # the last point is far from all rows
    assert np.all(variances(near) >= variances() * (1 - 1e-9))


def unfinished(count):
    """Samples that are solved for badly, their variances beginning with all rows."""
    posterior = sampled(S, count)
    u = posterior.sample_weights * 0.7 + 0.1 * np.random.default_rng(0).normal(size=(N, S))
    b = sample_targets(posterior.system.operator, posterior.prior, posterior.system.X, key=jax.random.key(1))
    left = np.concatenate([np.zeros((N, 1)), np.asarray(b) - posterior.system.operator.dense() @ u], axis=1)
    return dataclasses.replace(posterior, sample_weights=u, left=jnp.asarray(left), n_neighbours=N)


@pytest.mark.parametrize("count", [ONES, WEIGHTS])
def test_given_all_rows_variances_are_exact_whatever_the_solver_left(count):
    """What is near is then all: the samples solve for A u exactly, for any u."""
    made = unfinished(count)
    wanted = exact(count).mean_and_variance(AT)[1]
    assert_allclose(made.mean_and_variance(AT)[1], wanted, rtol=1e-8)
    assert_allclose(calibration.scaled(made, 4.0).mean_and_variance(AT)[1], 4 * wanted, rtol=1e-8)


def test_a_point_that_is_not_finite_leaves_the_others_as_they_are():
    """Its mean is not finite, by which predictions refuse it and name its row."""
    posterior = dataclasses.replace(sampled(8), n_neighbours=6)
    found = posterior.mean_and_variance(np.array([AT[0], [np.inf, 0.0], AT[1]]))
    wanted = posterior.mean_and_variance(AT[:2])
    assert not np.isfinite(found[0][1])
    for part, right in zip(found, wanted, strict=True):
        assert_allclose(np.asarray(part)[[0, 2]], right, rtol=1e-10)


@pytest.mark.parametrize("count", [ONES, WEIGHTS])
def test_given_all_others_left_out_variances_are_exact_whatever_the_solver_left(count):
    made, rows = unfinished(count), np.arange(0, N, 3)
    Q, _ = dense(count)
    assert_allclose(made.left_out_variances_near(rows), 1 / np.diag(Q)[rows], rtol=1e-7)
    with pytest.raises(ValueError, match="do not begin with near rows"):
        dataclasses.replace(made, n_neighbours=0).left_out_variances_near(rows)


def test_left_out_variances_of_near_rows_are_surer_than_those_of_samples_alone():
    """64 samples, 6 near rows: a third of the error of (S − 2)/Σu² at most."""
    made, rows = dataclasses.replace(sampled(S), n_neighbours=6), np.arange(N)
    wanted = 1 / np.diag(dense()[0])
    near, alone = (
        np.std(found / wanted - 1) for found in (made.left_out_variances_near(rows), made.left_out_variances)
    )
    assert near < alone / 3


@pytest.mark.parametrize(("share", "kept"), [(1.0, 8), (0.95, 8), (0.87, 0)])
def test_variances_stay_as_those_are_that_calibrate_them(share, kept):
    """Samples that were solved for by a share alone have 1/Q_ii too large by its square, near rows hardly."""
    posterior = sampled(512)
    u = posterior.sample_weights * share
    left = np.concatenate(
        [np.zeros((N, 1)), (1 - share) * (posterior.system.operator.dense() @ posterior.sample_weights)],
        axis=1,
    )
    made = dataclasses.replace(posterior, sample_weights=u, left=jnp.asarray(left), n_neighbours=8)
    assert calibration.consistent(made).n_neighbours == kept
    alone = dataclasses.replace(made, n_neighbours=0)
    assert calibration.consistent(alone) is alone


def test_errors_of_the_solver_hardly_move_variances_that_begin_with_near_rows():
    """A relative residual of 0.1 makes variances from samples alone larger, and those from 8 near rows on a third as much so at most."""
    posterior, (Q, _) = sampled(512), dense()
    held, generator = posterior.system, np.random.default_rng(0)
    left = generator.normal(size=(N, 512)) * 0.1 * np.linalg.norm(held.operator.dense(), axis=1).mean() ** 0.5
    u = posterior.sample_weights - Q @ left
    left = jnp.asarray(np.concatenate([np.zeros((N, 1)), left], axis=1))
    moved = []
    for n_neighbours in (0, 8):
        new = {"sample_weights": u, "left": left, "n_neighbours": n_neighbours}
        pair = (
            dataclasses.replace(posterior, n_neighbours=n_neighbours),
            dataclasses.replace(posterior, **new),
        )
        before, after = (np.asarray(p.mean_and_variance(AT[:10])[1]) for p in pair)
        moved.append(np.mean(after / before - 1))
    assert moved[0] > 0.02 and abs(moved[1]) < moved[0] / 3


def test_of_float32_they_are_those_of_float64():
    posterior = dataclasses.replace(sampled(16), n_neighbours=8)
    small = cast(dataclasses.replace(posterior, y=None), "float32")
    wanted = posterior.mean_and_variance(AT)[1]
    rows = posterior.sample_rows._replace(noise=posterior.system.row_noise)
    vars(small)["sample_rows"] = cast(rows, "float32")  # whose draws would be others
    found = small.mean_and_variance(AT.astype(np.float32))[1]
    assert found.dtype == np.float32
    assert_allclose(found, wanted, rtol=1e-4)


def test_moments_of_float32_are_summed_in_float64():
    """Weights of rows that come twice are 10⁶ and opposite: mean, residual, samples and functions are those of the same entries in NumPy."""
    rows, W = cancelling()
    system = KernelSystem(
        cast(KERNEL, "float32"), jnp.asarray(rows, jnp.float32), np.ones(len(rows)), known_noise(1e-6), 14
    )
    prior = prior_functions(system.kernel, 2, 2, key=jax.random.key(0), dtype=jnp.dtype(jnp.float32))
    posterior = SampledKernelPosterior(
        system, jnp.asarray(W[:, :1]), 1.0, prior, jnp.asarray(W[:, 1:]), CG(), 1e-3, y=rows[:, 0]
    )
    Z = np.asarray(rows[:7] + 0.1, np.float32)
    across = lambda Z: np.asarray(cross(system.operator, Z)[0], np.float64).T @ W
    mean, _ = posterior.mean_and_variance(Z)
    assert_allclose(mean, across(Z)[:, 0], rtol=1e-4, atol=1e-4)
    assert_allclose(posterior.mean(Z), across(Z)[:, 0], rtol=1e-4, atol=1e-4)
    fitted = rows[:, 0] - 1e-6 * W[:, 0].astype(np.float64) - posterior.residual
    assert_allclose(fitted, across(rows.astype(np.float32))[:, 0], rtol=1e-4, atol=1e-4)
    functions = KernelFunctions(system.operator, prior, system.operator.pad(jnp.asarray(W[:, 1:])))
    drawn = np.asarray(prior(jnp.asarray(Z)))[:, :2]
    assert_allclose(functions(jnp.asarray(Z)) - drawn, across(Z)[:, 1:], rtol=1e-4, atol=1e-4)


def test_far_from_all_rows_it_is_the_prior_s():
    posterior = sampled(8)
    Z = np.full((3, 2), 1e4)
    assert_allclose(
        posterior.mean_and_variance(Z)[1], posterior.system.kernel.diag(jnp.asarray(Z)), rtol=1e-12
    )
