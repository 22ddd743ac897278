"""The benchmarks without their rivals: rows, scores, the library's sides."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from benchmarks import classes, feature_steps
from stochgp.parameters import partition


def test_classes_are_scored_by_the_probability_of_the_right_one():
    frame = pd.DataFrame({"a": np.arange(20.0), "b": ["x", None] * 10, "y": [1, 2, 2, None] * 5})
    X, y, X_new, y_new = classes.divided(frame, "y", None)
    assert (len(X), len(X_new)) == (12, 3) and set(y) | set(y_new) == {"1.0", "2.0"}
    assert not set(X["a"]) & set(X_new["a"])
    certain = lambda X, y: lambda X: (np.tile([0.25, 0.75], (len(X), 1)), [1.0, 2.0])
    found = classes.scored(certain, X, y, X_new, y_new)
    share = np.mean(y_new == "2.0")
    assert found["log_loss"] == pytest.approx(-share * np.log(0.75) - (1 - share) * np.log(0.25))
    assert found["accuracy"] == pytest.approx(share)
    model = classes._logistic(X, y)
    P, names = model(X_new)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    assert names == ["1.0", "2.0"]


def test_minimax_starts_where_its_projection_is_inactive():
    """A₀ = F + 0.1 tr(F)/M I at the start, F = ΦᵀΦ + σ²I, and no step of an epoch needed a decomposition."""
    problem = feature_steps.make_problem(64, 3, 4)
    gp = feature_steps.make_gp(problem)
    with jax.enable_x64(True):
        Phi = np.asarray(gp.features(jnp.asarray(problem.X)), np.float64)
    F = Phi.T @ Phi + problem.noise_variance * np.eye(4)
    side = feature_steps.LibrarySide(problem, "minimax", "adam", 8)
    side.epoch()
    assert side.facts()["decomposed"] == 0
    with jax.enable_x64(True):
        source = feature_steps.MemorySource(problem.X, problem.y)
        found = feature_steps.inside(side.state, gp, source)
    np.testing.assert_allclose(found.A, F + 0.1 * np.trace(F) / 4 * np.eye(4), rtol=1e-4, atol=1e-4)


def test_adadelta_takes_bsgds_steps_of_the_sum_over_the_batch():
    """Three steps are those of optax.adadelta on ∇(yᵀA⁻¹y + log|A|), the gradient of the paper and of the other sides."""
    problem, B, n_steps = feature_steps.make_problem(64, 3, 4), 16, 3
    with jax.enable_x64(True):
        gp = feature_steps.make_gp(problem)
        learner = feature_steps.make_learner("bsgd", "adadelta", B)
        source = feature_steps.MemorySource(problem.X, problem.y)
        plan = learner.plan(source.size, source.n_inputs, feature_steps.JUDGE)
        state = learner.init(gp, feature_steps.Run(source, plan, None), key=jax.random.key(0))
        batch = source.take(np.arange(B))
        theta, rest = partition(gp)

        def loss(theta):
            A = eqx.combine(theta, rest).covariance(batch.X, batch.weight)
            return batch.y @ jnp.linalg.solve(A, batch.y) + jnp.linalg.slogdet(A)[1]

        rule = optax.adadelta(feature_steps.RATES["adadelta"])
        memory = rule.init(theta)
        for _ in range(n_steps):
            state, _ = learner.step(state, batch, key=jax.random.key(0))
            updates, memory = rule.update(jax.grad(loss)(theta), memory, theta)
            theta = optax.apply_updates(theta, updates)
        for found, wanted in zip(
            jax.tree.leaves(partition(state.gp)[0]), jax.tree.leaves(theta), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
