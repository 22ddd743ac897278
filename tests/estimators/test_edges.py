"""Settings and targets that cannot be used are refused in one line; a checkpoint that cannot be written does not end a fit; files bound their memory."""

import os

import numpy as np
import pytest

import stochgp
from stochgp import FeatureGPRegressor, GPClassifier, GPRegressor, SparseGPClassifier, learners
from stochgp.estimators import saving
from stochgp.storage import trees

X = np.random.default_rng(0).normal(size=(60, 2))
Y = X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=60)


def linear(**settings):
    return FeatureGPRegressor("linear", random_state=0, **settings)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (GPRegressor(members=[]), "at least one estimator"),
        (GPRegressor(members={}), "at least one estimator"),
        (GPRegressor(members={"c": GPClassifier()}), "members['c'] is a GPClassifier, not a regressor"),
        (GPClassifier(members={"r": linear()}), "members['r'] is a FeatureGPRegressor, not a classifier"),
        (GPRegressor(members={"n": 3}), "members['n'] is a int"),
        (linear(time_limit="5"), "time_limit is '5'"),
        (linear(mean=[1]), "mean is [1]"),
    ],
)
def test_settings_of_another_type_are_named(model, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        model.fit(X, Y > 0 if isinstance(model, GPClassifier) else Y)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("model", [linear(), GPRegressor()])
def test_targets_whose_squares_are_0_are_refused(model):
    with pytest.raises(ValueError, match="smaller unit"):
        model.fit(X, 1e-160 * Y)
    with pytest.raises(ValueError, match="smaller unit"):
        model.fit(X, 1e-160 * np.where(np.arange(60) < 9, np.nan, Y))


def test_a_full_disk_at_a_checkpoint_is_warned_of_and_the_fit_goes_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    expected = linear(learner=learners.BSGD(epochs=1)).fit(X, Y).predict(X)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="cannot be written .No space left on device.; the fit continues"):
        found = linear(learner=learners.BSGD(epochs=1)).fit(X, Y, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(found.predict(X), expected)
    assert os.listdir(tmp_path) == []


def test_an_array_that_is_named_twice_is_refused(tmp_path):
    node = {"array": "0000 x", "kind": "jax"}
    header = {"structure": {"list": [node]}, "metadata": {}}
    trees._write(tmp_path / "once", {"0000 x": X}, header)
    assert len(trees.load_tree(tmp_path / "once")[0]) == 1
    header["structure"] = {"list": [node] * 200}
    trees._write(tmp_path / "often", {"0000 x": X}, header)
    with pytest.raises(ValueError, match="often cannot be read"):
        trees.load_tree(tmp_path / "often")


def test_labels_of_a_huge_type_of_text_are_refused(tmp_path):
    model = SparseGPClassifier(n_inducing=4, learner=learners.SVGP(epochs=1), random_state=0).fit(
        X, np.where(Y > 0, "yes", "no")
    )
    tree, metadata = saving.stored(model)
    trees.save_tree(tmp_path / "model", tree, metadata)
    assert stochgp.load(tmp_path / "model").classes_.tolist() == ["no", "yes"]
    metadata["classes"]["dtype"] = "<U200000000"
    trees.save_tree(tmp_path / "model", tree, metadata)
    with pytest.raises(ValueError, match="2 labels would take 800,000,000 bytes each"):
        stochgp.load(tmp_path / "model")
