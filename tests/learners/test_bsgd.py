"""BSGD: golden loop, gradients, its bias by enumeration, weights and jitter."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import (
    Theta,
    bsgd,
    dense_nlml,
    features,
    finite_differences,
    full_gradient,
    full_objective,
    noise,
)
from toy import (
    FLOOR,
    KEY,
    all_batches,
    assert_close,
    begin,
    make_gp,
    make_toy,
    random_batches,
    rows_of,
    stepper,
    theta_of,
)

from stochgp.learners import BSGD, PowerLaw, constant
from stochgp.numerics.linalg import safe_cholesky

PLAIN = {"optimizer": optax.sgd, "decay": constant}


pytestmark = pytest.mark.usefixtures("strict_double")


def _gradient(gp, rows):
    """2B times what a step of rate 1 subtracts from θ: the gradient of yᵀA⁻¹y + log|A|."""
    learner = BSGD(learning_rate=1.0, **PLAIN)
    after = stepper(learner)(begin(learner, gp, make_toy()), rows)
    twice = 2 * len(rows.y)
    return Theta(*(twice * (a - b) for a, b in zip(theta_of(gp), theta_of(after.gp), strict=True)))


@pytest.mark.parametrize("rule", [2**-4, PowerLaw(2**-3, 0.5)])
def test_ten_steps_are_those_of_the_plain_loop(rule):
    toy, gp = make_toy(12), make_gp(M=5)
    batches = random_batches(12, 4, 10)
    a = [float(rule(jnp.asarray(t, jnp.float32))) if callable(rule) else rule for t in range(10)]
    learner = BSGD(batch_size=4, learning_rate=rule, **PLAIN)
    state, step = begin(learner, gp, toy, rate=1.0 if callable(rule) else rule), stepper(learner)
    per_datum = [rate / (2 * 4) for rate in a]  # the loop's loss is a sum
    for S, theta in zip(batches, bsgd(theta_of(gp), toy, batches, per_datum), strict=True):
        state = step(state, rows_of(toy, S))
        assert_close(theta_of(state.gp), theta, rtol=1e-9)


@pytest.mark.parametrize(("n", "M"), [(12, 4), (5, 9)])
def test_on_all_rows_the_gradient_is_the_exact_one(n, M):
    toy, gp = make_toy(n), make_gp(M=M)
    found = _gradient(gp, rows_of(toy))
    assert_close(found, full_gradient(theta_of(gp), toy))
    slopes = finite_differences(lambda t: full_objective(t, toy), theta_of(gp))
    assert_close(found, slopes, rtol=1e-6, atol=1e-6)


def test_the_loss_is_the_nlml_of_the_batch():
    toy, gp = make_toy(6), make_gp(M=4)
    learner = BSGD(learning_rate=1.0, **PLAIN)
    S = np.array([0, 2, 5])
    _, info = eqx.filter_jit(learner.step)(begin(learner, gp, toy), rows_of(toy, S), key=KEY)
    theta = theta_of(gp)
    assert_close(info["loss"], dense_nlml(features(theta, toy.X[S]), toy.y[S], noise(theta, FLOOR)))
    assert info["jitter"] == 0


def test_the_bias_shrinks_with_the_batch():
    """E over all batches of the learner's gradient per row, less that of all six rows: smaller at B = 4 than at 2, and 0 at 6."""
    toy, gp = make_toy(6), make_gp(M=4)
    exact = full_gradient(theta_of(gp), toy)
    bias = []
    for size in (2, 4, 6):
        each = [_gradient(gp, rows_of(toy, S)) for S in all_batches(6, size)]
        gap = jax.tree.map(lambda *g, size=size: np.mean(g[1:], axis=0) / size - g[0] / 6, exact, *each)
        bias.append(np.sqrt(sum(np.sum(part**2) for part in gap)))
    assert np.all(np.diff(bias) < 0)
    assert bias[0] > 0.01
    np.testing.assert_allclose(bias[-1], 0, atol=1e-12)


def test_weights_divide_the_noise():
    toy, gp = make_toy(5), make_gp(M=4)
    weight = np.array([0.5, 1.0, 2.0, 3.0, 1.0])
    theta, h = theta_of(gp), 1e-6

    def objective(t):
        Phi, s2 = features(t, toy.X), noise(t, FLOOR)
        C = Phi @ Phi.T + np.diag(s2 / weight)
        return toy.y @ np.linalg.solve(C, toy.y) + np.linalg.slogdet(C)[1]

    found = _gradient(gp, rows_of(toy, weight=weight))
    assert_close(found, finite_differences(objective, theta, h), rtol=1e-6, atol=1e-6)


# The Cholesky factor that adds what it needs


def test_jitter_is_added_only_where_it_is_needed():
    generator = np.random.default_rng(0)
    Phi = generator.normal(size=(6, 3)).astype(np.float32)
    good = jnp.asarray(Phi @ Phi.T + 0.1 * np.eye(6, dtype=np.float32))
    L, jitter = safe_cholesky(good)
    assert jitter == 0
    assert_close(L @ L.T, good, rtol=1e-5, atol=1e-5)
    bad = jnp.asarray(Phi @ Phi.T - 1e-5 * np.eye(6, dtype=np.float32))
    L, jitter = safe_cholesky(bad)
    mean = float(np.mean(np.diag(bad)))
    assert 1e-5 < jitter <= 1e-2 * mean * (1 + 1e-6)
    assert_close(L @ L.T, np.asarray(bad) + float(jitter) * np.eye(6), rtol=1e-4, atol=1e-4)
    assert np.isnan(safe_cholesky(-good)[0][-1, -1])
