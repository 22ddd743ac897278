"""Targets that have one value again and again: a hurdle model, and when a pool takes it."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import WITHOUT_KERNEL

from stochgp import GPRegressor, load
from stochgp.budget import MemoryLimitError
from stochgp.data.rows import Data
from stochgp.distributions import Mixture, PointMass
from stochgp.learners import SVGP, ByLoss
from stochgp.pools import HurdleRegressor, classifier, members, pool, regressor, targets
from stochgp.pools.targets import frequent

N = 400
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
RAINS = GENERATOR.uniform(size=N) < 0.2 + 0.6 * (X[:, 0] > 0)
Y = np.where(RAINS, 5 + X[:, 1] + 0.3 * GENERATOR.normal(size=N), 0.0)
NEW = GENERATOR.uniform(-2, 2, (40, 2))
SETTINGS = {"random_state": 0, "target": "real"}


@pytest.fixture(scope="module", autouse=True)
def _quick_members():
    few = {members.MAX_FEW_ROWS: (20, SVGP(steps=40, batch_size=128, evaluator=ByLoss()))}
    with pytest.MonkeyPatch.context() as patched:
        known = {name: WITHOUT_KERNEL[name] for name in ("feature", "linear")}
        patched.setattr(regressor, "REGRESSORS", known)
        for names in ("MEMBERS", "MEMBERS_OF_FEW"):
            patched.setattr(regressor, names, ("linear",))
        patched.setattr(regressor, "MIN_ROWS_HELD_OUT", N)  # few rows take as many seconds as N³
        patched.setattr(classifier, "CLASSIFIERS", {"smooth": members.CLASSIFIERS["smooth"]})
        patched.setattr(members, "FEW", few)
        yield


@pytest.fixture(scope="module")
def model(_quick_members):
    return GPRegressor(point_mass=0, random_state=0).fit(X, Y)


def test_an_observation_is_the_value_or_a_draw_of_the_pool_of_other_rows(model):
    (hurdle,) = model.estimators_.values()
    assert isinstance(hurdle, HurdleRegressor) and hurdle.value == 0
    at, elsewhere = hurdle.estimators_["at_value"], hurdle.estimators_["elsewhere"]
    assert elsewhere.n_rows_ == RAINS.sum() and at.n_rows_ == N and elsewhere.target == "auto"
    p, found = at.predict_proba(NEW)[:, list(at.classes_).index(True)], model.predict_distribution(NEW)
    assert_allclose(found.cdf(1e-7) - found.cdf(-1e-7), p, rtol=1e-5)
    y = np.linspace(-1.3, 9.7, 40)
    rest = elsewhere.predict_distribution(NEW).cdf(y)
    assert_allclose(found.cdf(y), p * (y >= 0) + (1 - p) * rest, rtol=1e-6)
    assert_allclose(model.predict(NEW), (1 - p) * elsewhere.predict(NEW), rtol=1e-6)
    assert np.mean(p[NEW[:, 0] > 0.5]) < 0.4 < 0.6 < np.mean(p[NEW[:, 0] < -0.5])


def test_draws_have_the_value_as_often_as_is_predicted(model):
    S = 4_000
    p = np.diff(model.predict_distribution(NEW).cdf(np.tile([-1e-7, 1e-7], (40, 1))))[:, 0]
    for drawn in (model.sample_y(NEW, S, include_noise=True), model.predict_distribution(NEW).sample(0, S)):
        assert np.all(abs(np.mean(drawn == 0, axis=1) - p) < 5 * np.sqrt(p * (1 - p) / S) + 1e-12)
    mean, std = model.predict(NEW, return_std=True, include_noise=True)
    drawn = model.sample_y(NEW, S, 1, include_noise=True)
    assert np.all(abs(drawn.mean(axis=1) - mean) < 5 * std / S**0.5)
    assert_allclose(drawn.std(axis=1), std, rtol=0.1)
    covariance = model.predict(NEW, return_cov=True)[1]
    functions = model.sample_functions(S, 2)(NEW)
    assert_allclose(np.cov(functions), covariance, atol=6 * covariance.max() / S**0.5)
    with pytest.raises(ValueError, match="pass a NumPy array"):
        model.sample_functions(2)(jnp.asarray(NEW, jnp.float32))


def test_files_and_pickles_give_the_same_bits(model, tmp_path):
    model.save(tmp_path / "hurdle.safetensors")
    for other in (load(tmp_path / "hurdle.safetensors"), pickle.loads(pickle.dumps(model))):
        assert_array_equal(other.predict(NEW, True)[1], model.predict(NEW, True)[1])
        assert_array_equal(other.predict_interval(NEW, 0.5), model.predict_interval(NEW, 0.5))
        assert other.estimators_["point_mass"].weights_ == model.estimators_["point_mass"].weights_
    text = model.estimators_["point_mass"].summary()
    assert "at_value" in text and "elsewhere" in text
    assert (
        model.estimators_["point_mass"].plan_["point_mass"]["why"]
        == f"{np.mean(~RAINS):.1%} of targets equal it"
    )


def test_a_pool_takes_a_hurdle_model_if_held_out_rows_prefer_it(tmp_path):
    found = GPRegressor(**SETTINGS).fit(X, Y)
    assert list(found.estimators_) == ["point_mass"]
    assert "changes the CRPS by" in found.plan_["members"]["why"]
    assert isinstance(found.predict_distribution(NEW), Mixture)
    for part in found.estimators_["point_mass"].estimators_["elsewhere"].estimators_.values():
        assert part.n_rows_ == RAINS.sum()  # held-out rows of other values have joined
    found.save(tmp_path / "pool.safetensors")
    assert_array_equal(load(tmp_path / "pool.safetensors").predict(NEW), found.predict(NEW))


def test_a_hurdle_model_is_left_out_if_held_out_rows_do_not_gain_or_nobody_asks(monkeypatch):
    monkeypatch.setattr(targets, "MIN_GAIN_OF_HURDLE", 10.0)
    found = GPRegressor(**SETTINGS).fit(X, Y)
    assert "point_mass" in found.scores_ and "point_mass" not in found.estimators_
    assert "changes the CRPS by" in found.plan_["members"]["why"]
    role = found._divide(Data(X, Y), False, regressor.FitContext(found))[1]
    for settings in ({"point_mass": None}, {"members": ["feature"]}, {"ensemble": False}):
        pool = GPRegressor(**settings)
        pool.target_ = "real"
        assert "point_mass" not in pool._candidates(Data(X, Y), role, None)


@pytest.mark.parametrize(
    ("y", "weight", "value"),
    [
        (Y, None, 0.0),
        (Y + 3, None, 3.0),
        (np.where(RAINS, np.round(Y), 0), None, None),  # few values
        (GENERATOR.poisson(3.0, N).astype(float), None, None),
        (GENERATOR.geometric(0.2, 20 * N) - 1.0, None, None),  # counts: the next value is frequent too
        (Y, np.where(RAINS, 1.0, 0.01), None),
        (GENERATOR.normal(size=N), None, None),
    ],
)
def test_the_value_that_is_tried(y, weight, value):
    assert frequent(Data(np.zeros((len(y), 1)), y, weight)) == value


def test_a_point_mass_that_cannot_be_is_refused(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=f"point_mass is 7, which is the target of 0 of {N} rows"):
        GPRegressor(point_mass=7).fit(X, Y)
    with pytest.raises(ValueError, match="point_mass is 'often'"):
        GPRegressor(point_mass="often").fit(X, Y)
    with pytest.raises(ValueError, match="a model of counts"):
        GPRegressor(point_mass=0, target="count").fit(X, np.round(Y).clip(0))

    def refuse(*_, **__):
        raise MemoryLimitError("no memory")

    monkeypatch.setattr(pool, "read_files", refuse)
    with pytest.raises(MemoryLimitError, match="no memory; FeatureGPRegressor can read files in blocks"):
        GPRegressor().fit(tmp_path / "rows.csv", "y")


def test_positive_targets_may_have_a_point_mass_at_0():
    found = GPRegressor(point_mass=0.0, target="positive", random_state=0).fit(X, Y)
    assert found.predict_interval(NEW, 0.999).min() == 0
    assert isinstance(found.predict_distribution(NEW).parts[0], PointMass)
