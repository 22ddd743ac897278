"""A fit, an update or a `partial_fit` that raises leaves the estimator as it was."""

import numpy as np
import pytest

from stochgp import (
    FeatureGPRegressor,
    GPClassifier,
    GPRegressor,
    KernelGPRegressor,
    SparseGPClassifier,
    SparseGPRegressor,
    learners,
)
from stochgp.families import feature, kernel, sparse
from stochgp.families.solving import updated
from stochgp.results import RESULTS

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 3))
Y = X[:, 0] + 0.1 * GENERATOR.normal(size=60)
LINE = FeatureGPRegressor("linear", likelihood="gaussian")
CLASSES = SparseGPClassifier("rbf", 8, learner=learners.SVGP(epochs=1))
ESTIMATORS = {
    "kernel": KernelGPRegressor("rbf", learner=None, random_state=0),
    "feature": LINE,
    "sparse": SparseGPRegressor(
        "rbf", n_inducing=8, learner=learners.SVGP(epochs=1), likelihood="gaussian", n_inducing_mean=0
    ),
    "classifier": CLASSES,
    "pool": GPRegressor(members={"line": LINE}, random_state=0),
    "pool of classifiers": GPClassifier(members={"classes": CLASSES}, random_state=0),
}


class KilledError(BaseException):
    pass


def kill(_):
    raise KilledError


def assert_unchanged(model, before):
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_after_a_failed_fit_the_earlier_model_predicts(name):
    model = ESTIMATORS[name]
    y = Y > 0 if "class" in name else Y
    model.fit(X, y)
    before, predicted = dict(vars(model)), model.predict(X)
    wide = np.hstack([X, X])
    with pytest.raises(ValueError, match="groups"):
        model.fit(wide, y, groups=np.arange(7))
    assert_unchanged(model, before)
    if name != "kernel":  # which learns nothing here
        with pytest.raises(KilledError):
            model.fit(wide, y, callback=kill)
        assert_unchanged(model, before)
    np.testing.assert_array_equal(model.predict(X), predicted)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_an_interrupted_update_raises_and_changes_nothing(monkeypatch):
    """A solve that Ctrl-C ended is no solution for the new rows."""
    model = ESTIMATORS["kernel"].fit(X, Y)
    before, predicted = dict(vars(model)), model.predict(X)

    def ended(*given, **named):
        fitted, solved = updated(*given, **named)
        return fitted, solved._replace(result=RESULTS.interrupted)

    monkeypatch.setattr(kernel, "updated", ended)
    with pytest.raises(KeyboardInterrupt):
        model.update(X + 3, Y + 5)
    assert_unchanged(model, before)
    np.testing.assert_array_equal(model.predict(X), predicted)


@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_partial_fit_changes_nothing(monkeypatch):
    line = FeatureGPRegressor("linear", likelihood="gaussian").fit(X, Y)
    before = dict(vars(line))
    monkeypatch.setattr(feature, "with_rows", interrupt)  # the drift is known by then
    with pytest.raises(KeyboardInterrupt):
        line.partial_fit(X + 3, Y)
    assert_unchanged(line, before)
    rate = learners.InverseRoot(1.0, 1.0)
    stream = SparseGPRegressor(learner=learners.IVSGPR(epochs=1, mirror_rate=rate)).fit(X, Y)
    before = dict(vars(stream))
    monkeypatch.setattr(sparse, "_learned", interrupt)  # the rows are read by then
    with pytest.raises(KeyboardInterrupt):
        stream.partial_fit(X, Y)
    assert_unchanged(stream, before)
