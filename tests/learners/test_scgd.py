"""SCGD: golden loops, unbiasedness by enumeration over all 15 batches (N = 6, B = 2), the tracker, the anchor and the majoriser."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import (
    F_of,
    Theta,
    batch_moments,
    best_weights,
    features,
    finite_differences,
    full_gradient,
    full_objective,
    g_of,
    noise,
    scgd,
    scgd_gradient,
)
from toy import (
    FLOOR,
    KEY,
    all_batches,
    anchored,
    assert_close,
    begin,
    make_gp,
    make_toy,
    random_batches,
    rows_of,
    stepper,
    theta_of,
    with_theta,
)

from stochgp.data.rows import Data
from stochgp.learners import SCGD, ByEvidence, PowerLaw, constant

PLAIN = {"anchored": False, "evaluator": ByEvidence(refit=False), "optimizer": optax.sgd, "decay": constant}
EXACT_M = {
    "anchored": True,
    "evaluator": ByEvidence(refit=False),
    "tracking": 0.0,
    "optimizer": optax.sgd,
    "decay": constant,
}


pytestmark = pytest.mark.usefixtures("strict_double")


def _gradients(learner, state, toy, batches):
    """(∂θ, ∂w) on each batch: what a step of rate 1 subtracts."""
    step = stepper(learner)
    found = []
    for S in batches:
        after = step(state, rows_of(toy, S))
        by_theta = Theta(*(a - b for a, b in zip(theta_of(state.gp), theta_of(after.gp), strict=True)))
        found.append((by_theta, np.asarray(state.weights - after.weights)))
    return found


def _mean(trees):
    return jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *trees)


# Golden: ten steps against the plain loop


GOLDEN = {
    "plain": {"tracking": 0.9},
    "small b": {"tracking": 0.1},
    "b = 1": {"tracking": 1.0},
    "power laws": {"learning_rate": PowerLaw(2**-9, 0.75), "tracking": PowerLaw(1.0, 0.5)},
}


@pytest.mark.parametrize("name", GOLDEN)
def test_ten_steps_are_those_of_the_plain_loop(name):
    toy, gp = make_toy(12), make_gp(M=5)
    fields = {"learning_rate": 2**-9, **GOLDEN[name]}
    learner = SCGD(batch_size=4, **fields, **PLAIN)
    batches = random_batches(12, 4, 10)
    a, b = (_values(fields[rule], 10) for rule in ("learning_rate", "tracking"))
    wanted = scgd(theta_of(gp), toy, batches, a, b)
    state = begin(learner, gp, toy, rate=1.0 if callable(fields["learning_rate"]) else 2**-9)
    step = stepper(learner)
    for S, point in zip(batches, wanted, strict=True):
        state = step(state, rows_of(toy, S))
        found = (theta_of(state.gp), state.weights, state.F)
        assert_close(found, (point.theta, point.w, point.F), rtol=1e-9)


def _values(rule, n_steps):
    """The rule's values at its steps."""
    return [float(rule(jnp.asarray(t, jnp.float32))) if callable(rule) else rule for t in range(n_steps)]


# Unbiasedness by enumeration


def test_batch_moments_are_unbiased():
    """E F̂ = F."""
    toy, gp = make_toy(6), make_gp(M=4)
    learner = SCGD(batch_size=2, learning_rate=1.0, tracking=1.0, **PLAIN)
    step, state = stepper(learner), begin(learner, gp, toy)
    found = _mean([step(state, rows_of(toy, S)).F for S in all_batches(6, 2)])
    assert_close(found, F_of(theta_of(gp), toy))


@pytest.mark.parametrize("M", [4, 9])
def test_at_an_anchor_the_gradient_is_unbiased(M):
    """With M and w exact, E G = ∇ℓ and E ∂w = 0."""
    toy, gp = make_toy(6), make_gp(M=M)
    learner = SCGD(batch_size=2, learning_rate=1.0, **EXACT_M)
    state = begin(learner, gp, toy, anchor=True)
    by_theta, by_w = _mean(_gradients(learner, state, toy, all_batches(6, 2)))
    assert_close(by_theta, full_gradient(theta_of(gp), toy))
    assert_close(by_w, np.zeros(M))


def test_with_the_exact_inverse_the_gradient_is_unbiased_at_any_weights():
    toy, gp = make_toy(6), make_gp(M=4)
    theta, w = theta_of(gp), np.array([0.3, -1.0, 0.2, 2.0])
    learner = SCGD(batch_size=2, learning_rate=1.0, **EXACT_M)
    state = begin(learner, gp, toy, anchor=True)
    state = eqx.tree_at(lambda s: s.weights, state, jnp.asarray(w))
    found = _mean(_gradients(learner, state, toy, all_batches(6, 2)))
    everything = np.arange(6)
    assert_close(found, scgd_gradient(theta, w, np.linalg.inv(F_of(theta, toy)), toy, everything))
    objective = lambda t: g_of(t, w, toy) + np.linalg.slogdet(F_of(t, toy))[1]
    assert_close(found[0], finite_differences(objective, theta), rtol=1e-6, atol=1e-6)


def test_with_replacement_the_gradient_is_unbiased_too():
    toy, gp = make_toy(6), make_gp(M=4)
    learner = SCGD(batch_size=2, learning_rate=1.0, **EXACT_M)
    state = begin(learner, gp, toy, anchor=True)
    pairs = [np.array([i, j]) for i in range(6) for j in range(6)]
    by_theta, _ = _mean(_gradients(learner, state, toy, pairs))
    assert_close(by_theta, full_gradient(theta_of(gp), toy))


def test_row_weights_enter_as_repeated_rows():
    """The mean gradient over all batches of weighted rows is ∇ℓ of the repeated rows."""
    toy, gp = make_toy(6), make_gp(M=4)
    times = np.array([1, 3, 2, 1, 1, 2])
    repeated = toy._replace(X=np.repeat(toy.X, times, 0), y=np.repeat(toy.y, times))
    learner = SCGD(batch_size=2, learning_rate=1.0, **EXACT_M)
    state = anchored(learner, begin(learner, gp, toy), gp, repeated)
    state = eqx.tree_at(lambda s: s.count, state, jnp.asarray(float(times.sum())))
    step, found = stepper(learner), []
    for S in all_batches(6, 2):
        after = step(state, rows_of(toy, S, weight=times.astype(float)))
        found.append(Theta(*(a - b for a, b in zip(theta_of(gp), theta_of(after.gp), strict=True))))
    assert_close(_mean(found), full_gradient(theta_of(gp), repeated))


def test_constant_b_is_biased():
    """The published b = 1: E log|F̂| ≤ log|F|, so the mean gradient is not ∇ℓ; what is claimed exact above is not so by accident."""
    toy, gp = make_toy(6), make_gp(M=4)
    theta = theta_of(gp)
    learner = SCGD(batch_size=2, learning_rate=1.0, tracking=1.0, **PLAIN)
    w = best_weights(features(theta, toy.X), toy.y, noise(theta, FLOOR))
    state = eqx.tree_at(lambda s: s.weights, begin(learner, gp, toy), jnp.asarray(w))
    by_theta, _ = _mean(_gradients(learner, state, toy, all_batches(6, 2)))
    exact = full_gradient(theta, toy)
    assert abs(by_theta.raw_noise - exact.raw_noise) > 0.1
    mean_log = np.mean([np.linalg.slogdet(batch_moments(theta, toy, S)[0])[1] for S in all_batches(6, 2)])
    assert mean_log < np.linalg.slogdet(F_of(theta, toy))[1]


# Anchors and the majoriser


@pytest.mark.parametrize("tracking", [0.0, 0.2])
@pytest.mark.parametrize("M", [4, 9])
def test_an_anchor_is_exact(M, tracking):
    toy, gp = make_toy(6), make_gp(M=M)
    state = begin(SCGD(tracking=tracking), gp, toy, anchor=True)
    theta = theta_of(gp)
    Phi, F = features(theta, toy.X), F_of(theta, toy)
    assert_close(state.F, F)
    assert_close(state.factor.T @ state.factor, np.linalg.inv(F))
    assert_close(state.weights, best_weights(Phi, toy.y, noise(theta, FLOOR)))


def _bound(theta, w, F0, toy):
    """g(θ, w₀) + log|F₀| + tr F₀⁻¹(F − F₀)."""
    excess = np.trace(np.linalg.solve(F0, F_of(theta, toy) - F0))
    return g_of(theta, w, toy) + np.linalg.slogdet(F0)[1] + excess


def test_anchored_steps_follow_an_upper_bound_that_touches():
    """Away from the anchor the mean gradient is exactly that of the bound, at any batch size; the bound is above ℓ and touches at the anchor."""
    toy, gp = make_toy(6), make_gp(M=4)
    theta0 = theta_of(gp)
    F0, w0 = F_of(theta0, toy), best_weights(features(theta0, toy.X), toy.y, noise(theta0, FLOOR))
    np.testing.assert_allclose(_bound(theta0, w0, F0, toy), full_objective(theta0, toy), rtol=1e-12)
    learner = SCGD(batch_size=2, learning_rate=1.0, **EXACT_M)
    state = begin(learner, gp, toy, anchor=True)
    generator = np.random.default_rng(4)
    for scale in (0.01, 0.1, 1.0):
        theta = Theta(*(part + scale * generator.normal(size=np.shape(part)) for part in theta0))
        assert _bound(theta, w0, F0, toy) >= full_objective(theta, toy)
        away = eqx.tree_at(lambda s: s.gp, state, with_theta(gp, theta))
        by_theta, _ = _mean(_gradients(learner, away, toy, all_batches(6, 2)))
        exact, _ = scgd_gradient(theta, w0, np.linalg.inv(F0), toy, np.arange(6))
        assert_close(by_theta, exact)
        slopes = finite_differences(lambda t: _bound(t, w0, F0, toy), theta)
        assert_close(exact, slopes, rtol=1e-5, atol=1e-5)


def test_refit_holds_the_variances_between_anchors():
    toy, gp = make_toy(6), make_gp(M=4)
    learner = SCGD(batch_size=2, learning_rate=0.1, optimizer=optax.sgd)
    state = begin(learner, gp, toy, anchor=True)
    after = stepper(learner)(state, rows_of(toy, np.arange(2)))
    assert theta_of(after.gp)[1:] == theta_of(gp)[1:]
    assert np.all(theta_of(after.gp).W != theta_of(gp).W)


# The tracker


@pytest.mark.parametrize("tracking", [1.0, 0.3, PowerLaw(1.0, 0.5)])
def test_tracker_stays_above_the_least_noise(tracking):
    """F̃_t = F̃_tᵀ ⪰ min(λ_min F̃₀, min past σ²) I, as a convex combination of such matrices."""
    toy, gp = make_toy(30), make_gp(M=12)  # B < M: every F̂ has eigenvalues σ²
    learner = SCGD(batch_size=3, learning_rate=1e-3, tracking=tracking, **PLAIN)
    state, step = begin(learner, gp, toy, rate=1e-3), stepper(learner)
    least = np.inf
    for S in random_batches(30, 3, 40):
        least = min(least, float(state.gp.noise_variance))
        state = step(state, rows_of(toy, S))
        F = np.asarray(state.F)
        np.testing.assert_allclose(F, F.T, rtol=1e-13, atol=1e-13)
        assert np.linalg.eigvalsh(F)[0] >= least * (1 - 1e-12)


@pytest.mark.parametrize("b", [0.25, 0.9])
def test_constant_b_leaves_part_of_the_variance(b):
    """At fixed θ three steps leave b/(2−b) · (1 − (1−b)⁶) of one batch's variance, over all 15³ sequences of batches; so b/(2−b) in the end."""
    toy, gp = make_toy(6), make_gp(M=3)
    learner = SCGD(batch_size=2, learning_rate=PowerLaw(0.0, 0.0), tracking=b, **PLAIN)
    state, F = begin(learner, gp, toy), F_of(theta_of(gp), toy)
    state = eqx.tree_at(lambda s: s.F, state, jnp.asarray(F))
    batches = all_batches(6, 2)
    sequences = np.array(list(np.ndindex(15, 15, 15)))  # [3375, 3]
    stacked = jax.tree.map(lambda a: a[np.array(batches)[sequences]], rows_of(toy))  # [3375, 3, 2, ...]

    def last(rows: Data):
        carried = state
        for t in range(3):
            one = jax.tree.map(lambda a, t=t: a[t], rows)
            carried = learner.step(carried, one, key=KEY)[0]
        return carried.F

    found = np.asarray(jax.jit(jax.vmap(last))(stacked))
    one_batch = np.array([batch_moments(theta_of(gp), toy, S)[0] for S in batches])
    left = b / (2 - b) * (1 - (1 - b) ** 6)
    assert_close(found.mean(0), F)
    assert_close(found.var(0), left * one_batch.var(0))


# What a state is


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tracking": 1.5}, "tracking"),
        ({"tracking": 0.0, "anchored": False}, "tracking"),
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": -1}, "epochs"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
    ],
)
def test_impossible_settings_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        SCGD(**fields)
