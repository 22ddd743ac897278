"""A deadline is kept by not beginning what would end later. The clock is one that the tests move, so that seconds are counts."""

import math
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.linalg
from toy import KEY, make_gp

from stochgp import FeatureGPRegressor, KernelGPRegressor, deadline, learners, neighbours
from stochgp.context import OPTIONAL_SECONDS, FitContext
from stochgp.data.memory import MemorySource
from stochgp.deadline import Pace, TimeIsUpError, granted, left, require, within
from stochgp.kernels import RBF
from stochgp.learners import (
    BSGD,
    SCGD,
    FullBatch,
    Uniform,
    full_batch,
)
from stochgp.learners.evidence import ByEvidence
from stochgp.learning import fit
from stochgp.models import KernelGP
from stochgp.numerics import linalg
from stochgp.operators import KernelOperator
from stochgp.results import RESULTS
from stochgp.solvers import CG, solve

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(64, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * GENERATOR.normal(size=64)
GP = KernelGP(RBF([1.0, 1.0]))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def costs(self, monkeypatch, owner, name, seconds):
        """Every call of this function takes so long."""
        plain = getattr(owner, name)

        def timed(*args, **kwargs):
            found = plain(*args, **kwargs)
            self.now += seconds
            return found

        monkeypatch.setattr(owner, name, timed)


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(deadline, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


def leaves(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.gp) if not callable(leaf)]


def test_the_earlier_of_two_deadlines_holds(clock):
    assert left() == math.inf
    with within(10):
        clock.now = 4
        with within(100):
            assert left() == 6
        with within(None):
            assert left() == 6
        with within(1):
            assert left() == 1
            with granted(3):
                assert left() == 3
        with granted(1):
            assert left() == 6
        require(6)
        with pytest.raises(TimeIsUpError, match="6.5 s are needed, but 6 s remain"):
            require(6.5)
    assert left() == math.inf


@pytest.mark.parametrize(("first", "expected"), [(2.0, 0.6), (10.0, 7.0)])
def test_of_a_first_piece_a_part_is_taken_for_compilation(clock, first, expected):
    assert Pace(0.5).expected == 0.5
    pace = Pace()
    for seconds, then in ((first, expected), (1.5, 1.5), (0.2, 0.2)):
        with pace.piece():
            clock.now += seconds
        assert pace.expected == pytest.approx(then) and pace.seconds == pytest.approx(seconds)


LEARNERS = {
    "mini-batches": (BSGD(batch_size=8, epochs=10_000, sampling=Uniform()), BSGD, "advance"),
    "full batch": (FullBatch(tolerance=0.0, epochs=1_000), full_batch, "nlml_and_gradient"),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_learning_ends_in_time_and_uses_it(name, clock, monkeypatch):
    """Every piece takes a second: the limit is kept, and not more than two pieces are left unused."""
    learner, owner, costly = LEARNERS[name]
    clock.costs(monkeypatch, owner, costly, 1.0)
    found = fit(learner, GP, MemorySource(X, Y), key=KEY, time_limit=20.5)
    assert found.result is RESULTS.time_limit and not found.converged
    assert clock.now <= 20.5
    assert name == "a chain" or clock.now >= 18
    assert found.n_iter > 0 and np.isfinite(found.loss)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_limit_changes_no_bits_of_the_steps_before_it(name, clock, monkeypatch):
    learner, owner, costly = LEARNERS[name]
    histories = []
    for limit in (12.5, 20.5):
        with monkeypatch.context() as patch:
            clock.costs(patch, owner, costly, 1.0)
            found = fit(learner, GP, MemorySource(X, Y), key=KEY, time_limit=limit)
        histories.append([{k: v for k, v in entry.items() if k != "seconds"} for entry in found.history])
    whole = len(histories[0]) - 1  # the last stretch may be cut
    assert 0 < whole < len(histories[1]) and histories[0][1:whole] == histories[1][1:whole]


@pytest.mark.parametrize(("limit", "over"), [(3.0, 1.0), (20.0, 0.0), (45.0, 0.0), (120.0, 0.0)])
@pytest.mark.parametrize("held_out", [0.0, 0.1])
def test_trials_of_rates_and_evaluations_end_in_time_too(clock, monkeypatch, limit, over, held_out):
    """A chunk of steps and an evaluation take a second each. The run returns its lowest criterion.

    Without held-out rows, the criterion is the NLML of all rows.

    A very short run is late by one of them, because most of the first ones is taken for compilation.
    """
    learner = SCGD(batch_size=8, epochs=2_000, evaluator=ByEvidence(validation_fraction=held_out))
    gp = make_gp(M=5, dtype=np.float32)
    with monkeypatch.context() as patch:
        clock.costs(patch, SCGD, "advance", 1.0)
        clock.costs(patch, ByEvidence, "evaluate", 1.0)
        found = fit(learner, gp, MemorySource(X, Y), key=KEY, time_limit=limit)
    assert found.result is RESULTS.time_limit and not found.converged and clock.now <= limit + over
    name = "criterion" if held_out else "nlml"
    evaluations = [entry for entry in found.history if "step" in entry]  # without trials of rates
    assert found.loss == min(entry[name] for entry in evaluations)
    assert held_out or found.nlml <= evaluations[0]["nlml"]


def test_a_search_that_would_end_too_late_is_given_up_early(clock, monkeypatch):
    """64 points take a second: of 640 two parts are searched within 5 seconds, all within 11; the answers are the same."""
    clock.costs(monkeypatch, neighbours.Neighbours, "_nearest", 1.0)
    rows = GENERATOR.normal(size=(640, 3))
    tree, centres = neighbours.Neighbours(rows), np.arange(640)
    with within(5.0), pytest.raises(TimeIsUpError):
        tree.others(centres, 5)
    assert clock.now <= 2
    with within(11.0):
        found = tree.others(centres, 5)
    np.testing.assert_array_equal(found, tree.others(centres, 5))


def test_a_solve_ends_in_time_with_its_iterate_and_its_residual(clock, monkeypatch):
    """An epoch and a measurement take a second each."""
    module = sys.modules["stochgp.solvers.solve"]
    operator = KernelOperator.of(RBF([1.0, 1.0]), jax.numpy.asarray(X, "float32"), 1e-4)
    with monkeypatch.context() as patch:
        clock.costs(patch, module, "_take_steps", 1.0)
        clock.costs(patch, module, "_residual", 1.0)
        found = solve(operator, Y[:, None], CG(epochs=200, rank=1), key=KEY, tolerance=1e-9, time_limit=10.0)
    assert found.result is RESULTS.time_limit and clock.now <= 10
    assert sum(not entry["measured"] for entry in found.history) >= 4
    K = np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, axis=2))
    left = Y[:, None] - (K + 1e-4 * np.eye(len(Y))) @ np.asarray(found.value, np.float64)
    residual = np.linalg.norm(left) / np.linalg.norm(Y)
    np.testing.assert_allclose(found.residual_norms, residual, rtol=1e-2)


# Estimators

MANY = GENERATOR.uniform(-2, 2, size=(3_300, 2))
MANY_Y = np.sin(2 * MANY[:, 0]) + np.cos(3 * MANY[:, 1]) + 0.3 * GENERATOR.normal(size=3_300)


def bits(model):
    return np.stack(model.predict(MANY[:200], return_std=True))


@pytest.mark.long
def test_a_kernel_gp_that_is_short_of_time_learns_from_fewer_rows_and_predicts_locally(clock, monkeypatch):
    with monkeypatch.context() as patch:
        clock.costs(patch, full_batch, "nlml_and_gradient", 0.1)
        patch.setattr(linalg, "BLOCK", 256)
        clock.costs(patch, scipy.linalg, "solve_triangular", 0.01)  # twelve times in the first of 13 blocks
        model = KernelGPRegressor("rbf", time_limit=4.0, random_state=0).fit(MANY, MANY_Y)
    assert clock.now <= 4.0 and model.n_iter_ > 0
    assert not model.converged_ and model.plan_["ended"]["choice"] == "time_limit"
    assert model.plan_["learning_rows"]["choice"] < 3_000
    assert model.plan_["prediction"]["choice"] == "local" and "nearby rows" in model.plan_["ended"]["why"]


def test_a_feature_gp_that_is_short_of_time_has_a_posterior_and_a_plan(clock, monkeypatch):
    settings = {"features": "rff", "n_features": 20, "random_state": 0, "time_limit": 6.0}
    with monkeypatch.context() as patch:
        clock.costs(patch, SCGD, "advance", 1.0)
        model = FeatureGPRegressor(**settings).fit(MANY, MANY_Y)
    assert clock.now <= 6.0 and model.n_iter_ > 0 and not model.converged_
    assert np.isfinite(bits(model)).all()


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["learning", "before the solve", "in the solve"])
@pytest.mark.long
def test_after_an_interrupt_the_posterior_is_the_one_that_is_quickest_to_have(where, monkeypatch):
    """No solve is begun after it, and nothing is warned of."""
    model = KernelGPRegressor("rbf", learner=learners.BSGD(epochs=3), random_state=0)
    callback = (lambda entry: interrupt() if entry["step"] > 0 else None) if where == "learning" else None
    if where == "before the solve":
        monkeypatch.setattr("stochgp.families.kernel_posterior.choose", interrupt)
    if where == "in the solve":
        monkeypatch.setattr(sys.modules["stochgp.solvers.solve"], "_take_steps", interrupt)
        model.set_params(solver="cg")
    model.fit(MANY, MANY_Y, callback=callback)
    assert model.plan_["ended"]["choice"] == "interrupted" and not model.converged_
    assert model.plan_["prediction"]["choice"] == "local"
    assert np.isfinite(bits(model)).all()


def test_a_limit_that_is_not_reached_changes_nothing():
    few, y = MANY[:200], MANY_Y[:200]
    make = lambda limit: KernelGPRegressor("rbf", random_state=0, time_limit=limit).fit(few, y)
    free, limited = make(None), make(10_000.0)
    np.testing.assert_array_equal(bits(free), bits(limited))
    assert limited.plan_["ended"]["choice"] == "planned"
    assert limited.converged_ == free.converged_


def test_an_optional_step_has_one_reason_to_be_left_out():
    """The reason given, then too little time, then too little memory."""
    context = FitContext(KernelGPRegressor(memory_limit="100GB", random_state=0))
    assert context.refusal() is None and context.refusal(None, 10**6) is None
    with within(0.9 * OPTIONAL_SECONDS):
        assert "time is too short" in str(context.refusal(None, 10**15))
        assert context.refusal("few rows", 10**15) == "few rows"
    assert "memory is too small: 1000 TB are needed" in str(context.refusal(None, 10**15))
