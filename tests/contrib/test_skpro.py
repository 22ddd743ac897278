"""The adapter to skpro: its own checks, and distributions that are ours. Skipped where skpro is not installed."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of other packages, while they load
    pytest.importorskip("skpro", reason="the adapter needs skpro: pip install stochgp[skpro]")
    from skpro.metrics import CRPS
    from skpro.utils import check_estimator

    from stochgp.contrib.skpro import PredictedDistribution, ProbaRegressor

from stochgp import GPRegressor, KernelGPRegressor, kernels
from stochgp.distributions import Counts, Mixture, Normal, Student

pytestmark = pytest.mark.filterwarnings("ignore")  # skpro's, of what it approximates
_generator = np.random.default_rng(0)
X = pd.DataFrame(
    {"a": _generator.uniform(-2, 2, 40), "b": _generator.uniform(-2, 2, 40)}, index=range(100, 140)
)
y = pd.DataFrame({"target": np.sin(2 * X["a"]) + 0.1 * _generator.normal(size=40)})
SETTINGS = {"noise_variance": 0.05, "learner": None}
NORMAL = Normal(np.array([0.0, 1.0, -2.0]), np.array([1.0, 2.0, 0.5]))
STUDENT = Student(np.array([1.0, 0.0, 3.0]), np.array([1.0, 0.5, 2.0]), 5.0)
MIXTURE = Mixture((NORMAL, STUDENT), np.array([0.3, 0.7]))
COUNTS = Counts(np.array([0.5, 2.0, 1.0]), np.array([0.1, 0.2, 0.5]))
AT = np.array([[0.3], [2.0], [-1.0]])


def regressor():
    return KernelGPRegressor(kernels.Matern32([1.0, 1.0], 1.0), **SETTINGS)


@pytest.mark.parametrize("kind", [ProbaRegressor, PredictedDistribution])
def test_skpro_s_own_checks_pass(kind):
    found = check_estimator(kind, raise_exceptions=False, verbose=False)
    assert len(found) > 20 and {name: said for name, said in found.items() if said != "PASSED"} == {}


def test_what_is_predicted_is_what_the_estimator_predicts():
    model = ProbaRegressor(regressor()).fit(X, y)
    found, ours = model.predict_proba(X[:5]), regressor().fit(X, y["target"].to_numpy())
    wanted = ours.predict_distribution(X[:5])
    assert list(found.index) == list(X.index[:5]) and list(found.columns) == ["target"]
    assert_allclose(model.predict(X[:5])["target"], wanted.mean)
    assert_allclose(model.predict_var(X[:5])["target"], wanted.std**2)
    assert_allclose(model.predict_interval(X[:5], 0.8), ours.predict_interval(X[:5], 0.8))
    assert_allclose(model.predict_quantiles(X[:5], [0.1, 0.7]), wanted.quantile([0.1, 0.7]))
    crps = CRPS()(y[:5], found)
    assert_allclose(crps, wanted.crps(y["target"].to_numpy()[:5]).mean(), rtol=1e-8)


def test_conformal_intervals_are_those_of_the_estimator():
    calibrated = KernelGPRegressor("rbf", calibration="conformal", random_state=0, **SETTINGS)
    many = pd.DataFrame(_generator.uniform(-2, 2, (320, 1)), columns=["a"])
    model = ProbaRegressor(calibrated).fit(many, np.sin(many) + 0.1 * _generator.standard_t(3, (320, 1)))
    wanted = model.estimator_.predict_interval(many[:5], 0.5)
    assert_allclose(model.predict_interval(many[:5], 0.5), wanted)
    assert not np.allclose(model.predict_proba(many[:5]).quantile([0.25, 0.75]), wanted)


@pytest.mark.parametrize("ours", [NORMAL, STUDENT, MIXTURE], ids=["normal", "student", "mixture"])
def test_a_continuous_distribution_is_ours(ours):
    found = PredictedDistribution(ours)
    assert_allclose(found.mean()[0], ours.mean)
    assert_allclose(found.var()[0], ours.std**2)
    assert_allclose(found.log_pdf(AT), ours.logpdf(AT))
    assert_allclose(found.pdf(AT), np.exp(ours.logpdf(AT)))
    assert_allclose(found.cdf(AT), ours.cdf(AT))
    assert_allclose(found.surv(AT), ours.sf(AT))
    assert_allclose(found.ppf(found.cdf(AT)), AT, rtol=1e-8)
    assert np.all(found.pmf(AT) == 0)
    gap = found.energy(AT).to_numpy()[:, 0] - found.energy().to_numpy()[:, 0] / 2
    assert_allclose(gap, ours.crps(AT)[:, 0], rtol=1e-10)


def test_energies_are_those_of_the_formulas():
    """E|Y − Y'| of a Gaussian is 2s/√π; of counts a double sum."""
    found = PredictedDistribution(NORMAL).energy().to_numpy()[:, 0]
    assert_allclose(found, 2 * NORMAL.std / np.sqrt(np.pi), rtol=1e-7)
    k = np.arange(400.0)
    p = np.exp(COUNTS.logpdf(np.tile(k, (3, 1))))
    assert_allclose(p.sum(axis=1), 1, atol=1e-8)
    pairs = np.einsum("ni,nj,ij->n", p, p, abs(k[:, None] - k))
    assert_allclose(PredictedDistribution(COUNTS).energy().to_numpy()[:, 0], pairs, rtol=1e-6)
    at = PredictedDistribution(COUNTS).energy(np.full((3, 1), 4.0)).to_numpy()[:, 0]
    assert_allclose(at, p @ abs(k - 4), rtol=1e-6)
    t = np.linspace(-300, 300, 600_001)
    F = stats.t(5.0).cdf(t)
    wanted = 2 * np.trapezoid(F * (1 - F), t) * STUDENT.spread
    assert_allclose(PredictedDistribution(STUDENT).energy().to_numpy()[:, 0], wanted, rtol=1e-6)


def test_counts_have_probabilities_and_no_density():
    found, at = PredictedDistribution(COUNTS), np.array([[0.0], [5.0], [2.0]])
    assert found.get_tag("distr:measuretype") == "discrete"
    assert_allclose(found.pmf(at), np.exp(COUNTS.logpdf(at)))
    assert_allclose(found.log_pmf(at), COUNTS.logpdf(at))
    assert np.all(found.pdf(at) == 0) and np.all(np.isneginf(found.log_pdf(at)))


def test_rows_are_chosen_by_their_names():
    found = PredictedDistribution(MIXTURE, index=pd.Index([7, 3, 5]), columns=pd.Index(["y"]))
    assert_allclose(found.loc[[5, 7]].mean()["y"], MIXTURE.mean[[2, 0]])
    assert_allclose(found.iloc[[0, 2]].mean()["y"], MIXTURE.mean[[0, 2]])
    assert found.iat[1, 0].shape == () and found.iat[1, 0].mean() == pytest.approx(MIXTURE.mean[1])
    assert found.at[3, "y"].ppf(0.2) == pytest.approx(MIXTURE.quantile(0.2)[1])
    with pytest.raises(ValueError, match="index and columns have lengths 2 and 1; wanted are 3 and 1"):
        PredictedDistribution(MIXTURE, index=pd.Index([0, 1]))


def test_an_array_and_no_estimator_serve_too():
    model = ProbaRegressor().fit(X.to_numpy(), y.to_numpy())
    assert isinstance(model.estimator_, GPRegressor) and model.estimator is None
    assert model.predict(X.to_numpy()).shape == (40, 1)
