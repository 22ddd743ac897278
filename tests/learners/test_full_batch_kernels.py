"""Full batch for kernel GPs: the minimiser, the optimum from several starts, sets and their average, the prior, resumption."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from stochgp import kernels
from stochgp.data.memory import MemorySource
from stochgp.learners import ByLoss, full_batch
from stochgp.learners.full_batch import FullBatch
from stochgp.learning import fit
from stochgp.models import KernelGP
from stochgp.objectives import nlml_and_gradient
from stochgp.parameters import positive
from stochgp.results import RESULTS

N = 24
KEY = jax.random.key(0)


pytestmark = pytest.mark.usefixtures("double")


@functools.cache
def make_data(n=N, seed=0):
    generator = np.random.default_rng(seed)
    X = np.sort(generator.uniform(-3, 3, size=(n, 1)), axis=0)
    return X, np.sin(2 * X[:, 0]) + 0.2 * generator.normal(size=n)


def make_source(n=N, weight=None):
    with jax.enable_x64(True):
        return MemorySource(*make_data(n), weight, dtype=jnp.float64)


def make_gp(lengthscale=1.0, variance=1.0, noise_variance=0.1):
    kernel = kernels.RBF(positive(lengthscale, dtype=jnp.float64), positive(variance, dtype=jnp.float64))
    return KernelGP(kernel, positive(noise_variance, lower=1e-6, dtype=jnp.float64))


def raw_of(gp):
    """log lengthscale, log variance, log(noise − floor)."""
    parts = (gp.kernel.lengthscale.raw, gp.kernel.variance.raw, gp.noise_variance.raw)
    return np.array([float(part) for part in parts])


def dense_nlml(x, X, y):
    lengthscale, variance, s2 = *np.exp(x[:2]), 1e-6 + np.exp(x[2])
    A = variance * np.exp(-((X - X.T) ** 2) / (2 * lengthscale**2)) + s2 * np.eye(len(y))
    return (y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1] + len(y) * np.log(2 * np.pi)) / (2 * len(y))


def learn(learner, gp=None, source=None, **options):
    gp = make_gp() if gp is None else gp
    return fit(learner, gp, make_source() if source is None else source, key=KEY, **options)


# The minimiser


def test_it_finds_the_minimum_of_a_curved_valley():
    def loss(x):
        a, b = x[0] - 1, 10 * (x[1] - x[0] ** 2)
        return a**2 + b**2, np.array([2 * a - 40 * b * x[0], 20 * b])

    at, values = full_batch.begin(np.array([-1.2, 1.0])), []
    while not at.stuck and len(values) < 100:
        at = full_batch.step(at, loss, 1e-14)
        values.append(at.value)
    assert np.all(np.diff(values) <= 1e-13)
    assert len(values) < 60
    np.testing.assert_allclose(at.x, 1.0, atol=1e-6)


def test_rounding_does_not_stop_it_and_a_minimum_does():
    noise = np.random.default_rng(2)

    def rough(x):
        return x @ x + 1e-7 * noise.uniform(), 2 * x

    at = full_batch.begin(np.array([3.0, -4.0]))
    for _ in range(30):
        at = full_batch.step(at, rough, 1e-6)
    assert np.linalg.norm(at.x) < 1e-3
    still = full_batch.step(full_batch.begin(np.zeros(2)), lambda x: (x @ x, 2 * x), 1e-12)
    assert still.stuck


# The optimum


@functools.cache
def _optimum(spread=None):
    """The lowest NLML, or with the prior around make_gp(): NumPy and SciPy."""
    X, y = make_data()
    start = raw_of(make_gp())
    pull = 0.0 if spread is None else 1 / (spread**2 * len(y))
    loss = lambda x: dense_nlml(x, X, y) + 0.5 * pull * np.sum((x - start) ** 2)
    return minimize(
        loss, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000}
    )


@pytest.mark.parametrize("start", [(1.0, 1.0, 0.1), (0.3, 5.0, 1.0), (2.0, 0.2, 0.01)])
def test_every_start_reaches_the_optimum(start):
    found = learn(FullBatch(tolerance=1e-12), make_gp(*start))
    assert found.result is RESULTS.successful
    np.testing.assert_allclose(found.loss, _optimum().fun, atol=1e-9)
    np.testing.assert_allclose(raw_of(found.gp), _optimum().x, atol=1e-3)
    losses = [entry["loss"] for entry in found.history[1:]]
    assert np.all(np.diff(losses) < 1e-9)


def test_the_information_of_left_out_rows_saves_evaluations(monkeypatch):
    source, settings = make_source(200), {"tolerance": 1e-9}
    plain = learn(FullBatch(**settings), source=source)
    monkeypatch.setattr(full_batch, "HESSIAN_ROWS", 100)
    informed = learn(FullBatch(**settings), source=source)
    np.testing.assert_allclose(informed.loss, plain.loss, atol=1e-8)
    np.testing.assert_allclose(raw_of(informed.gp), raw_of(plain.gp), atol=1e-2)
    count = lambda found: sum(entry.get("evaluations", 0) for entry in found.history)
    assert count(informed) < count(plain)


@pytest.mark.parametrize("factor", [1.0, 1.3, 1.8])
def test_one_step_corrects_the_scale_of_a_given_hessian(factor):
    """For a quadratic loss, the memory then gives Newton's direction for any gradient."""
    B = np.random.default_rng(0).normal(size=(4, 4))
    A, low = B @ B.T + np.eye(4), np.array([0.3, -0.2, 0.5, 0.1])
    loss = lambda x: ((x - low) @ A @ (x - low) / 2, A @ (x - low))
    at = full_batch.step(full_batch.begin(np.zeros(4), A / factor), loss, 1e-15)
    g = np.random.default_rng(1).normal(size=4)
    found = full_batch._direction(dataclasses.replace(at, gradient=g))
    np.testing.assert_allclose(found, -np.linalg.solve(A, g), rtol=1e-10)


def test_the_first_step_with_a_given_hessian_is_newtons():
    gp, (X, y) = make_gp(0.8, 0.7, 0.05), make_data()
    x = raw_of(gp)
    shifted = lambda i, j: dense_nlml(x + 1e-3 * (np.eye(3)[i] + np.eye(3)[j]), X, y)
    ones = [dense_nlml(x + 1e-3 * e, X, y) for e in np.eye(3)]
    H = np.array([[shifted(i, j) - ones[i] - ones[j] for j in range(3)] for i in range(3)]) + dense_nlml(
        x, X, y
    )
    g = [dense_nlml(x + 1e-6 * e, X, y) - dense_nlml(x - 1e-6 * e, X, y) for e in np.eye(3)]
    found = learn(FullBatch(epochs=1, hessian=H / 1e-6), gp)
    np.testing.assert_allclose(
        raw_of(found.gp) - x, -np.linalg.solve(H / 1e-6, np.array(g) / 2e-6), rtol=1e-4
    )


def test_a_prior_moves_the_optimum_as_it_must():
    found = learn(FullBatch(tolerance=1e-12, spread=0.5))
    np.testing.assert_allclose(found.loss, _optimum(0.5).fun, atol=1e-9)
    np.testing.assert_allclose(raw_of(found.gp), _optimum(0.5).x, atol=1e-3)
    assert np.linalg.norm(raw_of(found.gp) - _optimum().x) > 0.05


def test_weights_stand_for_repeated_rows():
    times = np.arange(N) % 3 + 1
    X, y = make_data()
    repeated = MemorySource(np.repeat(X, times, axis=0), np.repeat(y, times), dtype=jnp.float64)
    learner = FullBatch(epochs=5, tolerance=0.0)
    found = learn(learner, source=make_source(weight=times))
    np.testing.assert_allclose(raw_of(found.gp), raw_of(learn(learner, source=repeated).gp), rtol=1e-5)


def test_small_noise_is_fitted_in_float64():
    """In float32 the factor of nearly equal rows would need a jitter."""
    X = np.repeat(make_data()[0], 2, axis=0)[:N]
    source = MemorySource(X, np.sin(X[:, 0]), dtype=jnp.float64)
    found = learn(FullBatch(epochs=3), make_gp(3.0, 1.0, 2e-6), source)
    assert nlml_and_gradient(found.gp, source.on_host(np.arange(N))).jitter == 0


# Sets of rows


def test_a_subset_is_random_and_enough_rows_are_all_rows():
    learner, source = FullBatch(subset_rows=N), make_source(3 * N)
    plan = learner.plan(source.size, source.n_inputs, ByLoss())
    rows = learner.prepare(make_gp(), source, plan, (3,)).rows
    assert len(rows.y) == N and set(rows.X[:, 0]) < set(make_data(3 * N)[0][:, 0])
    assert len(learner.prepare(make_gp(), make_source(), plan, (3,)).rows.y) == N
    assert learner.seen_rows(N - 1) == N - 1


# Cutting a run


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    learner = FullBatch(epochs=40, subset_rows=N, tolerance=0.0)
    source, path = make_source(3 * N), tmp_path / "run"
    whole = learn(learner, source=source)

    def stop(entry):
        if entry["step"] == 20:
            raise KeyboardInterrupt

    cut = learn(learner, source=source, checkpoint=path, progress=stop)
    assert cut.result is RESULTS.interrupted
    resumed = learn(learner, source=source, checkpoint=path)
    np.testing.assert_array_equal(raw_of(resumed.gp), raw_of(whole.gp))
    assert resumed.loss == whole.loss


@pytest.mark.parametrize(
    ("field", "value"),
    [("subset_rows", 0), ("spread", 0.0), ("tolerance", -1.0)],
)  # fmt: skip
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        FullBatch(**{field: value})
