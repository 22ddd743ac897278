"""`GPClassifier`: which rows its members learn from, and that its probabilities are the mixture of theirs."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import member

from stochgp import GPClassifier, SparseGPClassifier, load
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import Categorical, TemperatureScaling
from stochgp.learners import SVGP, ByLoss
from stochgp.pools import classifier, division
from stochgp.pools.weights import (
    HeldOutPredictions,
    PoolWeights,
    alone,
    calibrated,
    record_scores,
    weigh,
)

N = 1_000
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
LABELS = np.array(["far", "left", "right"])
Y = LABELS[np.where(np.hypot(*X.T) > 2, 0, np.where(X[:, 0] < 0, 1, 2))]
NEW = GENERATOR.uniform(-2, 2, (40, 2))
W = np.array([0.4, 0.6])
ALONE = alone("a", "given")
LEARNER = SVGP(steps=20, batch_size=128, evaluator=ByLoss())
# Members that share compiled steps.
QUICK = {
    "slow": member(SparseGPClassifier, "rbf", 20, learner=LEARNER),
    "fast": member(SparseGPClassifier, "rbf", 20, learner=replace(LEARNER, learning_rate=0.1)),
}


@pytest.fixture(scope="module", autouse=True)
def _quick_members():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(classifier, "CLASSIFIERS", QUICK)
        yield


@pytest.fixture(scope="module")
def model(_quick_members):
    """Of members with given weights, without a temperature."""
    given = PoolWeights(["slow", "fast"], W, "given")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(classifier, "weigh", lambda *_: given)
        patched.setattr(classifier, "calibrated", lambda weights, *_: weights)
        return GPClassifier(random_state=0).fit(X, Y)


def test_probabilities_are_the_mixture_of_the_members_that_have_learned_from_all_rows(model):
    parts = list(model.estimators_.values())
    assert all(part.n_rows_ == N and list(part.classes_) == list(LABELS) for part in parts)
    expected = sum(w * part.predict_proba(NEW) for w, part in zip(W, parts, strict=True))
    assert_allclose(model.predict_proba(NEW), expected, rtol=1e-6)
    assert_array_equal(model.predict(NEW), LABELS[np.argmax(expected, axis=1)])
    assert {"log_loss", "accuracy", "seconds"} == set(model.scores_["fast"]) and len(model.plan_) <= 15
    assert model.fit_report_["held_out_rows"] == N // 5


def test_files_and_pickles_give_the_same_bits(model, tmp_path):
    model.save(tmp_path / "pool.safetensors")
    for other in (load(tmp_path / "pool.safetensors"), pickle.loads(pickle.dumps(model))):
        assert_array_equal(other.predict_proba(NEW), model.predict_proba(NEW))
        assert_array_equal(other.classes_, model.classes_)


@pytest.mark.parametrize("few_rows", [999, 5_000])
def test_with_many_rows_members_go_on_from_their_learned_kernels(monkeypatch, few_rows):
    fits = []

    class Watched(SparseGPClassifier):
        def fit(self, X, y, *given, **others):
            fits.append((len(X), self.kernel))
            return super().fit(X, y, *given, **others)

    watched = {"slow": member(Watched, "rbf", 20, learner=LEARNER)}
    for module in (classifier, division):
        monkeypatch.setattr(module, "MAX_FEW_ROWS", few_rows)
    monkeypatch.setattr(classifier, "CLASSIFIERS", watched)
    monkeypatch.setattr(classifier, "SHORTER", 2)
    found = GPClassifier(random_state=0).fit(X, Y)
    (n_first, first), (n_last, last) = fits
    assert n_first < n_last == N and first == "rbf"
    goes_on = few_rows < N
    assert (last == "rbf") is not goes_on
    part = found.estimators_["slow"]
    assert part.kernel == "rbf" and part.n_iter_ == (10 if goes_on else 20)


@pytest.mark.parametrize("group", [None, np.repeat(np.arange(20, dtype=np.int32), 10)])
def test_each_of_few_rows_is_held_out_once_and_seen_by_no_member_that_predicts_it(monkeypatch, group):
    X_few, y = X[:200], (X[:200, 0] > 0).astype(float)
    y[0] = 2.0  # the only row of its class
    seen, held, fit, weigh = [], [], SparseGPClassifier.fit, classifier.weigh
    monkeypatch.setattr(
        SparseGPClassifier, "fit", lambda self, X, *a, **b: seen.append(X) or fit(self, X, *a, **b)
    )
    monkeypatch.setattr(classifier, "weigh", lambda found, *a: held.append(found.rows.X) or weigh(found, *a))
    found = GPClassifier(random_state=0).fit(X_few, y, groups=group)
    assert_array_equal(np.sort(held[0][:, 0]), np.sort(X_few[1:, 0]))
    is_in = lambda part: np.isin(X_few[:, 0], part[:, 0])
    unseen = [~is_in(part) for part in seen[:10:2]]
    assert np.sum(unseen, axis=0).tolist() == [0] + 199 * [1]
    assert all(len(part) == 200 for part in seen[10:]) and len(seen) == 10 + len(found.estimators_)
    if group is not None:
        assert all(len(np.unique(part[1:][group[1:] == g])) == 1 for part in unseen for g in range(20))


def test_probabilities_of_the_pool_have_its_temperature(model, tmp_path):
    hot = pickle.loads(pickle.dumps(model))
    hot._pooling = replace(hot._pooling, calibration=TemperatureScaling(2.0))
    expected = np.sqrt(model.predict_proba(NEW))
    assert_allclose(hot.predict_proba(NEW), expected / expected.sum(axis=1, keepdims=True), rtol=1e-6)
    assert_array_equal(hot.predict(NEW), model.predict(NEW))
    hot.save(tmp_path / "hot.safetensors")
    assert_array_equal(load(tmp_path / "hot.safetensors").predict_proba(NEW), hot.predict_proba(NEW))


def of_labels(concentration, n=4_000):
    """(Log probabilities, held-out rows with labels drawn from them)."""
    generator = np.random.default_rng(5)
    log_p = np.log(generator.dirichlet(np.full(3, concentration), n))
    label = np.array([generator.choice(3, p=p) for p in np.exp(log_p)])
    return log_p, Data(generator.normal(size=(n, 2)), label.astype(float))


def predicted(log_p, rows):
    parts, n = [Categorical(logs) for logs in log_p], len(rows)
    density, means = np.stack([part.logpdf(rows.y) for part in parts], axis=1), np.zeros((n, len(parts)))
    return HeldOutPredictions(list("ab")[: len(parts)], rows, parts, means, density, np.ones(n))


def test_the_temperature_is_that_of_the_held_out_rows():
    """A member predicts probabilities that are twice as sure as the labels allow."""
    log_p, rows = of_labels(0.5)
    sure = log_p * 2 - np.logaddexp.reduce(log_p * 2, axis=1)[:, None]
    context = FitContext(GPClassifier())
    found = calibrated(ALONE, predicted([sure], rows), TemperatureScaling, context).calibration
    assert found is not None and 1.85 < found.temperature < 2.15
    assert "temperature" in context.plan_["probabilities"]["choice"]
    kept = calibrated(ALONE, predicted([log_p], rows), TemperatureScaling, context)
    assert kept.calibration is None and context.plan_["probabilities"]["choice"] == "as they are"


def test_a_member_with_noisy_probabilities_is_dropped():
    log_p, rows = of_labels(1.0)
    noisy = log_p + 0.5 * GENERATOR.normal(size=log_p.shape)
    noisy -= np.logaddexp.reduce(noisy, axis=1)[:, None]
    predictions, scores = predicted([noisy, log_p], rows), {"a": {}, "b": {}}
    found = weigh(predictions, True)
    assert found.names == ["b"]
    record_scores(predictions, scores)
    assert scores["b"]["log_loss"] < scores["a"]["log_loss"] and set(scores["a"]) == {"log_loss", "accuracy"}


@pytest.mark.parametrize("group", [np.arange(150) % 3, np.arange(150) // 3 % 2])
def test_few_groups_have_a_fit(group):
    """If the groups are the classes, nothing is held out: no member would know all."""
    y = np.arange(150) % 3
    found = GPClassifier(members=["slow"], random_state=0).fit(X[:150], y, groups=group)
    assert ("held_out_rows" not in found.fit_report_) == bool((group == y).all())
    assert_allclose(found.predict_proba(NEW).sum(axis=1), 1, rtol=1e-9)


def test_files_are_read_with_their_labels(tmp_path):
    path = tmp_path / "rows.csv"
    rows = "".join(f"{a:.6f},{b:.6f},{label}\n" for (a, b), label in zip(X[:300], Y[:300], strict=True))
    path.write_text("a,b,where\n" + rows)
    members = {"slow": SparseGPClassifier("rbf", 20, learner=LEARNER)}
    for more in ({"sample_weight": np.ones(300)}, {"groups": np.arange(300)}):
        with pytest.raises(ValueError, match="cannot be used with rows in files"):
            GPClassifier(members=members, random_state=0).fit(path, "where", **more)
    found = GPClassifier(members=members, random_state=0).fit(path, "where")
    assert list(found.weights_) == ["slow"] and list(found.classes_) == list(LABELS)
    import pandas as pd

    assert np.mean(found.predict(pd.read_csv(path).drop(columns="where")) == Y[:300]) > 0.4
