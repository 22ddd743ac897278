"""`GPClassifier`: what members see, and that the pool's probabilities are the mixture of theirs."""

import pickle
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import GPClassifier, SparseGPClassifier, load
from stochgp.estimators import pool_division, pooled, pooled_classifier
from stochgp.estimators.pooling import Pooling

N = 1_200
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
LABELS = np.array(["far", "left", "right"])
Y = LABELS[np.where(np.hypot(*X.T) > 2, 0, np.where(X[:, 0] < 0, 1, 2))]
NEW = GENERATOR.uniform(-2, 2, (40, 2))
QUICK = {
    "smooth": partial(SparseGPClassifier, "rbf", 20, epochs=3, batch_size=128),
    "rough": partial(SparseGPClassifier, "matern12", 20, epochs=3, batch_size=128),
}


@pytest.fixture(scope="module")
def model():
    """Of members whose weights are set, so that both count."""
    picked = pooled.alone(0, "")._replace(
        members=[0, 1], level=np.array([0.0, 0.4]), slope=np.zeros(2), average=np.array([0.4, 0.6])
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pooled_classifier, "FAMILIES", QUICK)
        patched.setattr(pooled_classifier, "chosen", lambda *_, **__: picked)
        return GPClassifier(random_state=0).fit(X, Y)


def test_probabilities_are_the_mixture_of_the_members_that_know_all_rows(model):
    w = np.exp([0.0, 0.4]) / np.exp([0.0, 0.4]).sum()
    members = list(model.estimators_.values())
    assert all(member.n_rows_ == N and list(member.classes_) == list(LABELS) for member in members)
    wanted = sum(a * member.predict_proba(NEW) for a, member in zip(w, members, strict=True))
    assert_allclose(model.predict_proba(NEW), wanted, rtol=1e-6)
    assert_array_equal(model.predict(NEW), LABELS[np.argmax(wanted, axis=1)])
    assert {"log_loss", "accuracy", "seconds"} == set(model.scores_["rough"])


def test_files_and_pickles_give_the_same_bits(model, tmp_path):
    model.save(tmp_path / "pool.safetensors")
    for other in (load(tmp_path / "pool.safetensors"), pickle.loads(pickle.dumps(model))):
        assert_array_equal(other.predict_proba(NEW), model.predict_proba(NEW))
        assert_array_equal(other.classes_, model.classes_)


def test_a_class_that_a_member_has_not_seen_has_probability_0_there(model):
    other = pickle.loads(pickle.dumps(model))
    other.classes_ = np.array(["before", *LABELS])
    assert_allclose(other.predict_proba(NEW)[:, 1:], model.predict_proba(NEW), rtol=1e-6)
    assert not other.predict_proba(NEW)[:, 0].any()


def test_rows_of_rare_classes_are_held_out_by_none():
    y = np.zeros(N)
    y[:5] = 1.0
    rows = pooled_classifier.Rows(X, y, None, None)
    for seed in range(20):
        found = GPClassifier()._allowed(rows, pool_division.held_out(rows, np.random.default_rng(seed)))
        assert not found.all[:5].any() and found.all.any()


def test_files_have_one_classifier_which_tells_their_labels(tmp_path):
    path = tmp_path / "rows.csv"
    rows = "".join(f"{a:.6f},{b:.6f},{label}\n" for (a, b), label in zip(X[:300], Y[:300], strict=True))
    path.write_text("a,b,where\n" + rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pooled_classifier, "FAMILIES", QUICK)
        found = GPClassifier(random_state=0).fit(path, "where")
        for more in ({"sample_weight": np.ones(300)}, {"groups": np.arange(300)}):
            with pytest.raises(ValueError, match="is for rows in memory"):
                GPClassifier(random_state=0).fit(path, "where", **more)
    assert list(found.weights_) == ["smooth"] and list(found.classes_) == list(LABELS)
    assert "block by block" in found.plan_.members.why and found._pooling.distance is None
    import pandas as pd

    table = pd.read_csv(path).drop(columns="where")
    assert np.mean(found.predict(table) == Y[:300]) > 0.6
    assert isinstance(found._pooling, Pooling)
