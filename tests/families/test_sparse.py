"""Sparse estimators: units, weights, files, classes, limits, what they refuse."""

import itertools

import numpy as np
import pytest
from killing import KilledError, stop_at
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sweeps import some_of

import stochgp
from stochgp import KernelGPRegressor, SparseGPClassifier, SparseGPRegressor, kernels, likelihoods
from stochgp.families.default_learners import sparse_learner
from stochgp.learners import IVSGPR, SGPR, SVDGP, SVGP, VGP
from stochgp.parameters import frozen

_generator = np.random.default_rng(0)
X = _generator.normal(size=(80, 2))
y = 5 + 3 * (np.sin(2 * X[:, 0]) + 0.2 * _generator.normal(size=80))
LABELS = np.where(np.sin(2 * X[:, 0]) + 0.3 * _generator.normal(size=80) > 0, "up", "down")
QUICK = {"n_inducing": 12, "random_state": 0, "learner": SVGP(20, 64, 0.03)}
REGRESSORS = {
    "svgp": SparseGPRegressor(**QUICK),
    "sgpr": SparseGPRegressor(learner=SGPR(epochs=20), n_inducing=12, random_state=0),
}
CLASSIFIER = SparseGPClassifier(**QUICK)


@pytest.fixture(scope="module")
def fitted():
    models = {name: model.fit(X, y) for name, model in REGRESSORS.items()}
    return models | {"classes": CLASSIFIER.fit(X, LABELS)}


@pytest.mark.parametrize(
    "learner", [SVGP(epochs=1, learning_rate=1e-12), SGPR(epochs=1)], ids=["svgp", "sgpr"]
)
def test_points_at_all_rows_give_the_exact_gp(learner):
    """At given hyperparameters, frozen: SVGP's closing pass and SGPR are the KernelGPRegressor by Cholesky."""
    kernel = frozen(kernels.RBF([1.0, 1.0], 1.2))
    noise = likelihoods.Gaussian(frozen(np.float32(0.1)))
    mine = SparseGPRegressor(_held(kernel), learner, len(X), likelihood=noise)
    mine.set_params(random_state=0).fit(X, y)
    exact = KernelGPRegressor(_held(kernel), learner=None, solver="cholesky").fit(X, y)
    found, wanted = (model.predict(X[:9] + 0.1, return_std=True) for model in (mine, exact))
    assert_allclose(found[0], wanted[0], rtol=1e-3)
    assert_allclose(found[1], wanted[1], rtol=5e-3)
    assert mine.elbo_ == pytest.approx(-exact.nlml_, abs=2e-3)


def _held(kernel):
    return kernels.Sum(kernel, frozen(kernels.RBF([1.0, 1.0], 1e-6)))


@pytest.mark.parametrize("name", REGRESSORS)
def test_units_are_those_of_the_targets(name, fitted):
    """Targets 1,000 times as large: the same fit, in other units."""
    mine = fitted[name]
    other = REGRESSORS[name].__class__(**REGRESSORS[name].get_params()).fit(X, 1000 * y)
    assert_allclose(other.predict(X), 1000 * mine.predict(X), rtol=1e-4)
    assert other.noise_variance_ == pytest.approx(1e6 * mine.noise_variance_, rel=1e-3)
    assert other.elbo_ == pytest.approx(mine.elbo_ - np.log(1000), abs=1e-4)
    assert 0.5 * 9 * 0.04 < mine.noise_variance_ < 2 * 9 * 0.04


@pytest.mark.parametrize("name", [*REGRESSORS, "classes"])
def test_a_file_holds_the_model_and_not_the_data(name, fitted, tmp_path):
    model = fitted[name]
    model.save(tmp_path / "model")
    loaded = stochgp.load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.elbo_ == model.elbo_
    assert_array_equal(loaded.predict(X), model.predict(X))
    if name == "classes":
        assert_array_equal(loaded.classes_, model.classes_)
        assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    else:
        draws = [m.sample_functions(3, random_state=1)(X[:5]) for m in (loaded, model)]
        assert_array_equal(*draws)
    assert loaded.kernel_.lengthscale.shape == (2,)
    assert "inducing" in model.summary() and "lower bound" in model.summary()


def test_probabilities_are_those_of_the_classes(fitted):
    model = fitted["classes"]
    p = model.predict_proba(X)
    assert list(model.classes_) == ["down", "up"]
    assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert_array_equal(model.predict(X), model.classes_[p.argmax(axis=1)])
    assert_allclose(np.log(p), model.predict_log_proba(X), rtol=1e-9)
    assert model.score(X, LABELS) > 0.8
    assert not hasattr(model, "noise_variance_")


def test_weights_are_counts():
    """A row of weight two is two rows, for both."""
    weight = np.ones(80)
    weight[:10] = 2
    twice = np.r_[np.arange(80), np.arange(10)]
    for model, targets in ((REGRESSORS["svgp"], y), (CLASSIFIER, LABELS)):
        of = lambda model=model: model.__class__(**model.get_params())
        weighted, repeated = of().fit(X, targets, weight), of().fit(X[twice], targets[twice])
        assert_array_equal(weighted.predict(X), repeated.predict(X))


@pytest.mark.long
def test_breast_cancer_probabilities_are_calibrated():
    rows, labels = load_breast_cancer(return_X_y=True)
    a, b, c, d = train_test_split(rows, labels, test_size=1 / 3, random_state=0, stratify=labels)
    model = SparseGPClassifier(
        n_inducing=32, learner=SVGP(epochs=60, learning_rate=0.03), random_state=0
    ).fit(a, c)
    assert log_loss(d, model.predict_proba(b)) < 0.12


EDGES = {
    "one row": (X[:1], y[:1]),
    "equal points, a constant column": (np.c_[np.repeat(X[:4], 5, axis=0), np.full(20, 7.0)], y[:20]),
}
LEARNERS = {
    "svgp": SVGP(epochs=2),
    "sgpr": SGPR(epochs=2),
    "svdgp": SVDGP(epochs=2),
    "ivsgpr": IVSGPR(epochs=2),
}
FEW = list(itertools.product(LEARNERS, EDGES))
GROWING = [("svdgp", "one row"), ("ivsgpr", "one row")]
EDGE_SETTINGS = {"n_inducing": 30, "random_state": 0}


@pytest.mark.filterwarnings("ignore:input column", "ignore:all targets are equal")
@pytest.mark.parametrize("few", some_of(FEW, [few for few in FEW if few not in GROWING]), ids=": ".join)
def test_hardly_any_rows_give_finite_numbers(few):
    """In float32, as many points as rows, some of them the same."""
    approximation, name = few
    rows, targets = EDGES[name]
    model = SparseGPRegressor(learner=LEARNERS[approximation], **EDGE_SETTINGS).fit(rows, targets)
    mean, std = model.predict(rows, return_std=True, include_noise=True)
    assert np.all(np.isfinite(mean)) and np.all(std > 0) and np.isfinite(model.elbo_)
    assert np.all(np.isfinite(model.sample_functions(2)(rows)))


@pytest.mark.filterwarnings("ignore:input column", "ignore:all targets are equal")
@pytest.mark.parametrize("likelihood", ["student-t", "poisson", "negative-binomial"])
@pytest.mark.long
def test_other_likelihoods_of_hardly_any_rows_are_finite(likelihood):
    """Counts that are all 0 among them: their rate is small, not 0."""
    rows, _ = EDGES["equal points, a constant column"]
    model = SparseGPRegressor(likelihood=likelihood, learner=SVGP(epochs=2), **EDGE_SETTINGS).fit(
        rows, np.zeros(20)
    )
    law = model.predict_distribution(rows)
    assert np.all(np.isfinite(law.logpdf(0.0))) and np.all(law.std > 0) and np.all(np.isfinite(law.mean))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:input column")
def test_classes_of_equal_rows_have_probabilities():
    rows, _ = EDGES["equal points, a constant column"]
    p = (
        SparseGPClassifier(learner=SVGP(epochs=2), **EDGE_SETTINGS)
        .fit(rows, np.arange(20) % 3)
        .predict_proba(rows)
    )
    assert np.all(p > 0)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-9)


def test_a_time_limit_that_leaves_no_pass_says_so():
    with pytest.warns(ConvergenceWarning, match="the time limit ended the fit before the first step"):
        model = SparseGPRegressor(n_inducing=12, random_state=0, time_limit=1e-6).fit(X, y)
    assert model.plan_["q"]["choice"] == "as it was"
    assert not model.converged_ and not hasattr(model, "elbo_")
    assert np.all(np.isfinite(model.predict(X)))


@pytest.mark.parametrize("name", [*REGRESSORS, "classes"])
def test_a_killed_fit_resumes_to_the_same_bits(name, fitted, tmp_path):
    whole, targets = fitted[name], LABELS if name == "classes" else y
    of = lambda: whole.__class__(**whole.get_params())
    with pytest.raises(KilledError):
        of().fit(X, targets, checkpoint=tmp_path / "run", callback=stop_at(3, KilledError()))
    resumed = of().fit(X, targets, checkpoint=tmp_path / "run")
    assert_array_equal(resumed.predict(X), whole.predict(X))
    assert resumed.elbo_ == whole.elbo_ and resumed.n_iter_ == whole.n_iter_


REFUSED = {
    "learner": ({"learner": "svpg"}, "did you mean"),
    "n_inducing": ({"n_inducing": 0}, "n_inducing is 0"),
    "n_inducing_mean": ({"learner": "ivsgpr", "n_inducing_mean": 9}, "set n_inducing_mean=None"),
    "likelihood": ({"likelihood": likelihoods.Bernoulli()}, "SparseGPClassifier"),
    "kernel": ({"kernel": "tanimoto"}, "fingerprints"),
    "missing": ({"missing": "skip"}, "missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_settings_are_refused(name):
    settings, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        SparseGPRegressor(**settings).fit(X, y)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="only one class, 'a'"):
        SparseGPClassifier().fit(X, ["a"] * 80)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_rows_without_a_label_are_left_out_and_counted_or_named_where_they_are_refused(missing):
    X, y = np.arange(6.0)[:, None], ["a", "b", missing, "a", "b", missing]
    known = np.array([True, True, False, True, True, False])
    settings = {"n_inducing": 3, "learner": SVGP(epochs=2), "random_state": 0}
    alone = SparseGPClassifier(**settings).fit(X[known], ["a", "b", "a", "b"])
    for labels in (y, np.array(y, object)):
        with pytest.raises(ValueError, match="the label of row 3 is missing .*; 2 of 6 values are"):
            SparseGPClassifier(missing="refuse").fit(X, labels)
        with pytest.warns(UserWarning, match="2 rows of 6 are ignored"):
            found = SparseGPClassifier(**settings).fit(X, labels)
        assert found.plan_["unused_rows"]["choice"] == 2
        np.testing.assert_array_equal(found.predict_proba(X), alone.predict_proba(X))
    with pytest.raises(ValueError, match="the label of row 1 is missing .*; 6 of 6 values are"):
        SparseGPClassifier().fit(X, [missing] * 6)
    with pytest.warns(UserWarning, match="2 rows of 6 are ignored"):
        numbers = SparseGPClassifier(**settings).fit(X, [0.0, 1.0, np.nan, 0.0, 1.0, np.nan])
    assert numbers.classes_.tolist() == [0.0, 1.0]


def test_few_rows_are_learned_from_together():
    """Mini-batches of rows that fit into one batch would only add noise."""
    few = SparseGPRegressor()
    for likelihood, n_rows, expected in (
        ("auto", 4_000, SGPR),
        ("gaussian", 4_001, SVGP),
        ("student-t", 50, VGP),
        ("poisson", 1_001, SVGP),
    ):
        few.set_params(likelihood=likelihood)
        learner, _ = sparse_learner(few, n_rows, likelihood in ("auto", "gaussian"))
        assert type(learner) is expected
