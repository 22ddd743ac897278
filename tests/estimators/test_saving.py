"""Models as files."""

import pickle

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import stochgp
from stochgp import FeatureGPRegressor, learners
from stochgp.storage.trees import load_tree, save_tree

QUICK = {"learner": learners.SCGD(epochs=2, learning_rate=0.01), "random_state": 0}


@pytest.fixture(scope="module")
def model():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.normal(size=30), "kind": generator.choice(["x", "y"], 30)})
    return FeatureGPRegressor(**QUICK).fit(frame, pd.Series(frame["a"] ** 2, name="square")), frame


def test_a_loaded_model_is_the_same_to_the_last_bit(model, tmp_path):
    fitted, frame = model
    path = tmp_path / "model.stochgp"
    fitted.save(path)
    loaded = stochgp.load(path)
    for one, other in zip(
        fitted.predict(frame, return_std=True), loaded.predict(frame, return_std=True), strict=True
    ):
        assert_array_equal(one, other)
    assert_array_equal(fitted.sample_y(frame, 2), loaded.sample_y(frame, 2))
    assert loaded.get_params() == fitted.get_params()
    for name in (
        "nlml_",
        "noise_variance_",
        "history_",
        "plan_",
        "n_iter_",
        "converged_",
        "fit_seconds_",
        "target_name_",
    ):
        assert getattr(loaded, name) == getattr(fitted, name)
    assert_array_equal(loaded.feature_names_in_, fitted.feature_names_in_)
    assert loaded.n_features_in_ == 2


def test_a_pickled_model_predicts_the_same(model):
    fitted, frame = model
    assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(frame), fitted.predict(frame))


def test_a_truncated_file_is_refused(model, tmp_path):
    path = tmp_path / "model.stochgp"
    model[0].save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated or damaged"):
        stochgp.load(path)


class Own(eqx.Module):
    """A network that no file of stochgp can hold."""

    weight: jax.Array
    n_inputs: int = eqx.field(static=True, default=2)

    def __call__(self, x):
        return self.weight @ x


def test_a_network_of_ones_own_fits_and_only_saving_it_is_refused(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    network = Own(jax.random.normal(jax.random.key(0), (3, 2)))
    fitted = FeatureGPRegressor(features=network, **QUICK).fit(X, X[:, 0])
    path = tmp_path / "model.stochgp"
    with pytest.raises(ValueError, match="Own"):
        fitted.save(path)
    assert not path.exists() and np.isfinite(fitted.predict(X)).all()


def test_a_setting_that_no_file_holds_is_named(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    learner = learners.BSGD(epochs=2, learning_rate=lambda step: 0.01)
    fitted = FeatureGPRegressor(features="rff", n_features=8, learner=learner, random_state=0).fit(X, X[:, 0])
    with pytest.warns(UserWarning, match="learner"):
        fitted.save(tmp_path / "model.stochgp")
    assert_array_equal(stochgp.load(tmp_path / "model.stochgp").predict(X), fitted.predict(X))


BROKEN = {
    "no attributes": (
        lambda tree, facts: facts.pop("attributes"),
        "does not contain a valid FeatureGPRegressor",
    ),
    "attributes that are none": (
        lambda tree, facts: facts.update(attributes=None),
        "does not contain a valid",
    ),
    "another estimator": (
        lambda tree, facts: facts.update(estimator="KernelGPRegressor"),
        "does not contain a valid",
    ),
    "no estimator": (lambda tree, facts: facts.pop("estimator"), "does not contain an estimator"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_holds_no_whole_model_says_so_when_it_is_loaded(name, model, tmp_path):
    """Not at predict, where the user's rows would be blamed."""
    path, (spoil, words) = tmp_path / "model.stochgp", BROKEN[name]
    model[0].save(path)
    tree, facts = load_tree(path)
    spoil(tree, facts)
    save_tree(path, tree, facts)
    with pytest.raises(ValueError, match=words) as caught:
        stochgp.load(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
