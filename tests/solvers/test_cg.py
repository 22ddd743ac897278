"""Conjugate gradients against their textbook form and the dense solution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix

from stochgp import kernels
from stochgp.operators import KernelOperator
from stochgp.results import RESULTS
from stochgp.solvers import CG, cg, solve
from stochgp.solvers.cg import product_in_float64

N, S = 60, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
B = np.stack([np.sin(2 * X[:, 0]), RNG.normal(size=N)], axis=1)
KERNEL = kernels.Matern32(lengthscale=0.7, variance=1.5)


def operator(noise=0.05, dtype=jnp.float64):
    with jax.enable_x64(True):
        return KernelOperator.of(KERNEL, jnp.asarray(X, dtype), jnp.asarray(noise, dtype), tile=25)


def dense(noise=0.05):
    with jax.enable_x64(True):
        return np.asarray(matrix(KERNEL, jnp.asarray(X), jnp.asarray(X))) + noise * np.eye(N)


@pytest.fixture(scope="module")
def run():
    """`n` steps of a solver on the float64 operator: (preconditioner, b, states)."""
    step = eqx.filter_jit(lambda solver, *rest: solver.step(*rest))

    def steps(solver, n, start=None):
        op = operator()
        with jax.enable_x64(True):
            made, b = solver.constants(op, key=jax.random.key(0)), op.pad(jnp.asarray(B))
            state = solver.init(
                op, made, b, jnp.zeros_like(b) if start is None else op.pad(jnp.asarray(start))
            )
            states = [state]
            for _ in range(n):
                states.append(step(solver, op, made, b, states[-1], None)[0])
        return made, b, states

    return steps


def textbook(A, b, P, n):
    """The iterates of preconditioned conjugate gradients (Golub and Van Loan), and their smoothed ones, for one column."""
    x, r = np.zeros_like(b), b.copy()
    y, s = x.copy(), r.copy()
    z = np.linalg.solve(P, r)
    p, found = z.copy(), []
    for _ in range(n):
        a = r @ z / (p @ A @ p)
        x, r_new = x + a * p, r - a * A @ p
        z_new = np.linalg.solve(P, r_new)
        p = z_new + (r_new @ z_new) / (r @ z) * p
        r, z = r_new, z_new
        h = -(s @ (r - s)) / ((r - s) @ (r - s))
        y, s = y + h * (x - y), s + h * (r - s)
        found.append((x, y))
    return found


@pytest.mark.parametrize("rank", [0, 10])
def test_steps_are_those_of_the_textbook(run, rank):
    made, _, states = run(CG(rank=rank), 6)
    with jax.enable_x64(True):
        solved = eqx.filter_jit(lambda made, b: made.solve(b))(made, np.eye(operator().padded))
        inverse = np.asarray(solved)[:N, :N]
    for column in range(S):
        wanted = textbook(dense(), B[:, column], np.linalg.inv(inverse), 6)
        for state, (x, y) in zip(states[1:], wanted, strict=True):
            np.testing.assert_allclose(state.x[:N, column], x, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(state.y[:N, column], y, rtol=1e-7, atol=1e-9)


def test_the_error_falls_in_the_norm_of_A_and_the_smoothed_residual_in_its_own(run):
    _, _, states = run(CG(rank=0), 20)
    A, exact = dense(), np.linalg.solve(dense(), B)
    errors = [np.asarray(s.x)[:N] - exact for s in states]
    energies = np.array([np.einsum("ns,nm,ms->s", e, A, e) for e in errors])
    residuals = np.array([np.linalg.norm(B - A @ np.asarray(s.y)[:N], axis=0) for s in states])
    assert np.all(np.diff(energies, axis=0) < 0)
    assert np.all(np.diff(residuals, axis=0) < 1e-12)


def test_carried_residuals_are_true_and_a_correction_keeps_them(run):
    solver = CG(rank=10)
    made, b, states = run(solver, 5)
    state = states[-1]
    with jax.enable_x64(True):
        corrected, *_ = solver.step(operator(), made, b, solver.after_check(state), None)
    assert not bool(corrected.stale)
    for point, residual in (("x", "r"), ("y", "s")):
        true = B - dense() @ np.asarray(getattr(state, point))[:N]
        np.testing.assert_allclose(getattr(state, residual)[:N], true, atol=1e-10)
        np.testing.assert_allclose(getattr(corrected, residual)[:N], true, atol=1e-10)
    for part in ("x", "y", "p"):
        assert np.array_equal(getattr(corrected, part), getattr(state, part))


def test_a_finished_column_rests(run):
    """Begun at the solution of the first column, that column stays where it is; the other one goes on."""
    exact = np.linalg.solve(dense(), B)
    _, _, states = run(CG(rank=0), 8, start=np.stack([exact[:, 0], np.zeros(N)], axis=1))
    first, last = states[0], states[-1]
    assert np.abs(np.asarray(last.x - first.x)[:N, 0]).max() < 1e-12
    assert np.all(np.isfinite(last.p))
    assert np.linalg.norm(last.s[:, 1]) < 0.5 * np.linalg.norm(first.s[:, 1])


def test_a_full_rank_preconditioner_ends_it_in_a_few_steps(key):
    found = solve(operator(), B, CG(rank=N, damping=0.0), key=key, tolerance=1e-8)
    assert found.converged and found.n_steps <= 3


@pytest.mark.parametrize("noise", [1e-4, 1e-6])
def test_float32_with_a_small_noise_reaches_the_tolerance_or_says_that_precision_is_exhausted(key, noise):
    found = solve(
        operator(noise, jnp.float32), B[:, :1], CG(rank=10, check_every=10), key=key, tolerance=1e-3
    )
    assert np.all(np.isfinite(found.value))
    true = np.linalg.norm(B[:, :1] - dense(noise) @ np.asarray(found.value, np.float64)) / np.linalg.norm(
        B[:, :1]
    )
    assert found.converged == (found.result is RESULTS.tolerance_reached)
    assert true < (2e-3 if found.converged else 1)


def test_float32_is_corrected_by_residuals_in_float64(key):
    """Each row comes 20 times: α is so large that products summed in float32 have errors above the tolerance."""
    rows, b = np.tile(X[:30], (20, 1)), np.tile(B[:30, :1], (20, 1)) + RNG.normal(size=(600, 1))
    with jax.enable_x64(True):
        op = KernelOperator.of(
            KERNEL, jnp.asarray(rows, jnp.float32), jnp.asarray(1e-3, jnp.float32), tile=250
        )
        wide = jnp.asarray(rows.astype(np.float32), jnp.float64)
        A = np.asarray(matrix(KERNEL, wide, wide)) + float(np.float32(1e-3)) * np.eye(600)
    found = solve(op, b, CG(rank=10, check_every=10), key=key, tolerance=6e-4)
    true = np.linalg.norm(b - A @ np.asarray(found.value, np.float64)) / np.linalg.norm(b)
    assert found.converged and true < 6.1e-4


def test_a_correction_of_what_rounding_made_of_the_residual_is_no_divergence(key):
    """The first measured residual is five times what the recursion knows. Steps go on from where they are; a new start in float32 would lose what was reached."""
    noise = np.random.default_rng(6).normal(size=(600, 1))
    rows, b = np.tile(X[:30], (20, 1)), np.tile(B[:30, :1], (20, 1)) + noise
    kernel, variance = kernels.Matern32(lengthscale=0.7, variance=100.0), jnp.asarray(0.1, jnp.float32)
    with jax.enable_x64(True):
        op = KernelOperator.of(kernel, jnp.asarray(rows, jnp.float32), variance, tile=250)
    found = solve(op, b, CG(rank=10), key=key, tolerance=1e-4)
    measured = [entry["residual"] for entry in found.history if entry["measured"]]
    assert len(measured) > 1 and measured[0] > 1e-4
    assert max(measured) < 1.5 * measured[0]
    assert found.history[-1]["failures"] == 0


def test_products_are_summed_in_float64_where_rounding_would_show(monkeypatch):
    """Then the residual that steps carry is that of the point reached; by sums in float32 it is off by more than `ROUNDING`."""
    noise = np.random.default_rng(6).normal(size=(600, 1))
    rows, b = np.tile(X[:30], (20, 1)), np.tile(B[:30, :1], (20, 1)) + noise
    step = eqx.filter_jit(lambda solver, *rest: solver.step(*rest))

    def reached(variance):
        with jax.enable_x64(True):
            kernel, narrow = kernels.Matern32(lengthscale=0.7, variance=variance), jnp.float32
            op = KernelOperator.of(kernel, jnp.asarray(rows, narrow), jnp.asarray(0.1, narrow), tile=250)
            solver, target = CG(rank=30), op.pad(jnp.asarray(b, narrow))
            made = solver.constants(op, key=jax.random.key(0))
            state = solver.init(op, made, target, jnp.zeros_like(target))
            for _ in range(20):
                state = step(solver, op, made, target, state, None)[0]
            off = target - product_in_float64(op, state.y) - state.s
            assert solver.value(state).dtype == narrow
            return state.dtype, float(jnp.linalg.norm(off) / jnp.linalg.norm(target))

    assert reached(1.0)[0] == jnp.float32
    dtype, off = reached(1e4)
    assert dtype == jnp.float64 and off < 1e-9
    monkeypatch.setattr(cg, "ROUNDING", np.inf)
    dtype, off = reached(1e4)
    assert dtype == jnp.float32 and off > 1e-3


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"check_every": 0}, {"rank": -1}, {"damping": -1.0}, {"neighbours": -1}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CG(**wrong)
