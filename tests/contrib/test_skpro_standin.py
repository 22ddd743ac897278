"""The adapter to skpro on stand-ins of its classes: the numbers are those of our distributions, energies those of the formulas."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from skpro_standin import MODULES, adapter

from stochgp import KernelGPRegressor, kernels
from stochgp.distributions import Counts, Mixture, Normal, Student

NORMAL = Normal(np.array([0.0, 1.0, -2.0]), np.array([1.0, 2.0, 0.5]))
MIXTURE = Mixture((NORMAL, Student(np.zeros(3), np.ones(3), 5.0)), np.array([0.3, 0.7]))
COUNTS = Counts(np.array([0.5, 2.0, 1.0]), np.array([0.1, 0.2, 0.5]))
AT = np.array([[0.3], [2.0], [-1.0]])


@pytest.fixture(scope="module")
def skpro():
    with adapter() as module:
        yield module


def test_numbers_are_those_of_the_distribution(skpro):
    found = skpro.PredictedDistribution(MIXTURE)
    assert_allclose(found._mean(), MIXTURE.mean[:, None])
    assert_allclose(found._var(), MIXTURE.std[:, None] ** 2)
    assert_allclose(found._log_pdf(AT), MIXTURE.logpdf(AT))
    assert_allclose(found._pdf(AT), np.exp(MIXTURE.logpdf(AT)))
    assert_allclose(found._surv(AT), MIXTURE.sf(AT))
    assert_allclose(found._ppf(found._cdf(AT)), AT, rtol=1e-8)
    assert_allclose(found._energy_x(AT) - found._energy_self() / 2, MIXTURE.crps(AT), rtol=1e-10)


def test_energies_are_those_of_the_formulas(skpro):
    """E|Y − Y'| of a Gaussian is 2s/√π; of counts a double sum."""
    found = skpro.PredictedDistribution(NORMAL)._energy_self()[:, 0]
    assert_allclose(found, 2 * NORMAL.std / np.sqrt(np.pi), rtol=1e-7)
    k, counts = np.arange(400.0), skpro.PredictedDistribution(COUNTS)
    p = np.exp(COUNTS.logpdf(np.tile(k, (3, 1))))
    pairs = np.einsum("ni,nj,ij->n", p, p, abs(k[:, None] - k))
    assert_allclose(counts._energy_self()[:, 0], pairs, rtol=1e-6)
    assert_allclose(counts._energy_x(np.full((3, 1), 4.0))[:, 0], p @ abs(k - 4), rtol=1e-6)
    assert counts.tags["distr:measuretype"] == "discrete" and "pmf" in counts.tags["capabilities:exact"]


def test_one_row_is_a_scalar_and_other_shapes_are_refused(skpro):
    one = skpro.PredictedDistribution(**skpro.PredictedDistribution(MIXTURE)._subset_params(1, 0, True))
    assert np.shape(one._mean()) == () and one._mean() == pytest.approx(MIXTURE.mean[1])
    assert one._ppf(np.array(0.2)) == pytest.approx(MIXTURE.quantile(0.2)[1])
    with pytest.raises(ValueError, match="index and columns have lengths 2 and 1; wanted are 3 and 1"):
        skpro.PredictedDistribution(MIXTURE, index=[0, 1])


def test_the_regressor_is_a_fitted_clone(skpro):
    generator = np.random.default_rng(0)
    X, y = pd.DataFrame(generator.normal(size=(30, 2))), pd.DataFrame({"y": generator.normal(size=30)})
    ours = KernelGPRegressor(kernels.RBF(1.0, 1.0), noise_variance=0.1, learner=None)
    model = skpro.ProbaRegressor(ours)._fit(X, y)
    assert model.estimator is ours and model.estimator_ is not ours
    wanted = ours.fit(X.to_numpy(), y["y"].to_numpy())
    found = model._predict_proba(X[:4])
    assert list(found.columns) == ["y"] and found.index is not None
    assert_allclose(found._mean()[:, 0], wanted.predict(X[:4].to_numpy()), rtol=1e-5)
    intervals = model._predict_interval(X[:4], [0.5, 0.9])
    assert list(intervals.columns) == [
        ("y", level, side) for level in (0.5, 0.9) for side in ("lower", "upper")
    ]
    assert_allclose(intervals["y"][0.9], wanted.predict_interval(X[:4].to_numpy(), 0.9), rtol=1e-5)


def test_targets_of_several_columns_are_refused(skpro):
    with pytest.raises(ValueError, match="y has 2 columns; one is wanted"):
        skpro.ProbaRegressor()._fit(pd.DataFrame(np.zeros((5, 1))), pd.DataFrame(np.zeros((5, 2))))


def test_without_skpro_it_says_how_to_install_it():
    with (
        pytest.raises(ImportError, match=r"pip install 'stochgp\[skpro\]'"),
        adapter(dict.fromkeys(MODULES)),
    ):
        pass
