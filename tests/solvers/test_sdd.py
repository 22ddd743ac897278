"""Stochastic dual descent: ten steps against plain loops, blocks and their momentum against their definitions, and what the paper proves."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from systems import KERNEL, NOISE, A, B, N, X, operator

from stochgp.operators import KernelOperator
from stochgp.solvers import SDD, solve
from stochgp.solvers.sdd import accelerated

STEPS, BATCH = 10, 8
GENERATOR = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def begin(solver, op=None, n_failures=0):
    """(Constants, the state at 0, a step of a state and a batch)."""
    op = operator(jnp.float64) if op is None else op
    blocks, b = solver.constants(op, key=jax.random.key(0)), op.pad(jnp.asarray(B))
    blocks, state = solver.adapted(op, blocks, solver.init(op, blocks, b, jnp.zeros_like(b)), 0, n_failures)
    step = eqx.filter_jit(lambda state, batch: solver.step(op, blocks, b, state, batch)[0])
    return blocks, state, step


# The published rule


def published(rows, step_size, rho, r):
    """Algorithm 1 of Lin et al. (2024), duplicates added up: (look-ahead, α, ᾱ) after every step."""
    alpha, velocity, mean, found = np.zeros_like(B), np.zeros_like(B), np.zeros_like(B), []
    for batch in rows:
        z, g = alpha + rho * velocity, np.zeros_like(B)
        for i in batch:
            g[i] += N / len(batch) * (A[i] @ z - B[i])
        velocity = rho * velocity - step_size * g
        alpha = alpha + velocity
        mean = r * alpha + (1 - r) * mean
        found.append((alpha, mean))
    return found


@pytest.mark.parametrize(("rho", "r"), [(0.9, 1.0), (0.9, 0.3), (0.9, 0.1), (0.0, 0.3), (0.0, 1.0)])
def test_ten_published_steps_with_repeated_rows(rho, r):
    """Exact to rounding."""
    solver = SDD(batch_size=BATCH, step_size=1 / N, momentum=rho, averaging=r)
    _, state, step = begin(solver)
    rows = GENERATOR.integers(0, N, (STEPS, BATCH), dtype=np.int32)
    rows[0, :3] = rows[0, 3]
    for t, (alpha, mean) in enumerate(published(rows, solver.step_size, rho, r)):
        state = step(state, jnp.asarray(rows[t]))
        np.testing.assert_allclose(solver.value(state)[:N], alpha if r == 1 else mean, rtol=1e-9, atol=1e-11)


def test_the_coordinate_gradient_is_unbiased_and_without_noise_at_the_solution():
    """One step without momentum from a random point and from α*, averaged over all ordered pairs of four rows."""
    n, beta = 4, 0.1
    solver = SDD(batch_size=2, step_size=beta, momentum=0.0)
    op = KernelOperator.of(KERNEL, jnp.asarray(X[:n]), jnp.asarray(NOISE[:n]), tile=n)
    matrix, b = A[:n, :n], B[:n]
    pairs = jnp.asarray(list(itertools.product(range(n), repeat=2)), jnp.int32)

    @jax.jit
    def gradients(start):
        _, state = solver.adapted(op, None, solver.init(op, None, jnp.asarray(b), start), 0, 0)
        moved = lambda rows: solver.value(solver.step(op, None, jnp.asarray(b), state, rows)[0])
        return (start - jax.vmap(moved)(pairs)) / beta

    start = GENERATOR.normal(size=b.shape)
    found = np.asarray(gradients(jnp.asarray(start)))
    np.testing.assert_allclose(found.mean(axis=0), matrix @ start - b, rtol=1e-10, atol=1e-10)
    assert found.std(axis=0).max() > 0.1
    at_solution = np.asarray(gradients(jnp.asarray(np.linalg.solve(matrix, b))))
    np.testing.assert_allclose(at_solution, 0, atol=1e-10)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_full_batches_are_stable_below_the_limit_of_the_theory_only(rho):
    """Dual descent with Nesterov's momentum: β (λ₁ + σ²) < (2 + 2ρ)/(1 + 2ρ), from the eigenvector of λ₁, without b."""
    values, vectors = np.linalg.eigh(A)
    limit = (2 + 2 * rho) / ((1 + 2 * rho) * values[-1])
    top, nothing = jnp.asarray(vectors[:, -1:]), jnp.zeros((N, 1))
    for share, stable in ((0.98, True), (1.02, False)):
        solver = SDD(batch_size=N, step_size=share * limit, momentum=rho)
        op, rows = operator(jnp.float64, tile=N), jnp.arange(N)
        _, state = solver.adapted(op, None, solver.init(op, None, nothing, top), 0, 0)

        @eqx.filter_jit
        def epochs(state, solver=solver, op=op, rows=rows):
            once = lambda s, _: (solver.step(op, None, nothing, s, rows)[0], None)
            return jax.lax.scan(once, state, None, length=1000)[0]

        assert (np.linalg.norm(solver.value(epochs(state))) < 1) == stable


# Blocks


def objective(alpha, matrix, b):
    """L*(α) = ½ αᵀAα − αᵀb of each column."""
    return 0.5 * np.einsum("ns,nm,ms->s", alpha, matrix, alpha) - np.einsum("ns,ns->s", alpha, b)


def test_a_block_step_without_momentum_minimises_over_its_block_and_the_objective_falls():
    solver = SDD(batch_size=BATCH + 1)
    blocks, state, step = begin(solver, n_failures=1)  # half an epoch of horizon: no momentum
    values = [np.zeros(2)]
    for number in np.concatenate([solver.batches(N, epoch, (1,)) for epoch in range(3)]):
        state = step(state, jnp.asarray(number))
        alpha = np.asarray(state.z)[:N]
        np.testing.assert_allclose((A @ alpha - B)[np.asarray(blocks.rows[number])], 0, atol=1e-8)
        values.append(objective(alpha, A, B))
    assert np.all(np.diff(values, axis=0) < 1e-12)


@pytest.mark.parametrize(("batch_size", "n_blocks"), [(10, 4), (9, 5), (40, 1), (100, 1)])
def test_blocks_cover_all_rows(batch_size, n_blocks):
    solver = SDD(batch_size=batch_size)
    rows = np.asarray(begin(solver)[0].rows)
    assert rows.shape == (n_blocks, min(batch_size, N)) and set(rows.ravel()) == set(range(N))
    assert sorted(solver.batches(N, 1, (3,))) == list(range(n_blocks))


@pytest.mark.parametrize("stage", [1.0, 4.0])
def test_accelerated_blocks_are_the_three_sequences(stage):
    """w = z − Eδ, v ← βv + (1 − β)z − γEδ, z ← av + (1 − a)w over twenty steps; and their average."""
    solver = SDD(batch_size=10)
    blocks, state, step = begin(solver)
    n_blocks, rates = 4, accelerated(stage, 4)
    state = state.with_rates(*rates)
    mu = 1 / (n_blocks * max(stage, 8 / n_blocks) ** 2)
    beta, gamma = 1 - np.sqrt(mu / n_blocks), 1 / np.sqrt(mu * n_blocks)
    a, r = 1 / (1 + gamma * n_blocks), rates[-1]
    v, z, mean = np.zeros_like(B), np.zeros_like(B), np.zeros_like(B)
    for number in np.concatenate([solver.batches(N, epoch, (1,)) for epoch in range(5)]):
        factor, block, change = (
            np.asarray(blocks.inverse[number]),
            np.asarray(blocks.rows[number]),
            np.zeros_like(B),
        )
        change[block] = factor.T @ factor @ (A @ z - B)[block]
        w = z - change
        v = beta * v + (1 - beta) * z - gamma * change
        z = a * v + (1 - a) * w
        mean = r * z + (1 - r) * mean
        state = step(state, jnp.asarray(number))
        np.testing.assert_allclose(state.v[:N], v, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(state.z[:N], z, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(solver.value(state)[:N], mean, rtol=1e-8, atol=1e-10)


def test_a_given_step_that_diverges_is_made_smaller():
    solver = SDD(batch_size=16, step_size=1.0, epochs=200)
    found = solve(operator(), B, solver, key=jax.random.key(0), tolerance=0.05)
    assert found.converged and found.history[-1]["failures"] > 0


@pytest.mark.parametrize(
    "wrong", [{"step_size": 0.0}, {"momentum": 1.0}, {"averaging": 0.0}, {"batch_size": 0}, {"epochs": 0}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SDD(**wrong)
