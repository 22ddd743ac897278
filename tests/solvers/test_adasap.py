"""Accelerated sketch-and-project: its published steps in NumPy, projections by enumeration, one block, blocks and momentum."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from systems import EXACT, NOISE, A, B, K, N, S, operator, residuals

from stochgp.solvers import ADASAP, solve
from stochgp.solvers.adasap import SAFE, _projected

KEY = jax.random.key(3)


def run(solver, double_operator, n_steps):
    """(Constants, the state after so many steps of the first epoch, their batches)."""
    op, made = double_operator, solver.constants(double_operator, key=KEY)
    b = op.pad(jnp.asarray(B))
    _, state = solver.adapted(op, made, solver.init(op, made, b, jnp.zeros_like(b)), 0, 0)
    batches = solver.batches(N, 0, (1, 2))[:n_steps]
    for batch in batches:
        state, _ = solver.step(op, made, b, state, jnp.asarray(batch))
    return made, state, batches


def published(K_block, noise, omega, error):
    """(Error, d = η P⁻¹ error) as the paper writes it, of a block of one noise variance."""
    Y = K_block @ omega
    s, U = np.linalg.eigh(Y @ np.linalg.solve(omega.T @ Y, Y.T))
    s, U = s[::-1][: omega.shape[1]], U[:, ::-1][:, : omega.shape[1]]
    P = U @ np.diag(s) @ U.T + (noise + s[-1]) * np.eye(len(U))
    largest = np.linalg.eigvals(np.linalg.solve(P, K_block + noise * np.eye(len(U)))).real.max()
    return np.linalg.solve(P, error) / max(SAFE * largest, 1)


def test_a_step_is_the_published_one(double):
    solver, constant = ADASAP(batch_size=16, rank=6), np.full(N, 0.3)
    rows = np.arange(4, 20)
    made = solver.constants(operator(jnp.float64, noise=constant), key=KEY)
    error = np.random.default_rng(0).normal(size=(16, S))
    block = K[np.ix_(rows, rows)]
    found = _projected(jnp.asarray(block), jnp.asarray(constant[rows]), made, jnp.asarray(error))[1]
    wanted = published(block, 0.3, np.asarray(made.omega), error)
    np.testing.assert_allclose(found, wanted, rtol=0.02)  # ten power steps find the largest eigenvalue to 2 %
    of_ratio = np.asarray(found) / wanted
    np.testing.assert_allclose(of_ratio, of_ratio[0, 0], rtol=1e-8)  # and all else exactly


def test_the_momentum_is_the_published_one(double):
    """W, V, Y as dense arrays."""
    solver, constant = ADASAP(batch_size=4, rank=4), np.full(N, 0.3)
    op = operator(jnp.float64, noise=constant)
    made, state, batches = run(solver, op, 7)
    nu = N // 4
    mu = min(0.3 / K.diagonal().mean(), 1 / nu)
    horizon = 1 / np.sqrt(mu * nu)
    assert float(made.longest) == pytest.approx(horizon)
    mu = 1 / nu  # a run begins with a horizon of one epoch
    beta, gamma = 1 - np.sqrt(mu / nu), 1 / np.sqrt(mu * nu)
    alpha = 1 / (1 + gamma * nu)
    dense = K + 0.3 * np.eye(N)
    V = Y = np.zeros((N, S))
    for rows in batches:
        d = np.linalg.solve(dense[np.ix_(rows, rows)], dense[rows] @ Y - B[rows])
        W = Y.copy()
        W[rows] -= d
        V = beta * V + (1 - beta) * Y
        V[rows] -= gamma * d
        Y = alpha * V + (1 - alpha) * W
    np.testing.assert_allclose(op.unpad(state.z), Y, rtol=1e-9, atol=1e-10)


def test_the_expected_step_is_the_expected_projection(double):
    """Over all blocks of two of six rows: E(α₁ − α) = (I − E[Eᵀ A_II⁻¹ E A]) (α₀ − α) without momentum."""
    few = 6
    op = operator(jnp.float64, rows=np.asarray(operator(jnp.float64).inputs)[:few], noise=NOISE[:few])
    a, b = A[:few, :few], B[:few]
    exact = np.linalg.solve(a, b)
    solver = ADASAP(batch_size=2, rank=2)
    made = solver.constants(op, key=KEY)
    start = np.random.default_rng(1).normal(size=(few, S))
    subsets = list(itertools.combinations(range(few), 2))
    total, projection = 0.0, np.zeros((few, few))
    for subset in subsets:
        rows = np.array(subset)
        target = op.pad(jnp.asarray(b))
        state = solver.init(op, made, target, op.pad(jnp.asarray(start)))
        _, state = solver.adapted(op, made, state, 0, 9)  # so many failures that momentum is off
        state, _ = solver.step(op, made, target, state, jnp.asarray(rows))
        total = total + np.asarray(op.unpad(state.z)) - exact
        projection[rows] += np.linalg.solve(a[np.ix_(rows, rows)], a[rows])
    wanted = start - exact - projection @ (start - exact) / len(subsets)
    np.testing.assert_allclose(total / len(subsets), wanted, rtol=1e-9, atol=1e-12)


def test_blocks_are_drawn_without_replacement_and_cover_the_rows():
    solver = ADASAP(batch_size=12)
    epochs = [solver.batches(N, epoch, (5,)) for epoch in range(3)]
    for batches in epochs:
        assert all(len(set(batch)) == 12 for batch in batches)
        assert set(batches.ravel()) == set(range(N))
    assert not np.array_equal(epochs[0], epochs[1])


def test_one_block_is_the_direct_solution():
    found = solve(operator(), B, ADASAP(batch_size=N, rank=N), key=KEY, tolerance=1e-4)
    assert found.n_steps <= 2 and found.converged  # the second only measures
    np.testing.assert_allclose(found.value, EXACT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("noise", [0.3, 1e-3, 1e-6])
def test_low_rank_blocks_reach_the_tolerance_whatever_the_noise(noise):
    constant = np.full(N, noise)
    found = solve(
        operator(noise=constant), B, ADASAP(batch_size=16, rank=4, epochs=3000), key=KEY, tolerance=1e-3
    )
    assert found.converged
    assert np.all(residuals(found.value, A=K + np.diag(constant)) <= 1.1e-3)


@pytest.mark.parametrize("field", ["batch_size", "rank", "epochs", "check_every"])
def test_settings_below_one_are_refused(field):
    with pytest.raises(ValueError, match="must be at least 1"):
        ADASAP(**{field: 0})
