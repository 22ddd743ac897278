"""Primal stochastic gradient descent against a plain loop; its estimator, enumerated; its step size, from theory."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from systems import KERNEL, NOISE, A, B, D, K, N, X, operator

from stochgp import kernels
from stochgp.operators import KernelOperator
from stochgp.priors import random_features
from stochgp.results import RESULTS
from stochgp.solvers import SGD, solve

STEPS = 10
MEAN_NOISE = NOISE.mean()
GENERATOR = np.random.default_rng(3)


class WithoutFeatures(kernels.AbstractKernel):
    """1 where two rows are the same, else 0."""

    def __call__(self, x, z):
        return jnp.all(x == z).astype(x.dtype)

    def prepare(self, X, centre):
        return X

    def between(self, rows, columns):
        return jnp.all(rows[:, None] == columns[None], axis=2).astype(rows.dtype)

    def diag(self, X):
        return jnp.ones(len(X), X.dtype)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def features(solver, seed):
    draw = random_features(
        KERNEL, D, solver.n_features, key=jax.random.key(seed), orthogonal=False, dtype=jnp.float64
    )
    return np.asarray(draw(jnp.asarray(X)))


def loop(solver, rows, seeds, step_size, r):
    """The rule of the docstring, row after row; every iterate α and average ᾱ."""
    alpha, velocity, mean = np.zeros_like(B), np.zeros_like(B), np.zeros_like(B)
    found = []
    for batch, seed in zip(rows, seeds, strict=True):
        z = alpha + solver.momentum * velocity
        g = np.zeros_like(B)
        for i in batch:
            g += N / len(batch) * np.outer(K[i], MEAN_NOISE / NOISE[i] * (K[i] @ z - B[i]))
        Phi = features(solver, seed)
        g += MEAN_NOISE * Phi @ (Phi.T @ z)
        if solver.clip is not None:
            limit = solver.clip * np.sqrt(np.mean(B**2, axis=0))
            g *= np.minimum(1, limit / (np.linalg.norm(g, axis=0) / N))
        velocity = solver.momentum * velocity - step_size * g
        alpha = alpha + velocity
        mean = r * alpha + (1 - r) * mean
        found.append((alpha, mean))
    return found


@pytest.mark.parametrize("clip", [None, 0.1])
def test_ten_steps_are_those_of_the_loop(clip):
    solver = SGD(batch_size=8, step_size=0.5 / N, averaging=0.2, clip=clip, n_features=20)
    op = operator(jnp.float64)
    arranged = solver.arrange(op, key=jax.random.key(0))
    b = op.pad(jnp.asarray(B))
    state, batches = solver.init(arranged, b, None), solver.batches(N, 0, STEPS, (1, 2))
    step = eqx.filter_jit(lambda state, batch: solver.step(arranged, b, state, batch)[0])
    wanted = loop(solver, *batches, solver.step_size, solver.averaging)
    for t, (alpha, mean) in enumerate(wanted):
        state = step(state, jax.tree.map(lambda leaf, t=t: leaf[t], batches))
        np.testing.assert_allclose(op.unpad(state.alpha), alpha, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(op.unpad(solver.value(state)), mean, rtol=1e-9, atol=1e-12)
        assert not np.any(state.alpha[N:])


def test_the_fit_part_is_unbiased_over_all_batches():
    """The average over all ordered pairs of rows with replacement is K W (Kz − b) to rounding."""
    n, solver = 6, SGD(batch_size=2, n_features=4)
    op = KernelOperator.of(KERNEL, jnp.asarray(X[:n]), jnp.asarray(NOISE[:n]), tile=n)
    z, b = GENERATOR.normal(size=(n, 2)), B[:n]
    seed = np.uint32(5)
    draw = random_features(KERNEL, D, 4, key=jax.random.key(seed), orthogonal=False, dtype=jnp.float64)
    Phi = np.asarray(draw(jnp.asarray(X[:n])))
    rows = np.array(list(itertools.product(range(n), repeat=2)), np.int32)
    gradient = jax.jit(
        jax.vmap(lambda pair: solver.gradient(op, jnp.asarray(b), jnp.asarray(z), (pair, seed))[0])
    )
    s = NOISE[:n].mean()
    fit = np.mean(np.asarray(gradient(rows)), axis=0) - s * Phi @ (Phi.T @ z)
    W = np.diag(s / NOISE[:n])
    np.testing.assert_allclose(fit, K[:n, :n] @ W @ (K[:n, :n] @ z - b), rtol=1e-10, atol=1e-10)


def test_the_features_are_unbiased():
    """The average of ΦΦᵀz over many seeds is Kz within 4.5 standard errors."""
    solver, z = SGD(n_features=20), GENERATOR.normal(size=(N, 1))
    n = 400
    op = operator(jnp.float64)
    b = op.pad(jnp.zeros((N, 1)))
    rows = jnp.zeros(512, jnp.int32)
    gradient = jax.jit(lambda seeds: jax.lax.map(
        lambda seed: solver.gradient(op, b, op.pad(jnp.asarray(z)), (rows, seed))[0][:N, 0], seeds
    ))  # fmt: skip
    fit = N * np.outer(K[0], MEAN_NOISE / NOISE[0] * (K[0] @ z))[:, 0]
    draws = (np.asarray(gradient(jnp.arange(n, dtype=jnp.uint32))) - fit) / MEAN_NOISE
    errors = (draws.mean(axis=0) - (K @ z)[:, 0]) / (draws.std(axis=0) / np.sqrt(n))
    assert np.abs(errors).max() < 4.5


def test_the_expected_gradient_vanishes_where_the_primal_normal_equations_hold():
    """Over all pairs of rows and many draws of features: K W (Kz − b) + σ̄²Kz = 0 at z = A⁻¹b, within 4.5 standard errors."""
    n, n_seeds = 6, 400
    solver = SGD(batch_size=2, n_features=20)
    op = KernelOperator.of(KERNEL, jnp.asarray(X[:n]), jnp.asarray(NOISE[:n]), tile=n)
    b = B[:n, :1]
    exact = jnp.asarray(np.linalg.solve(A[:n, :n], b))
    pairs = np.array(list(itertools.product(range(n), repeat=2)), np.int32)
    gradient = lambda pair, seed: solver.gradient(op, jnp.asarray(b), exact, (pair, seed))[0][:, 0]
    over_pairs = jax.jit(lambda seeds: jax.lax.map(
        lambda seed: jnp.mean(jax.vmap(gradient, (0, None))(pairs, seed), axis=0), seeds
    ))  # fmt: skip
    draws = np.asarray(over_pairs(jnp.arange(n_seeds, dtype=jnp.uint32)))
    errors = draws.mean(axis=0) / (draws.std(axis=0) / np.sqrt(n_seeds))
    assert np.abs(errors).max() < 4.5
    assert np.abs(draws).max() > 0.01


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_step_size_that_is_called_stable_is_the_limit_of_full_batches_without_noise(rho):
    """Of all rows and so many features that their noise is none, from the largest eigenvector: stable just below it, not just above."""
    values, vectors = np.linalg.eigh(K)
    noise = 0.3
    limit = SGD(momentum=rho).stable_step_size(N, values[-1], 0.0, 0.0, noise, 1.0)
    for share, stable in ((0.98, True), (1.02, False)):
        alpha, velocity = vectors[:, -1:].copy(), np.zeros((N, 1))
        for _ in range(1500):
            z = alpha + rho * velocity
            velocity = rho * velocity - share * limit * (K @ (K @ z) + noise * K @ z)
            alpha = alpha + velocity
        assert (np.linalg.norm(alpha) < 1) == stable


def test_a_step_that_diverges_is_made_smaller():
    solver = SGD(batch_size=16, epochs=200, step_size=2.0, clip=None)
    found = solve(operator(), B, solver, key=jax.random.key(0), tolerance=0.3)
    assert found.history[-1]["failures"] > 0
    assert np.all(np.isfinite(found.value)) and np.all(found.residual_norms <= 1)
    assert found.result in (RESULTS.tolerance_reached, RESULTS.steps_exhausted)


def test_what_it_cannot_solve_is_refused(key):
    unknown = KernelOperator.of(WithoutFeatures(), jnp.asarray(X), 0.1)
    with pytest.raises(TypeError, match="random features"):
        SGD().arrange(unknown, key=key)
    with pytest.raises(ValueError, match="inputs"):
        SGD().arrange(operator(jnp.float64).reordered(jnp.arange(N)), key=key)


@pytest.mark.parametrize(
    "wrong",
    [{"step_size": 0.0}, {"momentum": 1.0}, {"averaging": 0.0}, {"n_features": 0}, {"clip": 0.0}, {"batch_size": 0}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        dataclasses.replace(SGD(), **wrong)
