"""Pools that Ctrl-C, a limit or a checkpoint ends: which members stay, and what `plan_` records."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from stochgp import FeatureGPRegressor, GPRegressor, KernelGPRegressor
from stochgp.budget import MemoryLimitError
from stochgp.families import left_out
from stochgp.learners import BSGD, SCGD
from stochgp.pools import regressor, weights
from stochgp.storage import checkpoint as checkpoints

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (1_010, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * GENERATOR.normal(size=1_010)
NEW = X[:20] + 0.1
SETTINGS = {"learner": SCGD(epochs=300, learning_rate=0.01), "likelihood": "gaussian"}  # three evaluations


class KilledError(BaseException):
    pass


class Refused(FeatureGPRegressor):
    """More than the memory limit leaves."""

    def fit(self, *_, **__):
        raise MemoryLimitError("needs 9 GB")


class Interrupted(FeatureGPRegressor):
    """Before its first step."""

    def fit(self, *_, **__):
        raise KeyboardInterrupt


class Idle(FeatureGPRegressor):
    """Ended by a time limit before its first step."""

    def fit(self, *given, **named):
        super().fit(*given, **named)
        self.n_iter_, self.converged_ = 0, False
        self.plan_ = self.plan_ | {"ended": {"choice": "time_limit", "why": "no time"}}
        return self


def pool(wavy=FeatureGPRegressor, **settings):
    """`line` is fitted first."""
    members = {
        "wavy": wavy("rff", n_features=40, **SETTINGS),
        "line": FeatureGPRegressor("linear", **SETTINGS),
    }
    return GPRegressor(members=members, **({"random_state": 0} | settings))


def interrupts(n, then=None):
    """A function that raises KeyboardInterrupt in its first n calls, and goes on as `then`."""
    left = [None] * n

    def raising(*given, **named):
        if left:
            left.pop()
            raise KeyboardInterrupt
        return None if then is None else then(*given, **named)

    return raising


@pytest.fixture(scope="module")
def whole():
    return pool().fit(X, Y)


def assert_interrupted(model, *members):
    assert model.plan_["ended"]["choice"] == "interrupted" and not model.converged_
    assert sorted(model.scores_) == sorted(members)
    assert np.isfinite(model.predict(NEW)).all()


@pytest.mark.parametrize(
    ("run", "step", "members"), [(1, 1, ["line"]), (2, 1, ["line", "wavy"]), (2, 0, ["line"])]
)
def test_ctrl_c_in_a_member_ends_the_pool_with_the_members_so_far(run, step, members):
    """A member that has taken no step does not stay beside one that has."""
    begun, steps = [], []

    def callback(entry):
        begun.extend([entry] if entry.get("step") == 0 else [])
        steps.append(entry.get("step", -1))
        if len(begun) == run and entry.get("step", -1) >= step and (step == 0 or steps[-2] > 0):
            begun.append(entry)
            raise KeyboardInterrupt

    model = pool().fit(X, Y, callback=callback)
    assert_interrupted(model, *members)
    assert all("nlpd" in score for score in model.scores_.values())
    assert ("wavy" in model.plan_.get("unfitted_members", {"choice": {}})["choice"]) == (step == 0)


def test_ctrl_c_in_the_comparison_has_members_compared_in_haste(monkeypatch):
    monkeypatch.setattr(weights, "_predict", interrupts(1, weights._predict))
    model = pool().fit(X, Y)
    assert_interrupted(model, "line", "wavy")
    assert all("nlpd" in score for score in model.scores_.values())


def test_a_second_ctrl_c_raises_and_the_earlier_model_stays(whole, monkeypatch):
    before, predicted = dict(vars(whole)), whole.predict(NEW)
    monkeypatch.setattr(weights, "_predict", interrupts(2, weights._predict))
    with pytest.raises(KeyboardInterrupt):
        whole.fit(3 * X + 1, 2 * Y + 5)
    assert all(vars(whole)[name] is value for name, value in before.items())
    assert_array_equal(whole.predict(NEW), predicted)


def test_ctrl_c_before_there_is_a_member_raises():
    model = GPRegressor(members={"wavy": Interrupted("linear")}, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)


def test_ctrl_c_while_held_out_rows_join_keeps_the_pool(monkeypatch):
    monkeypatch.setattr(regressor, "update_member", interrupts(1, regressor.update_member))
    assert_interrupted(pool().fit(X, Y), "line", "wavy")


def test_ctrl_c_while_the_likelihood_is_chosen_is_reported(monkeypatch):
    monkeypatch.setattr(left_out, "_left_out", interrupts(9))
    settings = {"learner": BSGD(epochs=2), "random_state": 0}
    model = KernelGPRegressor("rbf", **settings).fit(X[:200], Y[:200])
    assert model.plan_["ended"]["choice"] == "interrupted" and not model.converged_


def test_a_member_that_is_refused_is_recorded():
    model = pool(Refused).fit(X, Y)
    assert model.plan_["unfitted_members"]["choice"] == {"wavy": "needs 9 GB"}
    assert list(model.estimators_) == ["line"]


def test_a_member_without_a_step_does_not_stay():
    model = pool(Idle).fit(X, Y)
    assert list(model.scores_) == ["line"]
    assert "before the first step" in model.plan_["unfitted_members"]["choice"]["wavy"]


def killed_run(path, **settings):
    """Killed once the member that is fitted first has a checkpoint."""

    def kill(_):
        if path.with_name(f"{path.name}.line").exists() and "fingerprint" in _metadata(path):
            raise KilledError

    with pytest.raises(KilledError):
        pool(**settings).fit(X, Y, checkpoint=path, callback=kill)


def _metadata(path):
    return checkpoints.load_tree(path.with_name(f"{path.name}.line"))[1]


@pytest.mark.parametrize("what", ["other data", "another seed", "damaged"])
def test_a_checkpoint_that_is_not_of_this_run_is_refused(what, tmp_path):
    path = tmp_path / "run"
    killed_run(path)
    part = path.with_name("run.line")
    if what == "damaged":
        part.write_bytes(part.read_bytes()[:-9])
    seed = 1 if what == "another seed" else 0
    with pytest.raises(checkpoints.CheckpointError, match="name another file or remove it") as refusal:
        pool(random_state=seed).fit(X, -Y if what == "other data" else Y, checkpoint=path)
    assert "\n" not in str(refusal.value)


def test_without_a_seed_a_killed_run_goes_on_with_the_seed_of_its_checkpoint(tmp_path):
    path = tmp_path / "run"
    killed_run(path, random_state=None)
    resumed = pool(random_state=None).fit(X, Y, checkpoint=path)
    seed = checkpoints.notes(path)["seed"]
    assert_array_equal(resumed.predict(NEW), pool(random_state=seed).fit(X, Y).predict(NEW))


@pytest.mark.long
def test_one_estimator_goes_on_with_the_seed_of_its_checkpoint(tmp_path):
    path, make = tmp_path / "run", lambda **more: FeatureGPRegressor("rff", n_features=40, **SETTINGS, **more)

    def kill(_):
        if "fingerprint" in checkpoints.load_tree(path)[1]:
            raise KilledError

    with pytest.raises(KilledError):
        make().fit(X, Y, checkpoint=path, callback=kill)
    resumed = make().fit(X, Y, checkpoint=path)
    seed = checkpoints.notes(path)["seed"]
    assert_array_equal(resumed.predict(NEW), make(random_state=seed).fit(X, Y).predict(NEW))
