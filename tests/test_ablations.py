"""Estimators, optimisers and averages of the ablations against plain NumPy; full-batch descent in closed form against its loop."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from systems import KERNEL, B, K, X

from experiments import ablations, sdd_objectives
from stochgp.operators import KernelOperator

N, BATCH, NOISE = 6, 2, 0.3
MATRIX, RIGHT = K[:N, :N], B[:N, 0]
EXACT = np.linalg.solve(MATRIX + NOISE * np.eye(N), RIGHT)
Z = np.random.default_rng(5).normal(size=N)
PAIRS = np.array(list(itertools.product(range(N), repeat=BATCH)), np.int32)
UNBIASED = {
    "coordinates": ablations.Coordinates(),
    "part": ablations.PartCoordinates(),
    "part-fit": ablations.PartCoordinatesOfFit(),
    "everything": ablations.Everything(),
}


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def system():
    operator = KernelOperator.of(KERNEL, jnp.asarray(X[:N]), NOISE, tile=N)
    return ablations.System(jnp.asarray(MATRIX), jnp.asarray(RIGHT), NOISE, operator)


def estimates(estimator, z, batches=PAIRS):
    """The estimate of each batch, [batches, N]."""
    call = lambda rows, seed: estimator(system(), jnp.asarray(z), rows, seed)
    seeds = jnp.arange(len(batches), dtype=jnp.int32)
    return np.asarray(jax.jit(jax.vmap(call))(jnp.asarray(batches), seeds))


def dual_gradient(z):
    return MATRIX @ z + NOISE * z - RIGHT


@pytest.mark.parametrize("estimator", UNBIASED.values(), ids=UNBIASED)
def test_estimators_are_unbiased_over_all_batches(estimator):
    np.testing.assert_allclose(estimates(estimator, Z).mean(axis=0), dual_gradient(Z), rtol=1e-10, atol=1e-10)


def test_random_features_are_unbiased_within_their_standard_errors():
    """At α* too, where the mean is 0: 4.5 standard errors over 5,000 draws of 20 features."""
    n, rows = 5_000, np.zeros((1, 20), np.int32)
    for z in (Z, EXACT):
        draws = estimates(ablations.Features(), z, np.repeat(rows, n, axis=0))
        errors = (draws.mean(axis=0) - dual_gradient(z)) / (draws.std(axis=0) / np.sqrt(n))
        assert np.abs(errors).max() < 4.5


@pytest.mark.parametrize("name", ["coordinates", "everything"])
def test_without_noise_at_the_solution(name):
    np.testing.assert_allclose(estimates(UNBIASED[name], EXACT), 0, atol=1e-10)


@pytest.mark.parametrize("name", ["part", "part-fit"])
def test_partly_subsampled_gradients_are_noisy_at_the_solution(name):
    assert np.abs(estimates(UNBIASED[name], EXACT)).max() > 0.1


def test_the_noise_of_coordinates_is_bounded_by_the_distance():
    """‖ĝ − g‖ ≤ ‖(M − I)(K + λI)‖ ‖α − α*‖ for one row, M = N e_i e_iᵀ."""
    found = estimates(ablations.Coordinates(), Z, np.arange(N, dtype=np.int32)[:, None])
    for i in range(N):
        M = np.zeros((N, N))
        M[i, i] = N
        bound = np.linalg.norm((M - np.eye(N)) @ (MATRIX + NOISE * np.eye(N)), 2) * np.linalg.norm(Z - EXACT)
        assert np.linalg.norm(found[i] - dual_gradient(Z)) <= bound * (1 + 1e-12)


def test_the_primal_gradient():
    found = estimates(ablations.Primal(), Z)[0]
    np.testing.assert_allclose(found, MATRIX @ dual_gradient(Z), rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_steps_and_averages_are_those_of_the_loop(momentum):
    plan = ablations.Plan(steps=12, batch=BATCH, averaging=0.2, tail=8)
    rows = np.random.default_rng(1).integers(0, N, (12, BATCH), dtype=np.int32)
    alpha, velocity, geometric, late = np.zeros(N), np.zeros(N), np.zeros(N), []
    for t, batch in enumerate(rows):
        z, g = alpha + momentum * velocity, np.zeros(N)
        for i in batch:
            g[i] += N / BATCH * dual_gradient(z)[i]
        velocity = momentum * velocity - 0.5 * g / N
        alpha = alpha + velocity
        geometric = 0.2 * alpha + 0.8 * geometric
        late += [alpha] if t >= 8 else []
    zero, optimiser = jnp.zeros(N), ablations.Nesterov(0.5, momentum)
    start = ablations.Point(zero, optimiser.init(zero), zero, zero, jnp.zeros((), jnp.int32))
    seeds = np.zeros(12, np.int32)
    found = ablations._stretch(
        system(), ablations.Coordinates(), optimiser, plan, start, rows, seeds, np.int32(12)
    )
    np.testing.assert_allclose(found.alpha, alpha, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.geometric, geometric, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.arithmetic, np.mean(late, axis=0), rtol=1e-10, atol=1e-12)


def test_an_optimiser_of_optax_steps_as_it_does_there():
    optimiser, g = ablations.Adaptive(0.1, optax.adagrad), jnp.asarray(Z)
    change, _ = optimiser.step(g, optimiser.init(g))
    wanted, _ = optax.adagrad(0.1).update(g, optax.adagrad(0.1).init(g))
    np.testing.assert_array_equal(change, wanted)


@pytest.mark.parametrize("objective", ["primal", "dual"])
def test_full_batch_descent_in_closed_form_is_its_loop(objective):
    values, Q = np.linalg.eigh(MATRIX)
    spectrum = sdd_objectives.Spectrum(values, NOISE, Q.T @ RIGHT, MATRIX @ Q, RIGHT)
    alpha = np.zeros(N)
    for step in range(1, 21):
        g = dual_gradient(alpha)
        alpha = alpha - 0.1 * (MATRIX @ g if objective == "primal" else g)
        error = spectrum.error(objective, 0.1, step)
        np.testing.assert_allclose(Q @ error, EXACT - alpha, rtol=1e-9, atol=1e-12)
    in_K, in_K2, rmse = spectrum.scores(error)
    np.testing.assert_allclose(in_K, (EXACT - alpha) @ MATRIX @ (EXACT - alpha), rtol=1e-9)
    np.testing.assert_allclose(in_K2, np.sum((MATRIX @ (EXACT - alpha)) ** 2), rtol=1e-9)
    np.testing.assert_allclose(rmse, np.sqrt(np.mean((MATRIX @ alpha - RIGHT) ** 2)), rtol=1e-9)


def test_marks_are_powers_of_one_factor_up_to_the_last_step():
    for steps in (1, 50, 4000, 100_000):
        found = ablations.marks(steps)
        assert found == sorted(set(found)) and found[-1] == steps and found[0] >= 1
