"""The loop of kernel learners: what it returns, and that kills, limits, interrupts and divergence end it well."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from killing import KilledError, stop_at
from sweeps import some_of
from toy import KEY

from stochgp.data.memory import MemorySource
from stochgp.deadline import Pace
from stochgp.kernels import RBF
from stochgp.learners import (
    BSGD,
    IVSGPR,
    SGPR,
    SVDGP,
    SVGP,
    AbstractLearner,
    ByLoss,
    LeaveOneOut,
    Uniform,
    Vecchia,
)
from stochgp.learners.base import Problem
from stochgp.learners.conditionals import AbstractConditionals
from stochgp.learners.evaluators import StepPlan
from stochgp.learning import fit
from stochgp.learning.run import take_stretch
from stochgp.models import KernelGP, SparseGP
from stochgp.results import RESULTS
from stochgp.variational import Decoupled, InducingPoints

GP = KernelGP(RBF([1.0, 1.0]))
SPARSE = SparseGP(GP.kernel, InducingPoints.of(jnp.asarray([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])))
COMMON = {"batch_size": 8, "epochs": 40}  # 320 steps: 5 evaluations
CENTRES = {
    "epochs": 96,
    "n_neighbours": 6,
}  # five rounds of mini-batches, one of scoring steps: 6 evaluations
LEARNERS = {
    "neighbours": BSGD(**COMMON),
    "uniform": BSGD(**COMMON, sampling=Uniform()),
    "with replacement": BSGD(**COMMON, sampling=Uniform(replace=True), signal_scale=3.0),
    "leave-one-out": LeaveOneOut(**CENTRES),
    "vecchia": Vecchia(**CENTRES),
    "svgp": SVGP(**COMMON, learning_rate=0.01),
    "svgp with trials": SVGP(**COMMON),
    "sgpr": SGPR(epochs=20, tolerance=0.0),
    "svdgp": SVDGP(**COMMON, learning_rate=0.01, growth=3),
    "svdgp with trials": SVDGP(**COMMON, n_columns=4),
    "ivsgpr": IVSGPR(**COMMON, learning_rate=0.01, growth=3),
}
sweep = pytest.mark.parametrize("name", LEARNERS)


@functools.cache
def _data(n=64):
    generator = np.random.default_rng(3)
    X = generator.normal(size=(n, 2))
    return MemorySource(X, np.sin(2 * X[:, 0]) + 0.2 * generator.normal(size=n))


def _gp(name):
    match LEARNERS[name]:
        case SVGP() | SGPR():
            return SPARSE
        case SVDGP():
            return SparseGP(GP.kernel, Decoupled.of(7, 4, 2, spread=True))
        case IVSGPR():
            return SparseGP(GP.kernel, Decoupled.of(5, None, 2))
        case _:
            return GP


def _kind(name):
    return next((kind for kind in (AbstractConditionals, SGPR) if isinstance(LEARNERS[name], kind)), None)


@functools.cache
def _fit(name):
    return fit(LEARNERS[name], _gp(name), _data(), key=KEY)


def _bits(result):
    """All of a result but the seconds."""
    history = [{k: v for k, v in entry.items() if k != "seconds"} for entry in result.history]
    parts = (result.gp, result.loss, result.n_iter, result.converged, history)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(parts) if not callable(leaf)]


def _assert_same(a, b):
    assert a.result is b.result
    for left, right in zip(_bits(a), _bits(b), strict=True):
        np.testing.assert_array_equal(left, right)


@sweep
def test_history_and_result(name):
    found = _fit(name)
    steps, epochs = {SGPR: (20, 20)}.get(_kind(name), (320, 40))
    if _kind(name) is AbstractConditionals:  # it ends when a step promises little
        steps = epochs = found.n_iter
    apart = LEARNERS[name].plan(64, 2, ByLoss()).steps_per_evaluation
    steps_seen = [entry["step"] for entry in found.history if "step" in entry]  # trials of rates have none
    assert steps_seen == list(range(0, steps + 1, apart))
    assert found.history[-1]["epoch"] == epochs
    assert found.n_iter == steps
    assert found.loss == found.history[-1]["loss"]
    assert found.history[-1]["noise_variance"] == float(found.gp.noise_variance)
    assert found.converged == (found.result is RESULTS.successful)
    assert found.result in (RESULTS.successful, RESULTS.not_settled)
    leaves = [leaf for leaf in jax.tree.leaves(found.gp) if eqx.is_inexact_array(leaf)]
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


@sweep
@pytest.mark.parametrize("entry", some_of([1, 4], [4]))
def test_a_killed_run_resumes_to_the_same_bits(name, entry, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(KilledError):
        report = stop_at(entry, KilledError())
        fit(LEARNERS[name], _gp(name), _data(), key=KEY, checkpoint=path, progress=report)
    for _ in range(2):  # the second finds that it has ended
        _assert_same(fit(LEARNERS[name], _gp(name), _data(), key=KEY, checkpoint=path), _fit(name))


@pytest.mark.parametrize("entry", [1, 3])
def test_an_interrupt_keeps_the_last_good_evaluation(entry):
    report = stop_at(entry, KeyboardInterrupt())
    found = fit(LEARNERS["uniform"], GP, _data(), key=KEY, progress=report)
    assert found.result is RESULTS.interrupted
    assert not found.converged
    n_done = max(0, entry - 2)  # the stretch that is reported when the interrupt comes is lost
    assert found.n_iter == 64 * n_done
    assert float(found.gp.noise_variance) == _fit("uniform").history[n_done]["noise_variance"]


@pytest.mark.parametrize("learner", [BSGD(batch_size=8, epochs=10**6), LeaveOneOut(epochs=10**6), Vecchia()])
def test_a_time_limit_ends_the_run(learner):
    found = fit(learner, GP, _data(), key=KEY, time_limit=1e-3)
    assert found.result is RESULTS.time_limit
    assert not found.converged
    assert found.n_iter == 0  # to compile a step takes longer


class Scripted(AbstractLearner):
    """A learner whose losses are written down; its state counts the stretches that led to it."""

    losses: tuple[float, ...]
    errors: tuple[float, ...] = ()
    finish: float = -np.inf

    def plan(self, n_rows, n_inputs, evaluator):
        return StepPlan(n_rows, 1, len(self.losses), 1)

    def peak_bytes(self, gp, n_rows, n_inputs):
        return 0

    def prepare(self, gp, source, plan, seed):
        return None

    def init(self, gp, problem, *, key):
        return gp, np.zeros(()), np.ones(())

    def advance(self, state, problem, first_step, n_steps, seed):
        numbers = {"loss": self.losses[first_step], "rate": float(state[2])}
        if self.errors:
            numbers["loss_squared"] = numbers["loss"] ** 2 + self.errors[first_step] ** 2
        return (state[0], state[1] + 1, state[2]), numbers

    def model(self, state):
        return KernelGP(RBF(), 1.0 + float(state[1]))

    def slower(self, state, factor):
        return state[0], state[1], state[2] * factor

    def finished(self, entry):
        return entry["loss"] <= self.finish


def _play(*losses, finish=-np.inf, errors=(), **options):
    return fit(Scripted(losses, errors, finish=finish), GP, _data(), key=KEY, **options)


def test_a_lost_evaluation_goes_back_to_the_lowest_loss_at_a_smaller_rate():
    found = _play(1.0, 0.5, 0.9, 1.6, 0.4, np.nan, 0.4)
    assert [entry.get("recovered") for entry in found.history] == [None, 0, 0, 0, 1, 0, 1, 0]
    rates = [entry["rate"] for entry in found.history[1:]]
    np.testing.assert_allclose(rates, [1, 1, 1, 1, 0.3, 0.3, 0.09])
    assert float(found.gp.noise_variance) == 5.0  # two stretches, back, one, one lost, one
    assert found.loss == 0.4


def test_a_loss_that_may_be_chance_is_not_lost():
    """More than 1 above the lowest by three standard errors: 2.5 ± 0.6 after 0.5 is not, 2.5 ± 0.3 is."""
    found = _play(0.5, 2.5, 2.5, 0.4, errors=(0.0, 0.6, 0.3, 0.0))
    assert [entry.get("recovered") for entry in found.history] == [None, 0, 0, 1, 0]
    np.testing.assert_allclose(
        [entry["loss_error"] for entry in found.history[1:]], [0, 0.6, 0.3, 0], atol=1e-7
    )


@pytest.mark.parametrize("name", ["uniform", "svgp", "svdgp"])
def test_the_error_of_a_loss_is_that_of_the_mean_over_steps(name):
    """A stretch of 64 steps, against the same steps one by one."""
    learner, gp, data, seed, losses = LEARNERS[name], _gp(name), _data(), (5, 6), []
    with jax.enable_x64(True):
        plan = learner.plan(data.size, 2, ByLoss())
        problem = Problem(data, plan, learner.prepare(gp, data, plan, seed))
        state = learner.init(gp, problem, key=KEY)
        _, n, whole = take_stretch(learner, state, problem, 0, seed, pieces=Pace())
        for step in range(n):
            state, numbers = learner.advance(state, problem, step, 1, seed)
            losses.append(numbers["loss"])
    assert n == 64
    np.testing.assert_allclose(whole["loss"], np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(whole["loss_error"], np.std(losses) / n**0.5, rtol=1e-3)


def test_a_run_whose_last_evaluation_is_lost_has_diverged():
    found = _play(1.0, 0.5, 2.0)
    assert found.result is RESULTS.diverged
    assert float(found.gp.noise_variance) == 3.0
    assert found.loss == 0.5


def test_a_learner_may_finish():
    found = _play(1.0, 0.5, 0.1, 0.0, finish=0.1)
    assert found.result is RESULTS.successful
    assert found.n_iter == 3


@pytest.mark.parametrize(
    ("losses", "settled"),
    [
        ([1.0], False),
        ([1.0, 0.995], True),
        ([1.0, 0.9], False),
        (np.linspace(1, 0, 20), False),
        (np.linspace(1, 0, 200), False),
        (np.r_[np.linspace(1, 0, 30), np.zeros(20)], True),
        (0.1 * np.cos(np.arange(50.0)), True),
    ],
)
def test_settling(losses, settled):
    history = [{"step": 0}, *({"loss": float(loss), "recovered": 0.0} for loss in losses)]
    assert ByLoss().settled(history) is settled
