"""MINIMAX: golden loops, gradients of Ψ by differences, unbiasedness by enumeration, the saddle, and the projections."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import (
    F_of,
    MinimaxPoint,
    Theta,
    clip_spectrum,
    finite_differences,
    full_gradient,
    full_objective,
    g_of,
    minimax,
    minimax_gradient,
    psi,
)
from toy import (
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

from stochgp.learners import ByEvidence, Minimax, PowerLaw, constant
from stochgp.learners.minimax import project_spectrum

PLAIN = {"anchored": False, "evaluator": ByEvidence(refit=False), "optimizer": optax.sgd, "decay": constant}


pytestmark = pytest.mark.usefixtures("strict_double")


def _pair(toy, S, S_bar):
    return jax.tree.map(lambda *parts: jnp.stack(parts), rows_of(toy, S), rows_of(toy, S_bar))


def _point(state):
    return MinimaxPoint(theta_of(state.gp), *(np.asarray(a) for a in (state.weights, state.A, state.B)))


def _inside(theta, toy, seed=0):
    """A point well within all bounds: A ≻ σ²I, ‖B‖ < 1, neither of them F's."""
    generator, M = np.random.default_rng(seed), theta.W.shape[1]
    E, B = generator.normal(size=(2, M, M))
    A = F_of(theta, toy) + 3 * np.eye(M) + 0.5 * E @ E.T
    B = (B + B.T) / (2 * np.linalg.norm(B + B.T))
    return MinimaxPoint(theta, generator.normal(size=M), A, B)


def _at(state, point):
    parts = tuple(jnp.asarray(part) for part in point[1:])
    return eqx.tree_at(lambda s: (s.weights, s.A, s.B), state, parts)


# Golden: ten steps against the plain loop

GOLDEN = {
    "papers": {"penalty": 1.0},
    "two rates": {"ascent_rate": 2**-4, "penalty": 10.0},
    "box": {"penalty": 1.0, "box": 1.01},
    "power laws": {
        "penalty": 1.0,
        "learning_rate": PowerLaw(2**-8, 0.75),
        "ascent_rate": PowerLaw(2**-4, 0.5),
    },
}


@pytest.mark.parametrize(
    ("name", "start"), [("papers", "as initialised"), *((name, "inside") for name in GOLDEN)]
)
def test_ten_steps_are_those_of_the_plain_loop(name, start):
    toy, gp = make_toy(12), make_gp(M=5)
    fields = {"learning_rate": 2**-8, **GOLDEN[name]}
    learner = Minimax(batch_size=4, **fields, **PLAIN)
    state = begin(learner, gp, toy, rate=1.0 if callable(fields["learning_rate"]) else 2**-8)
    state = eqx.tree_at(lambda s: s.ceiling, state, jnp.asarray(30.0))
    state = state if start == "as initialised" else _at(state, _inside(theta_of(gp), toy))
    batches = list(zip(random_batches(12, 4, 10, 0), random_batches(12, 4, 10, 1), strict=True))
    rule = fields.get("ascent_rate", fields["learning_rate"])
    a, b = (_values(rule, 10) for rule in (fields["learning_rate"], rule))
    options = {"mu": fields["penalty"], "box": fields.get("box", 1e4), "ceiling": 30.0}
    wanted = minimax(_point(state), toy, batches, a, b, **options)
    step = stepper(learner)
    for (S, S_bar), point in zip(batches, wanted, strict=True):
        state = step(state, _pair(toy, S, S_bar))
        assert_close(tuple(_point(state)), tuple(point), rtol=1e-8, atol=1e-9)


def _values(rule, n_steps):
    return [float(rule(jnp.asarray(t, jnp.float32))) if callable(rule) else rule for t in range(n_steps)]


# Gradients


class _Flat(NamedTuple):
    W: np.ndarray
    raw_variance: float
    raw_noise: float
    w: np.ndarray
    A: np.ndarray
    B: np.ndarray


def _slopes(point, mu, toy):
    """The derivatives of Ψ by (W, raw variance, raw noise, w, A, B), by differences."""
    value = lambda f: psi(MinimaxPoint(Theta(f.W, f.raw_variance, f.raw_noise), f.w, f.A, f.B), mu, toy)
    return finite_differences(value, _Flat(*point.theta, *point[1:]))


RATE = 2**-12  # small enough that no bound is met, a power of two so that dividing by it is exact


def _descent_gradients(state, toy, batches, step):
    """(∂θ, ∂w, ∂A) of each batch."""
    found, before = [], _point(state)
    for S in batches:
        after = _point(step(state, _pair(toy, S, S)))
        found.append(jax.tree.map(lambda a, b: (a - b) / RATE, tuple(before[:3]), tuple(after[:3])))
    return found


def _mean(trees):
    return jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *trees)


def test_descent_gradients_are_unbiased():
    toy, gp = make_toy(6), make_gp(M=4)
    learner = Minimax(batch_size=2, learning_rate=RATE, penalty=7.0, **PLAIN)
    point = _inside(theta_of(gp), toy)
    state = _at(begin(learner, gp, toy, rate=RATE), point)
    found = _mean(_descent_gradients(state, toy, all_batches(6, 2), stepper(learner)))
    assert_close(found, minimax_gradient(point, 7.0, toy, np.arange(6)), rtol=1e-9, atol=1e-9)
    by_theta, by_w, by_A = found
    assert_close((*by_theta, by_w, by_A), tuple(_slopes(point, 7.0, toy)[:5]), rtol=1e-5, atol=1e-5)


def test_the_ascent_gradient_is_unbiased_given_the_first_batch():
    toy, gp, mu = make_toy(6), make_gp(M=4), 7.0
    learner = Minimax(batch_size=2, learning_rate=RATE, penalty=mu, **PLAIN)
    state = _at(begin(learner, gp, toy, rate=RATE), _inside(theta_of(gp), toy))
    step, S = stepper(learner), np.array([0, 3])
    after = [_point(step(state, _pair(toy, S, S_bar))) for S_bar in all_batches(6, 2)]
    found = np.mean([(point.B - np.asarray(state.B)) / RATE for point in after], axis=0)
    theta, A = after[0].theta, after[0].A
    assert_close(found, mu * (A - F_of(theta, toy)) / np.linalg.norm(A), rtol=1e-9, atol=1e-9)
    moved = after[0]._replace(B=np.asarray(state.B))  # what the ascent sees: Ψ is linear in B
    assert_close(found, _slopes(moved, mu, toy).B, rtol=1e-5, atol=1e-5)


# The saddle


def test_a_long_ascent_reaches_the_best_dual():
    """max over ‖B‖ ≤ 1 of Ψ is g + log|A| + μ‖A − F‖/‖A‖, at B = (A − F)/‖A − F‖: where one step of all rows ends that leaves the ball."""
    toy, gp, mu = make_toy(6), make_gp(M=4), 7.0
    learner = Minimax(batch_size=6, learning_rate=RATE, ascent_rate=1e9, penalty=mu, **PLAIN)
    start = _inside(theta_of(gp), toy)
    state, everything = _at(begin(learner, gp, toy, rate=RATE), start), np.arange(6)
    point = _point(stepper(learner)(state, _pair(toy, everything, everything)))
    gap = point.A - F_of(point.theta, toy)
    assert_close(point.B, gap / np.linalg.norm(gap), atol=1e-8)
    highest = g_of(point.theta, point.w, toy) + np.linalg.slogdet(point.A)[1]
    highest += mu * np.linalg.norm(gap) / np.linalg.norm(point.A)
    assert_close(psi(point, mu, toy), highest)
    assert psi(point._replace(B=start.B), mu, toy) < highest


@pytest.mark.parametrize("enough", [True, False])
def test_an_anchor_is_the_saddle_where_the_penalty_is_large_enough(enough):
    """μ ≥ ‖F‖‖F⁻¹‖: at A = F, w = ŵ, B = −‖F‖F⁻¹/μ the mean gradient by θ is ∇ℓ and the one by A is 0. Below it B is cut to the ball."""
    toy, gp = make_toy(6), make_gp(M=4)
    theta = theta_of(gp)
    F = F_of(theta, toy)
    inverse = np.linalg.inv(F)
    threshold = np.linalg.norm(F) * np.linalg.norm(inverse)
    mu = 1.5 * threshold if enough else 0.5 * threshold
    fields = PLAIN | {"anchored": True}
    learner = Minimax(batch_size=2, learning_rate=RATE, penalty=mu, **fields)
    state = begin(learner, gp, toy, rate=RATE, anchor=True)
    assert_close(state.A, F)
    assert_close(state.ceiling, learner.ceiling * np.trace(F))
    if not enough:
        assert_close(state.B, -inverse / np.linalg.norm(inverse))
        return
    assert_close(state.B, -np.linalg.norm(F) / mu * inverse)
    assert_close(psi(_point(state), mu, toy), full_objective(theta, toy))
    by_theta, by_w, by_A = _mean(_descent_gradients(state, toy, all_batches(6, 2), stepper(learner)))
    assert_close(by_theta, full_gradient(theta, toy), rtol=1e-9, atol=1e-9)
    assert_close((by_w, by_A), (np.zeros(4), np.zeros((4, 4))), atol=1e-9)


def test_without_a_penalty_an_anchor_has_the_gradient_of_the_likelihood():
    """The default: μ = μ* of the moments at hand."""
    toy, gp = make_toy(6), make_gp(M=4)
    theta = theta_of(gp)
    F = F_of(theta, toy)
    learner = Minimax(batch_size=2, learning_rate=RATE, **PLAIN | {"anchored": True})
    state = begin(learner, gp, toy, rate=RATE, anchor=True)
    assert_close(state.penalty, np.linalg.norm(F) * np.linalg.norm(np.linalg.inv(F)))
    assert_close(np.linalg.norm(state.B), 1.0)
    found = _mean(_descent_gradients(state, toy, all_batches(6, 2), stepper(learner)))
    assert_close(found[0], full_gradient(theta, toy), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("anchor", [True, False])
def test_a_evaluation_sets_the_ceiling_and_measures_the_penalty_anchored_or_not(anchor):
    toy, gp = make_toy(6), make_gp(M=4)
    F = F_of(theta_of(gp), toy)
    threshold = np.linalg.norm(F) * np.linalg.norm(np.linalg.inv(F))
    learner = Minimax(batch_size=2, learning_rate=RATE, penalty=1.0, **PLAIN | {"anchored": anchor})
    state = begin(learner, gp, toy, rate=RATE, anchor=True)
    assert_close((state.ceiling, state.threshold), (learner.ceiling * np.trace(F), threshold))
    step = eqx.filter_jit(learner.step)
    share = float(step(state, _pair(toy, np.arange(2), np.arange(2, 4)), key=KEY)[1]["penalty_share"])
    assert_close(share, 1 / threshold)


# Projections


@pytest.mark.parametrize(
    "eigenvalues", [[1.0, 2.0, 3.0], [0.5, 2.0, 9.9], [0.1, 2.0, 3.0], [-1.0, 2.0, 30.0]]
)
def test_projection_of_the_spectrum(eigenvalues):
    """Into [0.4, 10]: equal to the clipped spectrum, symmetric, idempotent."""
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    A = jnp.asarray(Q @ np.diag(eigenvalues) @ Q.T)
    A = (A + A.T) / 2
    floor, ceiling = jnp.asarray(0.4), jnp.asarray(10.0)
    projected = project_spectrum(A, floor, ceiling)
    assert_close(projected, clip_spectrum(np.asarray(A), 0.4, 10.0))
    np.testing.assert_array_equal(projected, projected.T)
    assert_close(project_spectrum(projected, floor, ceiling), projected)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"penalty": -1.0}, "penalty"),
        ({"box": float("nan")}, "box"),
        ({"box": 0.5}, "box"),
    ],
)
def test_impossible_settings_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        Minimax(**fields)
