"""Feature GPs with Student-t noise: chosen where tails are heavy, asked for by name or value, in files, plans and streams."""

import jax
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from toy import make_gp

import stochgp
from stochgp import FeatureGPRegressor, learners, metrics
from stochgp.data.streams import DeviceRows
from stochgp.learning.run import Going
from stochgp.likelihoods import Bernoulli, Gaussian, StudentT
from stochgp.parameters import frozen
from stochgp.results import RESULTS, FitResult
from stochgp.selection import heavy_tails

N = 1_500
QUICK = {"features": "rff", "n_features": 30, "random_state": 0, "learning_rate": 0.03, "epochs": 20}
LEARNER = learners.SCGD(batch_size=300, judge=learners.ByEvidence(validation_fraction=0.4))


def rows(seed=0, df=3.0):
    """y = sin 2x₁ + 0.2 t."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(N, 2))
    return X, np.sin(2 * X[:, 0]) + 0.2 * generator.standard_t(df, size=N)


def fitted(**settings):
    return FeatureGPRegressor(learner=LEARNER, **QUICK | settings).fit(*rows())


@pytest.fixture(scope="module")
def found():
    return fitted()


def test_heavy_tails_are_chosen_and_pay_on_new_rows(found):
    X, y = rows(1)
    assert found.plan_["likelihood"]["choice"] == "student-t"
    assert 2.1 < found.plan_["df"]["choice"] < 5
    gaussian = fitted(likelihood="gaussian")
    gain = metrics.nlpd(y, gaussian.predict_distribution(X)) - metrics.nlpd(y, found.predict_distribution(X))
    assert gain > 0.1
    error = lambda model: metrics.rmse(np.sin(2 * X[:, 0]), model.predict(X))
    assert error(found) < error(gaussian)


def test_deviations_are_those_of_the_law(found):
    """√(v + σ²ν/(ν − 2)), in predictions, covariances and `noise_variance_`."""
    X = rows(1)[0][:30]
    latent, std = (found.predict(X, return_std=True, include_noise=given)[1] for given in (False, True))
    law = found.predict_distribution(X)
    np.testing.assert_allclose(law.std, std, rtol=1e-9)
    np.testing.assert_allclose(std**2 - latent**2, found.noise_variance_, rtol=1e-6)
    covariance = found.predict(X, return_cov=True, include_noise=True)[1]
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-4)
    np.testing.assert_allclose(law.quantile([0.1]), found.predict_quantiles(X, [0.1]), rtol=1e-12)


def test_files_keep_it(found, tmp_path):
    X = rows(1)[0][:50]
    found.save(tmp_path / "model.stochgp")
    other = stochgp.load(tmp_path / "model.stochgp")
    np.testing.assert_array_equal(other.predict_interval(X), found.predict_interval(X))


def test_names_and_values_are_taken():
    both = fitted(likelihood="row-noise-student-t", epochs=4)
    assert both.plan_["likelihood"]["choice"] == "row-noise-student-t"
    assert both.plan_["row_noise_steps"]["choice"] > 0
    kept = fitted(likelihood=StudentT(frozen(5.0)), epochs=4)
    assert kept.plan_["likelihood"]["choice"] == "student-t"
    assert kept.plan_["df"]["choice"] == 5
    plain = fitted(likelihood=Gaussian(0.3), epochs=4)
    assert plain.plan_["likelihood"]["choice"] == "gaussian"


def test_few_rows_have_what_they_ask_for():
    """Shares of the other rows within 3 standard errors of what 120 rows can know, and densities that the Gaussian is far from."""
    X, y = rows()
    student, gaussian = (
        FeatureGPRegressor(likelihood=name, **QUICK).fit(X[:120], y[:120])
        for name in ("student-t", "gaussian")
    )
    assert student.plan_["likelihood"]["choice"] == "student-t"
    assert 2.1 <= student.plan_["df"]["choice"] < 10
    for level in (0.5, 0.8, 0.95):
        lower, upper = student.predict_interval(X[120:], level).T
        share = np.mean((lower <= y[120:]) & (y[120:] <= upper))
        assert abs(share - level) < 3 * (level * (1 - level) * (1 / 120 + 1 / (N - 120))) ** 0.5
    scores = [metrics.nlpd(y[120:], model.predict_distribution(X[120:])) for model in (student, gaussian)]
    assert scores[0] < scores[1] - 0.3


@pytest.mark.parametrize(("later", "kept"), [(0.9, True), (1.1, False), (None, False)])
def test_steps_with_heavy_tails_stay_only_where_held_out_rows_gain(later, kept, monkeypatch):
    """The steps are counted in any case."""
    evidence = learners.Evidence(None, None, 0.0, 1.0, 0.0, None, 5.0)
    gp = make_gp(dtype=np.float32)
    first = FitResult(gp, 1.0, evidence, 10, True, RESULTS.successful, [], 0.0, None, 100)
    second = first._replace(
        gp=make_gp(dtype=np.float32, seed=2), evidence=evidence._replace(held_out_nlpd=later), n_iter=15
    )
    monkeypatch.setattr(heavy_tails, "learned_further", lambda *_: second)
    source = DeviceRows(np.zeros((5, 1), np.float32), np.zeros(5, np.float32))
    found = heavy_tails.learned_with_tails(first, LEARNER, source, Going(jax.random.key(0)))
    wanted = second if kept else first
    assert found.gp is wanted.gp and found.evidence is wanted.evidence
    assert found.n_iter == 15


def test_rounds_have_found_the_degrees_of_freedom(monkeypatch):
    """Twice as many change them by less than a tenth."""
    found = []
    for rounds in (heavy_tails.ROUNDS, 2 * heavy_tails.ROUNDS):
        monkeypatch.setattr(heavy_tails, "ROUNDS", rounds)
        found.append(fitted(likelihood="student-t", epochs=4).plan_["df"]["choice"])
    np.testing.assert_allclose(*found, rtol=0.1)


def test_sixty_rows_choose_nothing():
    """Not even where tails are heavy."""
    for seed in range(2):
        X, y = rows(seed)
        few = FeatureGPRegressor(**QUICK).fit(X[:60], y[:60])
        assert few.plan_["likelihood"]["choice"] == "gaussian"


def test_further_rows_far_off_move_little(found):
    """One row whose target is 50 standard deviations away: the Gaussian's mean moves by far more."""
    X, y = rows(1)
    moved = []
    for name in ("student-t", "gaussian"):
        model = fitted(likelihood=name, epochs=4)
        before = model.predict(X[:1])
        with pytest.warns(ConvergenceWarning, match="targets by"):
            model.partial_fit(X[:1], y[:1] + 50)
        moved.append(abs(model.predict(X[:1]) - before)[0])
    assert moved[0] < 0.1 * moved[1]
    assert np.isfinite(model.nlml_)


def test_other_values_are_refused():
    X, y = rows()
    with pytest.raises(TypeError, match="classes are for SparseGPClassifier"):
        FeatureGPRegressor(likelihood=Bernoulli(), **QUICK).fit(X[:50], y[:50])
    with pytest.raises(ValueError, match="df is 1.5"):
        FeatureGPRegressor(likelihood=StudentT(frozen(1.5)), **QUICK).fit(X[:50], y[:50])
    with pytest.raises(ValueError, match="did you mean"):
        FeatureGPRegressor(likelihood="student", **QUICK).fit(X[:50], y[:50])
