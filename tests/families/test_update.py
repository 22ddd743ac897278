"""`KernelGPRegressor.update`: the posterior of all rows, from where the last solve ended."""

import copy
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import stochgp
from stochgp import KernelGPRegressor, kernels, solvers
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.observations import Dispersion
from stochgp.posteriors import KernelSystem

KERNEL = kernels.Matern32([0.4, 0.7], 1.3)
N, NEW = 150, 20
_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, (N + NEW, 2))
y = 5 + np.sin(2 * X[:, 0]) + 0.2 * _generator.normal(size=N + NEW)
WEIGHT = _generator.integers(1, 4, N + NEW).astype(float)
Z = _generator.uniform(-2, 2, (9, 2))
DIRECT = solvers.Cholesky()
BLOCKS = solvers.SDD(batch_size=32)


def model(solver=DIRECT, **more):
    """Nothing is standardised, so that a fit of all rows sees the same numbers."""
    settings = {"standardize": False, "mean": 5.0, "dtype": "float64", "random_state": 0}
    return KernelGPRegressor(
        KERNEL, learner=None, likelihood=Gaussian(known_noise(0.05)), solver=solver, **settings | more
    )


def system(rows=slice(None)):
    return KernelSystem(KERNEL, jnp.asarray(X[rows]), WEIGHT[rows], known_noise(0.05), 64)


@pytest.fixture(scope="module")
def all_rows():
    return model().fit(X, y, sample_weight=WEIGHT)


def test_exact_update_is_the_fit_of_all_rows(all_rows):
    found = model().fit(X[:N], y[:N], sample_weight=WEIGHT[:N]).update(X[N:], y[N:], sample_weight=WEIGHT[N:])
    for ours, theirs in zip(
        found.predict(Z, return_cov=True), all_rows.predict(Z, return_cov=True), strict=True
    ):
        assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)
    assert found.nlml_ == pytest.approx(all_rows.nlml_, rel=1e-10)
    assert found.n_rows_ == N + NEW and found.converged_


@pytest.mark.parametrize("solver", [BLOCKS, solvers.CG()], ids=["sdd", "cg"])
@pytest.mark.long
def test_update_by_solving_reaches_the_same_posterior_from_fewer_epochs(solver, all_rows):
    whole = model(solver).fit(X, y, sample_weight=WEIGHT)
    found = model(solver).fit(X[:N], y[:N], sample_weight=WEIGHT[:N])
    n_before = len(found.history_)
    found.update(X[N:], y[N:], sample_weight=WEIGHT[N:])
    assert found.converged_ and found.fit_report_["residual"] <= found._fitted.posterior.tolerance
    assert_allclose(found.predict(Z), all_rows.predict(Z), atol=0.02)
    assert len(found.history_) - n_before < len(whole.history_)


@pytest.mark.long
def test_an_update_is_solved_as_exactly_as_the_fit_was():
    found = model(solvers.CG()).fit(X[:N], y[:N])
    tight = 1e-3 * found._fitted.posterior.tolerance
    posterior = dataclasses.replace(found._fitted.posterior, tolerance=tight)
    found._fitted = dataclasses.replace(found._fitted, posterior=posterior)
    found.update(X[N:], y[N:])
    assert found._fitted.posterior.tolerance == tight and found.fit_report_["residual"] <= tight


@pytest.mark.parametrize("solver", [BLOCKS, solvers.CG()], ids=["sdd", "cg"])
def test_variances_after_an_update_are_those_of_all_rows(solver, all_rows, tmp_path):
    """48 of 170 rows tell nearly what all do; a file keeps the factor of the fit."""
    found = model(solver).fit(X[:N], y[:N], sample_weight=WEIGHT[:N])
    before = found._fitted.posterior.information
    found.update(X[N:], y[N:], sample_weight=WEIGHT[N:])
    found.save(tmp_path / "model")
    for one in (found, stochgp.load(tmp_path / "model")):
        assert one._fitted.posterior.information == before
        deviations = one.predict(Z, return_std=True)[1]
        assert_allclose(deviations, all_rows.predict(Z, return_std=True)[1], rtol=0.01)


def test_local_prediction_takes_rows_in(all_rows):
    found = model(solver="local").fit(X[:N], y[:N]).update(X[N:], y[N:])
    exact = model().fit(X, y)
    assert_allclose(
        found.predict(Z), exact.predict(Z), rtol=2e-4
    )  # all rows are neighbours; weights are in float32


def test_an_updated_model_is_saved_and_updated_again(tmp_path):
    found = model(BLOCKS).fit(X[:N], y[:N])
    found.update(X[N : N + 8], y[N : N + 8])
    found.save(tmp_path / "model")
    again = stochgp.load(tmp_path / "model")
    for one in (found, again):
        one.update(X[N + 8 :], y[N + 8 :])
    assert_array_equal(found.predict(Z), again.predict(Z))
    assert_array_equal(found.predict(Z, return_std=True)[1], again.predict(Z, return_std=True)[1])
    assert found.fit_report_["updates"] == 2


def test_bad_rows_are_refused_and_leave_the_model_as_it_was():
    found = model().set_params(missing="refuse").fit(X[:N], y[:N])
    before = found.predict(Z)
    for rows, targets, words in [
        (X[N:, :1], y[N:], "features"),
        (X[N:], y[N:-1], "inconsistent"),
        (np.where(X[N:] > 1, np.nan, X[N:]), y[N:], "NaN at row"),
        (X[N:], np.full(NEW, np.nan), "y contains NaN"),
        (X[:0], y[:0], "0 sample"),
    ]:
        with pytest.raises(ValueError, match=words):
            found.update(rows, targets)
    found.memory_limit = "1MB"
    with pytest.raises(ValueError, match="memory_limit is 1 MB"):
        found.update(X[N:], y[N:])
    found.memory_limit = None
    assert_array_equal(found.predict(Z), before)
    assert found.n_rows_ == N


def test_repeated_rows_are_further_observations():
    """A row given again is the row with twice the weight."""
    found = model().fit(X[:N], y[:N]).update(X[:NEW], y[:NEW])
    weight = np.ones(N)
    weight[:NEW] = 2
    assert_allclose(found.predict(Z), model().fit(X[:N], y[:N], sample_weight=weight).predict(Z), rtol=1e-9)


def test_another_dispersion_of_observations_stays_when_rows_come():
    """Means and deviations are those of the Gaussian model of all rows; the law multiplies variances as it did."""
    found = model()
    found.fit(X[:N], y[:N])
    observation = dataclasses.replace(found._fitted.observation, inflation=Dispersion(factor=4.0))
    found._fitted = dataclasses.replace(found._fitted, observation=observation)
    mean, std = found.update(X[N:], y[N:]).predict(Z, return_std=True)
    expected, one = model().fit(X, y).predict(Z, return_std=True)
    assert_allclose(mean, expected, rtol=1e-9)
    assert_allclose(std, 2 * one, rtol=1e-6)


@pytest.mark.parametrize("solver", [DIRECT, solvers.CG()], ids=["exact", "cg"])
def test_a_far_row_leaves_all_other_predictions(solver):
    """Inputs 10,000 to 10^38 ranges away are bounded, rows with far targets are left out, each with one warning."""
    fitted = model(solver, standardize=True, dtype="float32").fit(X, y)
    known = fitted.predict(Z)
    for far in (1e6, 1e7, 1e20, 1e38):
        other = copy.deepcopy(fitted)
        with pytest.warns(
            UserWarning, match=r"1 new row.*in the first, row 2, input column 2 was changed from 1e\+"
        ):
            other.update([X[0], [0.0, far]], [y[0], 0.0])
        assert np.abs(other.predict(Z) - known).max() < 0.05 and other.n_rows_ == fitted.n_rows_ + 2
    for target in (1e10, 1e140):
        other = copy.deepcopy(fitted)
        with pytest.warns(
            UserWarning, match=r"1 new row.*dropped.*the first of these rows is row 1, with the target 1e\+"
        ):
            other.update(X[:2], [target, y[1]])
        assert np.abs(other.predict(Z) - known).max() < 0.05 and other.n_rows_ == fitted.n_rows_ + 1
