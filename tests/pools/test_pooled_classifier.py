"""`GPClassifier`: what members see, and that the pool's probabilities are the mixture of theirs."""

import pickle
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import GPClassifier, SparseGPClassifier, load
from stochgp.distributions import TemperatureScaling
from stochgp.learners import SVGP, ByLoss
from stochgp.pools import pool_division, pooled, pooled_classifier
from stochgp.pools.pooling import Pooling

N = 1_200
AS_IT_WAS = TemperatureScaling(1.0, 0.0, 0)
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
LABELS = np.array(["far", "left", "right"])
Y = LABELS[np.where(np.hypot(*X.T) > 2, 0, np.where(X[:, 0] < 0, 1, 2))]
NEW = GENERATOR.uniform(-2, 2, (40, 2))
QUICK = {
    "smooth": partial(SparseGPClassifier, "rbf", 20),
    "rough": partial(SparseGPClassifier, "matern12", 20),
}


@pytest.fixture(scope="module", autouse=True)
def _few_steps():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pooled_classifier, "FAMILIES", QUICK)
        patched.setattr(
            pooled_classifier, "FEW", {5_000: (20, SVGP(steps=20, batch_size=128, judge=ByLoss()))}
        )
        yield


@pytest.fixture(scope="module")
def model(_few_steps):
    """Of members whose weights are set, so that both count, and with probabilities as they are."""
    picked = pooled.alone(0, "")._replace(
        members=[0, 1], level=np.array([0.0, 0.4]), slope=np.zeros(2), average=np.array([0.4, 0.6])
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pooled_classifier, "chosen", lambda *_, **__: picked)
        patched.setattr(pooled_classifier, "temperature_scaling", lambda *_, **__: AS_IT_WAS)
        return GPClassifier(random_state=0).fit(X, Y)


def test_probabilities_are_the_mixture_of_the_members_that_know_all_rows(model):
    w = np.exp([0.0, 0.4]) / np.exp([0.0, 0.4]).sum()
    members = list(model.estimators_.values())
    assert all(member.n_rows_ == N and list(member.classes_) == list(LABELS) for member in members)
    wanted = sum(a * member.predict_proba(NEW) for a, member in zip(w, members, strict=True))
    assert_allclose(model.predict_proba(NEW), wanted, rtol=1e-6)
    assert_array_equal(model.predict(NEW), LABELS[np.argmax(wanted, axis=1)])
    assert {"log_loss", "accuracy", "seconds"} == set(model.scores_["rough"])


@pytest.mark.parametrize("few_rows", [1_000, 5_000])
def test_of_many_rows_members_go_on_from_what_they_have_learned(monkeypatch, few_rows):
    begun = []

    class Watched(SparseGPClassifier):
        def fit(self, X, y, *given, **others):
            begun.append((len(X), self.kernel))
            return super().fit(X, y, *given, **others)

    monkeypatch.setattr(pooled_classifier, "FEW_ROWS", few_rows)
    monkeypatch.setattr(pooled_classifier, "FAMILIES", {"smooth": partial(Watched, "rbf", 20)})
    monkeypatch.setattr(GPClassifier, "_n_auto", 1)
    found = GPClassifier(random_state=0).fit(X, Y)
    (n_first, first), (n_last, last) = begun
    assert n_first < n_last == N and first == "rbf"
    goes_on = few_rows < N
    assert (last == "rbf") is not goes_on
    member = found.estimators_["smooth"]
    assert member.kernel == "rbf" and member.n_iter_ == (20 // pooled_classifier.SHORTER if goes_on else 20)
    assert ("1/4" in found.plan_.refit.why) is goes_on


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


def test_a_class_is_not_held_out_as_a_whole():
    y = np.zeros(N)
    y[:5], y[5] = 1.0, 2.0
    rows, some = pooled_classifier.Rows(X, y, None, None), 0
    for seed in range(20):
        division = pool_division.held_out(rows, np.random.default_rng(seed))
        found = GPClassifier()._known(rows, division)
        assert not found.all[5] and set(y[~found.all]) == {0.0, 1.0, 2.0}
        assert_array_equal(found.all[6:], division.all[6:])
        some += found.all[:5].any()
    assert some  # rows of rare classes count too: without them their probability would look too high


@pytest.mark.parametrize(
    "group", [None, pytest.param(np.repeat(np.arange(40, dtype=np.int32), 10), marks=pytest.mark.long)]
)
def test_of_few_rows_each_is_held_out_once_and_seen_by_no_member_that_predicts_it(monkeypatch, group):
    y = (X[:400, 0] > 0).astype(float)
    y[0] = 2.0  # the only row of its class
    X_few, pool = X[:400], GPClassifier(random_state=0)
    fitted = []
    wrapped = SparseGPClassifier.fit
    monkeypatch.setattr(
        SparseGPClassifier,
        "fit",
        lambda self, X, *rest, **more: fitted.append(X) or wrapped(self, X, *rest, **more),
    )
    compared = []
    closed = GPClassifier._closed
    monkeypatch.setattr(
        GPClassifier,
        "_closed",
        lambda self, rows, division, found: compared.append(found) or closed(self, rows, division, found),
    )
    pool.fit(X_few, y, groups=group)
    held_out = compared[0].rows.X
    assert_array_equal(np.sort(held_out[:, 0]), np.sort(X_few[1:, 0]))
    predicted = [[row for row in X_few[1:] if not (part == row).all(axis=1).any()] for part in fitted[:10:2]]
    assert sum(len(part) for part in predicted) == 399
    assert all(len(part) == 400 for part in fitted[10:]) and len(fitted) == 10 + len(pool.estimators_)
    if group is not None:
        of_row = {tuple(row): g for row, g in zip(X_few, group, strict=True)}
        for part in predicted:
            groups = {of_row[tuple(row)] for row in part}
            inside = [row for row in X_few[1:] if of_row[tuple(row)] in groups]
            assert len(inside) == len(part)


def test_probabilities_of_the_pool_have_the_temperature_that_held_out_rows_ask_for(model, tmp_path):
    hot = pickle.loads(pickle.dumps(model))
    hot._correction = TemperatureScaling(2.0, 0.1, 200)
    wanted = np.sqrt(model.predict_proba(NEW))
    assert_allclose(hot.predict_proba(NEW), wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-6)
    assert_array_equal(hot.predict(NEW), model.predict(NEW))
    hot.save(tmp_path / "hot.safetensors")
    assert_array_equal(load(tmp_path / "hot.safetensors").predict_proba(NEW), hot.predict_proba(NEW))


def test_the_temperature_is_of_the_pool_and_of_rows_that_are_exchangeable(model):
    """Held-out probabilities of two members that are twice as sure as labels allow."""
    generator = np.random.default_rng(5)
    log_p = np.log(generator.dirichlet(np.full(3, 0.5), 4_000))
    label = np.array([generator.choice(3, p=p) for p in np.exp(log_p)])
    sure = log_p * 2 - np.logaddexp.reduce(log_p * 2, axis=1)[:, None]
    rows = pooled_classifier.Rows(np.zeros((4_000, 2)), label.astype(float), None, None)
    parts = [pooled_classifier.Categorical(sure)] * 2
    picked = pooled.alone(0, "")._replace(members=[0, 1])
    pool = pickle.loads(pickle.dumps(model))
    division = pool_division.HeldOut(np.ones(4_000, bool), np.zeros(4_000, bool))
    entries = pool._corrected(division, pooled.Compared(picked, None, parts, rows))
    assert 1.85 < pool._correction.temperature < 2.15 and "temperature" in entries["probabilities"]["choice"]
    pool._correction = None
    entries = pool._corrected(division._replace(in_time=True), pooled.Compared(picked, None, parts, rows))
    assert pool._correction is None and "exchangeable" in entries["probabilities"]["why"]


@pytest.mark.parametrize(
    ("y", "group", "n_folds"),
    [
        (np.arange(120) % 30, None, None),  # no class can be in all folds
        (np.arange(120) % 2, np.arange(120) % 3, 3),
        (np.arange(120) % 2, None, 5),
        (np.zeros(120), None, None),
    ],
)
def test_folds_are_as_many_as_classes_and_groups_allow(y, group, n_folds):
    rows = pooled_classifier.Rows(X[:120], np.asarray(y, float), None, group)
    found = pool_division.folds(rows, 5, np.random.default_rng(0))
    assert (found is None) if n_folds is None else (np.unique(found).tolist() == list(range(n_folds)))


@pytest.mark.parametrize("group", [np.arange(120) % 2, np.arange(120) % 3])
def test_few_groups_have_a_fit(group):
    """Of two groups that are the classes nothing is held out: no member would know both."""
    y = np.arange(120) % 2
    found = GPClassifier(members=["smooth"], random_state=0).fit(X[:120], y, groups=group)
    assert (found.plan_.held_out_rows.choice == 0) == bool((group == y).all())
    assert_allclose(found.predict_proba(NEW).sum(axis=1), 1, rtol=1e-9)


def test_files_have_one_classifier_which_tells_their_labels(tmp_path, monkeypatch):
    short = SVGP(steps=100, batch_size=128, judge=ByLoss())
    monkeypatch.setattr(
        pooled_classifier, "FAMILIES", {"smooth": partial(SparseGPClassifier, "rbf", 20, learner=short)}
    )
    path = tmp_path / "rows.csv"
    rows = "".join(f"{a:.6f},{b:.6f},{label}\n" for (a, b), label in zip(X[:300], Y[:300], strict=True))
    path.write_text("a,b,where\n" + rows)
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
