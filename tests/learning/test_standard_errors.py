"""Standard errors of θ̂: the sandwich against plain NumPy, the spread of estimates over simulations, what the plan says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import KEY

from stochgp import KernelGPRegressor
from stochgp.data.memory import MemorySource
from stochgp.kernels import Matern12
from stochgp.learners import (
    BSGD,
    ByLoss,
    FullBatch,
    LeaveOneOut,
    Problem,
    Vecchia,
    conditionals,
)
from stochgp.learners.standard_errors import cells_of, godambe, named
from stochgp.learning import fit
from stochgp.models import KernelGP
from stochgp.numerics.arrays import packed
from stochgp.objectives.conditionals import curvature
from stochgp.parameters import partition, positive

pytestmark = pytest.mark.usefixtures("double")


def model(ell=1.0, variance=2.0, noise=0.1):
    make = lambda value: positive(value, dtype=jnp.float64)
    return KernelGP(Matern12(positive(np.full(1, ell), dtype=jnp.float64), make(variance)), make(noise))


def draw(n, width, seed):
    generator = np.random.default_rng(seed)
    X = generator.uniform(0, width, size=(n, 1))
    with jax.enable_x64(True):
        A = np.asarray(model().covariance(jnp.asarray(X), jnp.ones(n)))
    return X, np.linalg.cholesky(A) @ generator.normal(size=n)


def searched(learner, seed):
    """(Its state with neighbours in the metric of the model that made the rows, the problem)."""
    X, y = draw(250, 125.0, seed)
    source, plan = MemorySource(X, y, dtype=jnp.float64), learner.plan(250, 1, ByLoss())
    problem = Problem(source, plan, learner.prepare(model(), source, plan, (seed, 0)))
    state = dataclasses.replace(learner.init(model(), problem, key=KEY), gp=model())
    return dataclasses.replace(learner._search(state, problem), n_searches=np.int64(2)), problem


def test_cells_are_boxes_of_equal_size_or_the_groups():
    X = np.random.default_rng(0).normal(size=(1000, 2)) * [5.0, 1.0]
    cells = cells_of(X, 2)
    assert cells.max() == 127 and set(np.bincount(cells)) <= {7, 8}
    assert np.median([np.ptp(X[cells == cell], axis=0).max() for cell in range(128)]) < 4  # of a width of 30
    assert cells_of(X, 48).max() == 31
    np.testing.assert_array_equal(cells_of(X[:4], 48, np.array([7, 3, 7, 9])), [1, 0, 1, 2])
    assert len(set(cells_of(X[:5], 1).tolist())) == 5


@pytest.mark.parametrize("joint", [False, True])
def test_the_spread_of_the_gradient_is_that_of_sums_by_cell(joint):
    """Against the gradients of single centres, each by a call of its own."""
    X, y = draw(60, 30.0, 1)
    source, gp = MemorySource(X, y, dtype=jnp.float64), model(1.3, 1.5, 0.2)
    near = np.stack([(i + np.arange(7)) % 60 for i in range(60)]).astype(np.int32)
    cells = np.random.default_rng(0).integers(0, 9, 60)
    found = curvature(gp, source, near, True, joint, cells)
    single = [curvature(gp, source, near[i : i + 1], True, joint) for i in range(60)]
    sums = np.zeros((9, 3))
    error = np.zeros(9)
    for i, one in enumerate(single):
        sums[cells[i]] += one.gradient
        error[cells[i]] += one.loss - np.mean([s.loss for s in single])
    np.testing.assert_allclose(found.spread, 9 / 8 * sums.T @ sums / 60**2, rtol=1e-9)
    np.testing.assert_allclose(found.error, np.sqrt(9 / 8 * np.sum(error**2)) / 60, rtol=1e-9)
    alone = curvature(gp, source, near, True, joint)
    np.testing.assert_allclose(alone.spread, alone.scores / 59, rtol=1e-9)
    assert (found.n_cells, alone.n_cells) == (9, 60)


def test_godambe_is_the_sandwich_and_the_inverse_information_where_both_agree():
    generator = np.random.default_rng(0)
    H, J = (a @ a.T for a in generator.normal(size=(2, 3, 5)))
    inverse = np.linalg.inv(H)
    np.testing.assert_allclose(godambe(H, J), np.sqrt(np.diag(inverse @ J @ inverse)))
    np.testing.assert_allclose(godambe(H, H / 50), np.sqrt(np.diag(inverse) / 50))
    assert np.all(np.isinf(godambe(np.zeros((3, 3)), J)))
    flat = np.pad(H, ((0, 1), (0, 1)))
    found = godambe(flat, np.pad(J, ((0, 1), (0, 1))))
    np.testing.assert_allclose(found[:-1], godambe(H, J))
    assert np.isinf(found[-1])


@pytest.mark.parametrize("kind", [LeaveOneOut, Vecchia])
@pytest.mark.long
def test_standard_errors_are_the_spread_of_estimates_over_simulations(kind):
    """The mean of (θ̂ − θ)²/se² over 24 simulations and 3 parameters is 1 within 4 of its errors, correlations of the three allowed for."""
    learner, truth, squares = kind(n_neighbours=8, spread=None), packed(partition(model())[0]), []
    for seed in range(24):
        state, problem = searched(learner, seed)
        assert learner.standard_errors(state) is None
        for _ in range(12):
            state, told = learner.score(state, problem)
        assert told["distance"] < 0.01
        errors = packed(learner.standard_errors(state)[0])
        squares.append(((packed(partition(state.gp)[0]) - truth) / errors) ** 2)
    means = np.mean(squares, axis=1)
    assert abs(means.mean() - 1) < 4 * means.std() / 24**0.5


def test_standard_errors_hold_what_a_run_left_undone():
    """θ moved by twice its standard errors from the optimum: these then say so, as a Newton step leads back."""
    learner = LeaveOneOut(n_neighbours=8, spread=None)
    state, problem = searched(learner, 0)
    for _ in range(15):
        state, _ = learner.score(state, problem)
    optimum, theta = learner.standard_errors(state), packed(partition(state.gp)[0])
    assert optimum is not None
    errors = packed(optimum[0])
    np.testing.assert_allclose(errors, godambe(state.at.hessian, state.at.spread), rtol=1e-3)
    for k, error in enumerate(errors):
        away = theta.copy()
        away[k] += 2 * error
        moved = conditionals._moved(state.gp, away)
        at = learner._curvature(moved, problem, state.near)
        moved_state = dataclasses.replace(state, gp=moved, at=at)
        found = learner.standard_errors(moved_state)
        assert found is not None and packed(found[0])[k] > 1.5 * error
        assert learner.model(moved_state) is moved


def test_standard_errors_of_a_model_at_the_minimum_are_of_the_rows_alone():
    """A tenth of a standard error from the optimum a run returns the optimum: nothing is left undone."""
    learner = LeaveOneOut(n_neighbours=8, spread=None)
    state, problem = searched(learner, 0)
    for _ in range(15):
        state, _ = learner.score(state, problem)
    optimum = packed(partition(state.gp)[0])
    errors = godambe(state.at.hessian, state.at.spread)
    moved = conditionals._moved(state.gp, optimum + 0.1 * errors * [1, 0, 0])
    at = learner._curvature(moved, problem, state.near)
    near = dataclasses.replace(state, gp=moved, at=at, kept=np.float64(1))
    found = learner.standard_errors(near)
    assert found is not None
    np.testing.assert_allclose(packed(found[0]), godambe(at.hessian, at.spread), rtol=1e-12)
    away = np.abs(packed(partition(learner.model(near))[0]) - optimum) / errors
    assert away.max() < 0.02


def test_names_and_the_plan():
    X, y = draw(120, 60.0, 2)
    found = fit(LeaveOneOut(n_neighbours=8), model(), MemorySource(X, y, dtype=jnp.float64), key=KEY)
    names = named(found.standard_errors[0])
    assert set(names) == {"kernel.lengthscale", "kernel.variance", "noise.level"}
    np.testing.assert_allclose(
        names["kernel.lengthscale"], found.standard_errors[0].kernel.lengthscale.raw, rtol=6e-3
    )
    estimator = KernelGPRegressor(
        "matern12", learner=LeaveOneOut(n_neighbours=8, epochs=120), n_samples=0, random_state=0
    ).fit(X, y)
    told = estimator.fit_report_["standard_errors"]
    assert set(told) == set(names) | {"loss", "degrees_of_freedom"} and 0 < told["loss"] < 1
    assert told["degrees_of_freedom"] == found.standard_errors.degrees_of_freedom == 31


def test_learners_that_do_not_know_them_say_nothing():
    X, y = draw(60, 30.0, 3)
    for learner in (FullBatch(), BSGD(batch_size=20, epochs=1)):
        assert fit(learner, model(), MemorySource(X, y, dtype=jnp.float64), key=KEY).standard_errors is None
