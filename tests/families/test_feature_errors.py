"""The distribution of errors of feature GPs: chosen by rows that learning held out, asked for, and in files."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import stochgp
from stochgp import FeatureGPRegressor, learners, metrics
from stochgp.likelihoods import Bernoulli, Gaussian, StudentT
from stochgp.parameters import frozen

N = 1_500
QUICK = {"features": "rff", "n_features": 30, "random_state": 0}
LEARNER = learners.SCGD(300, 20, 0.03, evaluator=learners.ByEvidence(validation_fraction=0.4))
FEW = learners.SCGD(300, 4, 0.03, evaluator=LEARNER.evaluator)


def rows(seed=0, df=3.0, slope=0.8):
    """y = sin 2x₁ + 0.2 exp(slope x₂) t."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(N, 2))
    return X, np.sin(2 * X[:, 0]) + 0.2 * np.exp(slope * X[:, 1]) * generator.standard_t(df, size=N)


def fitted(data=None, **settings):
    return FeatureGPRegressor(**{"learner": LEARNER} | QUICK | settings).fit(*(data or rows()))


@pytest.fixture(scope="module")
def found():
    return fitted()


def test_heavy_tails_and_a_scale_of_the_inputs_are_chosen_and_improve_new_rows(found):
    X, y = rows(1)
    assert found.plan_["likelihood"]["choice"] == "student-t"
    assert "600 rows" in found.plan_["likelihood"]["why"]  # that learning held out
    gaussian = fitted(likelihood="gaussian")
    gain = metrics.nlpd(y, gaussian.predict_distribution(X)) - metrics.nlpd(y, found.predict_distribution(X))
    assert gain > 0.3
    assert_array_equal(found.predict(X), gaussian.predict(X))
    assert found.nlml_ == gaussian.nlml_
    low, high = found.predict([[0.0, -1.5], [0.0, 1.5]], return_std=True, include_noise=True)[1]
    assert high > 2 * low


def test_gaussian_errors_stay_gaussian():
    model = fitted(rows(df=1e6, slope=0.0))
    assert model.plan_["likelihood"]["choice"] == "gaussian"
    assert model._fitted.observation.inflation is None


def test_files_and_refits_keep_it(found, tmp_path):
    X = rows(1)[0][:50]
    found.save(tmp_path / "model.stochgp")
    again = FeatureGPRegressor(learner=LEARNER, **QUICK)
    vars(again)["_chosen_likelihood"] = found.plan_["likelihood"]["choice"]
    for other in (stochgp.load(tmp_path / "model.stochgp"), again.fit(*rows())):
        assert_array_equal(other.predict_interval(X), found.predict_interval(X))


def test_further_rows_keep_it(found, tmp_path):
    found.save(tmp_path / "model.stochgp")
    model, (X, y) = stochgp.load(tmp_path / "model.stochgp"), rows(2)
    before = model.predict_distribution(X[:5]).df
    model.partial_fit(X[:200], y[:200])
    assert_allclose(model.predict_distribution(X[:5]).df, before)


def test_names_and_values_are_taken():
    kept = fitted(likelihood=StudentT(frozen(5.0)), learner=FEW)
    assert kept.plan_["likelihood"]["choice"] == "student-t"
    assert kept.plan_["df"]["choice"] == 5 and "likelihood_trees" not in kept.plan_
    assert fitted(likelihood=Gaussian(0.3), learner=FEW).plan_["likelihood"]["choice"] == "gaussian"


def test_few_rows_have_what_they_ask_for():
    X, y = rows(slope=0.0)
    student = fitted(
        (X[:120], y[:120]), learner=learners.SCGD(epochs=20, learning_rate=0.03), likelihood="student-t"
    )
    assert student.plan_["likelihood"]["choice"] == "student-t"
    assert student.fit_report_["refit_steps"] > 0
    auto = fitted((X[:120], y[:120]), learner=learners.SCGD(epochs=20, learning_rate=0.03))
    assert auto.plan_["likelihood"]["choice"] == "gaussian"
    assert "too few" in auto.plan_["likelihood"]["why"]


def test_a_student_t_needs_rows_that_are_held_out():
    learner = learners.SCGD(300, 2, 0.03, evaluator=learners.ByEvidence(validation_fraction=0.0))
    with pytest.raises(ValueError, match="is fitted to held-out rows, but no rows were held out"):
        fitted(learner=learner, likelihood="student-t")
    assert "held out" in fitted(learner=learner).plan_["likelihood"]["why"]


def test_other_values_are_refused():
    for name in ("negative-binomial", "poisson"):
        with pytest.raises(ValueError, match=f"only SparseGPRegressor accepts likelihood='{name}'"):
            fitted(likelihood=name)
    with pytest.raises(TypeError, match="for classes, use SparseGPClassifier"):
        fitted(likelihood=Bernoulli())
    with pytest.raises(ValueError, match="df is 1.5"):
        fitted(likelihood=StudentT(frozen(1.5)))
