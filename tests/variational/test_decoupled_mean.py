"""A mean from more points than the covariance has: the optimum that it is, its left-out rows, and draws of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from numpy.testing import assert_allclose

from stochgp import SparseGPRegressor, learners, load
from stochgp.data.memory import MemorySource
from stochgp.kernels import Matern32
from stochgp.models import SparseGP
from stochgp.objectives import lower_bound
from stochgp.variational import DecoupledMean, InducingPoints, NormalEquations

N, D, NOISE = 60, 2, 0.05
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, D))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * GENERATOR.normal(size=N)
WEIGHT = GENERATOR.integers(1, 4, N).astype(float)
NEW = GENERATOR.uniform(-2, 2, (9, D))


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def kernel():
    return Matern32(jnp.asarray([1.0, 1.5]), jnp.asarray(1.3))


def equations(points, rows=slice(None), weight=WEIGHT):
    source = MemorySource(X[rows], Y[rows], weight[rows], dtype=np.dtype(np.float64), on_device=False)
    return NormalEquations.of(kernel(), points, source.blocks(16))


def process(points):
    """Of the optimal q(u) at these points."""
    at = InducingPoints.of(jnp.asarray(points), jitter=1e-8)
    source = MemorySource(X, Y, WEIGHT, dtype=np.dtype(np.float64), on_device=False)
    gaussian = lower_bound(SparseGP(kernel(), at, NOISE), source)[1]
    return eqx.filter_jit(lambda at, q, kernel: at.at(*q).process(kernel))(at, gaussian, kernel())


@eqx.filter_jit
def parts(process, rows):
    """(Mean, covariance parts, variances): one program is compiled sooner than one for each operation."""
    return process.mean(rows), process.covariance_parts(rows), process.moments(rows)[1]


def test_the_mean_of_the_inducing_points_themselves_is_that_of_the_optimal_q():
    points = X[:12]
    base, solved = process(points), equations(points).solved(NOISE)
    made = DecoupledMean(
        *vars(base).values(), jnp.asarray(points), jnp.asarray(solved.weights), jnp.asarray(NOISE)
    )
    mine, others = (parts(one, jnp.asarray(NEW))[0] for one in (made, base))
    assert_allclose(mine, others, atol=1e-6)


def test_points_at_all_rows_give_the_exact_posterior_mean():
    solved = equations(X).solved(NOISE)
    K = np.asarray(matrix(kernel(), jnp.asarray(X), jnp.asarray(X)))
    exact = np.asarray(matrix(kernel(), jnp.asarray(NEW), jnp.asarray(X))) @ np.linalg.solve(
        K + np.diag(NOISE / WEIGHT), Y
    )
    assert_allclose(
        np.asarray(matrix(kernel(), jnp.asarray(NEW), jnp.asarray(X))) @ solved.weights,
        exact,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("n", [5, 25])
def test_errors_without_each_row_are_those_of_fits_without_it(n):
    points = X[:n]
    found = equations(points).solved(NOISE).without(X, Y, WEIGHT)
    for i in (0, 3, N - 1):
        others = np.delete(np.arange(N), i)
        mean = (
            np.asarray(matrix(kernel(), jnp.asarray(X[i : i + 1]), jnp.asarray(points)))
            @ equations(points, others).solved(NOISE).weights
        )
        assert_allclose(found[i], Y[i] - mean[0], rtol=1e-6)


def test_draws_have_the_decoupled_mean_and_the_covariance_of_the_inducing_points():
    base, solved = process(X[:8]), equations(X[:40]).solved(NOISE)
    made = DecoupledMean(
        *vars(base).values(), jnp.asarray(X[:40]), jnp.asarray(solved.weights), jnp.asarray(NOISE)
    )
    prior = lambda rows: jnp.zeros((len(rows), 7))
    key, new = jax.random.key(0), jnp.asarray(NEW)
    (mean, *mine), (plain, *others) = (jax.tree.map(np.asarray, parts(one, new)) for one in (made, base))
    jax.tree.map(assert_allclose, mine, others)
    assert np.abs(mean - plain).max() > 0.01

    @jax.jit
    def drawn(new):
        draw, one_of_base = (process.correction(prior, 7, key=key) for process in (made, base))
        one = lambda x: draw(x[None])[0, 3]
        slopes = [derivative(one)(new[0]) for derivative in (jax.jacfwd, jax.grad, jax.hessian)]
        return draw(new) - one_of_base(new), slopes

    moved, (forward, backward, H) = drawn(new)
    assert_allclose(moved, np.repeat(mean - plain, 7, axis=1), atol=1e-9)
    assert_allclose(forward, backward, rtol=1e-9)  # in both modes
    assert_allclose(H, H.T, atol=1e-8 * np.abs(H).max())


def rough(n=1_500):
    """What twenty points cannot explain."""
    generator = np.random.default_rng(1)
    rows = generator.uniform(-3, 3, (n, 2))
    return rows, np.sin(3 * rows[:, 0]) * np.cos(3 * rows[:, 1]) + 0.1 * generator.normal(size=n)


def test_a_decoupled_mean_is_taken_if_left_out_rows_gain_and_saved(tmp_path):
    rows, y = rough()
    few = {"n_inducing": 20, "learner": learners.SVGP(epochs=3), "random_state": 0}
    found = SparseGPRegressor(**few).fit(rows[:1_000], y[:1_000])
    narrow = SparseGPRegressor(n_inducing_mean=0, **few).fit(rows[:1_000], y[:1_000])
    assert (
        found.plan_["n_inducing_mean"]["choice"] == 1_000 and narrow.plan_["n_inducing_mean"]["choice"] == 0
    )
    error = lambda model: np.sqrt(np.mean((model.predict(rows[1_000:]) - y[1_000:]) ** 2))
    assert error(found) < 0.7 * error(narrow)
    assert found.noise_variance_ < narrow.noise_variance_
    lower, upper = found.predict_interval(rows[1_000:], 0.9).T
    assert 0.85 < np.mean((lower < y[1_000:]) & (y[1_000:] < upper)) < 0.95
    assert "solved" not in vars(found._fitted.posterior)
    found.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(rows[:5]), found.predict(rows[:5]))


@pytest.mark.long
def test_groups_keep_the_noise_and_other_likelihoods_the_inducing_points():
    rows, y = rough(400)
    few = {"n_inducing": 20, "learner": learners.SVGP(epochs=2), "random_state": 0}
    grouped = SparseGPRegressor(**few).fit(rows, y, groups=np.arange(400) // 4)
    assert grouped.fit_report_["mean_noise"] == 1.0
    heavy = SparseGPRegressor(likelihood="student-t", **few).fit(rows, y)
    assert heavy.plan_["n_inducing_mean"]["choice"] == 0
    with pytest.raises(ValueError, match="n_inducing_mean"):
        SparseGPRegressor(learner="ivsgpr", n_inducing_mean=50).fit(rows, y)
    with pytest.raises(ValueError, match="needs at least one function for the mean"):
        SparseGPRegressor(learner="svdgp", n_inducing_mean=0).fit(rows, y)


def test_rows_of_a_posterior_are_left_out_of_the_decoupled_mean():
    rows, y = rough(300)
    model = SparseGPRegressor(
        n_inducing=15, learner=learners.SVGP(epochs=2), n_inducing_mean=100, random_state=0
    )
    seen = {}
    original = SparseGPRegressor._error_distribution

    def spy(self, posterior, gp, data, context):
        some = data.rows.take(np.arange(5))
        z = posterior.errors_of_left_out(np.arange(5), data.rows, float(gp.noise_variance))
        solved = vars(posterior)["solved"]
        seen["error"] = solved.without(some.X, np.asarray(some.y, np.float64), some.weights)
        variance = posterior.without(some, float(gp.noise_variance))[1]
        seen["z"], seen["V"] = z, variance + posterior.noise
        return original(self, posterior, gp, data, context)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparseGPRegressor, "_error_distribution", spy)
        model.fit(rows, y)
    assert_allclose(seen["z"], seen["error"] / np.sqrt(seen["V"]), rtol=1e-9)
