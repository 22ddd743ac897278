"""A plan is a value: above 3,000 rows, where the machine is timed, a fit that is killed and resumed or run again by its plan has the same bits."""

import functools
import json

import numpy as np
import pytest
from killing import KilledError

from stochgp import KernelGPRegressor
from stochgp.learners import BSGD
from stochgp.planning import solver as planner

N = 3_300
SETTINGS = {"learner": "bsgd", "epochs": 3, "n_samples": 2, "random_state": 0}


@functools.cache
def _data(n=N):
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + np.cos(3 * X[:, 1]) + 0.3 * generator.normal(size=n)


@functools.cache
def _whole():
    return KernelGPRegressor(**SETTINGS).fit(*_data())


def _bits(model):
    X = _data()[0][:300]
    return np.stack(model.predict(X, return_std=True))


class TimedError(Exception):
    """The machine was timed."""


@pytest.fixture
def not_timed(monkeypatch):
    _whole()

    def refuse(*_):
        raise TimedError

    monkeypatch.setattr(planner, "calibrate", refuse)


@pytest.fixture
def steps(monkeypatch):
    """Counts the steps that learners take."""
    taken, advance = [], BSGD.advance

    def counted(self, state, problem, first_step, n_steps, seed):
        taken.append(n_steps)
        return advance(self, state, problem, first_step, n_steps, seed)

    monkeypatch.setattr(BSGD, "advance", counted)
    return taken


@pytest.mark.long
def test_the_machine_is_timed_without_a_plan(not_timed):
    with pytest.raises(TimedError):
        KernelGPRegressor(learner=None, n_samples=2, random_state=0).fit(*_data())


def test_two_fits_with_one_plan_have_the_same_bits(not_timed):
    plan = json.loads(json.dumps(_whole().plan_))
    again = KernelGPRegressor(**SETTINGS, plan=plan).fit(*_data())
    np.testing.assert_array_equal(_bits(again), _bits(_whole()))
    assert again.plan_["solver"]["choice"] == plan["solver"]["choice"]
    assert "as given" in again.plan_["solver"]["why"]


def test_a_plan_is_followed_and_not_only_read(not_timed):
    """Another solver than the one that would be chosen."""
    plan = json.loads(json.dumps(_whole().plan_))
    plan["solver"]["choice"], plan["variance"]["choice"] = "CG", "samples"
    plan["solver_settings"]["choice"] = {
        "epochs": 50,
        "rank": 20,
        "damping": 3.0,
        "greedy": False,
        "check_every": 50,
        "neighbours": 0,
    }
    plan["n_samples"]["choice"], plan["keep_rows"]["choice"] = 3, 0
    plan["solve_dtype"]["choice"] = "float32"
    model = KernelGPRegressor(**SETTINGS, plan=plan).fit(*_data())
    assert model.plan_["solver_settings"]["choice"]["rank"] == 20
    assert model._fitted.posterior.n_samples == 3


@pytest.mark.parametrize("missing", ["prediction", "solver", "learning_memory"])
def test_half_a_plan_is_refused(missing, not_timed):
    plan = {name: entry for name, entry in _whole().plan_.items() if name != missing}
    with pytest.raises(ValueError, match=missing):
        KernelGPRegressor(**SETTINGS, plan=plan).fit(*_data())


@pytest.mark.long
def test_killed_before_the_solve_it_resumes_without_learning_again(tmp_path, steps, monkeypatch):
    path, whole = tmp_path / "run", _bits(_whole())
    steps.clear()
    with monkeypatch.context() as patch:
        patch.setattr("stochgp.families.solving.solve", _killed)
        patch.setattr("stochgp.solvers.cholesky.Cholesky.factorise", _killed)
        with pytest.raises(KilledError):
            KernelGPRegressor(**SETTINGS).fit(*_data(), checkpoint=path)
    learning = sum(steps)
    assert learning > 0
    monkeypatch.setattr(planner, "calibrate", _killed)  # the plan is in the checkpoint
    found = KernelGPRegressor(**SETTINGS).fit(*_data(), checkpoint=path)
    assert sum(steps) == learning
    if found.plan_["solver"]["choice"] == _whole().plan_["solver"]["choice"]:
        np.testing.assert_array_equal(_bits(found), whole)


def test_killed_while_learning_it_resumes_with_the_steps_that_are_left(tmp_path, steps):
    _whole()
    path, seen = tmp_path / "run", []
    steps.clear()

    def kill(entry):
        seen.append(entry)
        if len(seen) == 2:
            raise KilledError

    with pytest.raises(KilledError):
        KernelGPRegressor(**SETTINGS).fit(*_data(), checkpoint=path, callback=lambda e: kill(e))
    KernelGPRegressor(**SETTINGS, plan=_whole().plan_).fit(*_data(), checkpoint=path)
    assert sum(steps) <= _whole().n_iter_ + steps[0]


def _killed(*_, **__):
    raise KilledError
