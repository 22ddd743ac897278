"""Hyperparameters of few rows: their information, the prior that the fit had, and the mixture that predicts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import stochgp
from stochgp import KernelGPRegressor
from stochgp.families.kernel_posterior import information, numbers_of, slope
from stochgp.kernels import Matern32
from stochgp.learners import FullBatch
from stochgp.likelihoods.noise import constant_noise
from stochgp.models import KernelGP
from stochgp.posteriors import ExactKernelPosterior, KernelSystem, MixturePosterior
from stochgp.posteriors.exact import exact_at

pytestmark = pytest.mark.usefixtures("double")
N, D = 24, 2
_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, (N, D))
y = np.sin(2 * X[:, 0]) + 0.3 * _generator.normal(size=N)
COUNT = _generator.integers(1, 4, N).astype(np.float64)
X_NEW = _generator.uniform(-2, 2, (50, D))


def model(lengthscale=(0.7, 1.5)):
    return KernelGP(Matern32(np.array(lengthscale), np.array(1.3)), constant_noise(0.1, dtype="float64"))


def posterior(gp, X, y, count):
    weights = np.zeros((len(y), 1))
    system = KernelSystem(gp.kernel, X, count, gp.noise, 16)
    return exact_at(ExactKernelPosterior(system, weights, 0.0, y), gp.kernel, float(gp.noise_variance))


def test_rows_of_count_rho_have_the_information_and_the_slope_of_rho_rows():
    gp, rows = model(), np.repeat(np.arange(N), COUNT.astype(int))
    counted, repeated = posterior(gp, X, y, COUNT), posterior(gp, X[rows], y[rows], np.ones(len(rows)))
    of = numbers_of(gp)
    assert_allclose(information(counted, *of), information(repeated, *of), rtol=1e-4, atol=1e-4)
    assert_allclose(slope(counted, gp), slope(repeated, gp), rtol=1e-8, atol=1e-8)


def test_the_information_is_the_covariance_of_the_slope():
    """Of targets drawn from the model: for 100 draws, each entry within 5 standard errors of √((F_ij² + F_ii F_jj)/100)."""
    gp = model()
    F, first = information(posterior(gp, X, y, np.ones(N)), *numbers_of(gp)), posterior(gp, X, y, np.ones(N))
    L = np.tril(first.factor.L)
    draws = L @ np.random.default_rng(1).normal(size=(N, 100))
    g = np.array([slope(posterior(gp, X, draw, np.ones(N)), gp) for draw in draws.T])
    error = np.sqrt((F**2 + np.outer(np.diag(F), np.diag(F))) / 100)
    assert np.all(np.abs(g.T @ g / 100 - F) < 5 * error)
    assert np.all(np.abs(g.mean(axis=0)) < 5 * np.sqrt(np.diag(F) / 100))


@pytest.fixture(scope="module")
def fitted():
    learner = FullBatch(spread=1.0, tolerance=1e-6)
    return KernelGPRegressor(learner=learner, random_state=0, likelihood="gaussian", dtype="float64").fit(
        X, y
    )


def test_a_fit_of_few_rows_predicts_by_draws_around_the_learned_values(fitted):
    """The learned values minimise the penalised likelihood: ∇L = x₀ − θ̂, x₀ the start, of lengthscales √D, variance 1 and noise 0.1."""
    found = fitted._fitted.posterior
    assert isinstance(found, MixturePosterior)
    assert fitted.plan_["hyperparameters"]["choice"] == len(found.parts) > 16
    assert_allclose(found.shares.sum(), 1)
    level = float(found.base.noise.level)
    gp = KernelGP(fitted.kernel_, constant_noise(level, dtype="float64"))
    start = np.log([D**0.5, D**0.5, 1.0, 0.1])
    assert_allclose(slope(found.base, gp), start - numbers_of(gp)[0], atol=0.05)
    spread = np.std([float(part.noise.level) / level for part in found.parts])
    assert 0.05 < spread < 1


def test_observations_have_the_variance_of_f_and_the_noise(fitted):
    std, noisy = (fitted.predict(X_NEW, return_std=True, include_noise=n)[1] for n in (False, True))
    assert_allclose(noisy**2, std**2 + fitted.noise_variance_)
    base = fitted._fitted.target_scale * np.sqrt(
        fitted._fitted.posterior.base.mean_and_variance(fitted._fitted.inputs.transform(X_NEW, np.float64))[1]
    )
    assert np.mean(std > base) > 0.9


def test_nothing_is_drawn_of_values_that_were_given_of_groups_and_of_many_rows():
    given = KernelGPRegressor(Matern32(1.0), learner=None, random_state=0).fit(X, y)
    assert isinstance(given._fitted.posterior, ExactKernelPosterior) and "hyperparameters" not in given.plan_
    many = np.random.default_rng(2).uniform(size=(401, 1))
    cheap = KernelGPRegressor(learner=FullBatch(epochs=1), random_state=0, likelihood="gaussian")
    assert isinstance(cheap.fit(many, many[:, 0])._fitted.posterior, ExactKernelPosterior)
    cheap.fit(X, y, groups=np.arange(N) // 4)
    assert isinstance(cheap._fitted.posterior, ExactKernelPosterior)
    assert "groups" in cheap.plan_["hyperparameters"]["why"]


def test_an_update_has_the_mixture_at_all_rows_and_a_file_keeps_it(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = stochgp.load(tmp_path / "model")
    assert_array_equal(again.predict(X_NEW), fitted.predict(X_NEW))
    again.update(X_NEW[:10], np.sin(2 * X_NEW[:10, 0]))
    found, before = again._fitted.posterior, fitted._fitted.posterior
    assert_array_equal(found.shares, before.shares)
    for part, old in zip(found.parts, before.parts, strict=True):
        one = posterior(
            KernelGP(old.system.kernel, old.noise), np.asarray(part.system.X), part.y, part.system.weight
        )
        assert len(part.y) == N + 10
        assert_allclose(part.weights, one.weights, rtol=1e-8)


def test_updates_beyond_1000_rows_keep_the_learned_values_alone(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = stochgp.load(tmp_path / "model")
    Z = np.random.default_rng(3).uniform(-2, 2, (1000, D))
    again.update(Z, np.sin(2 * Z[:, 0]))
    found = again._fitted
    assert isinstance(found.posterior, ExactKernelPosterior)
    assert float(found.observation.likelihood.noise.level) == float(found.posterior.noise.level)


@pytest.mark.parametrize(
    ("n_rows", "n_inputs", "draws"), [(201, 12, True), (300, 5, False), (401, 30, False)]
)
def test_up_to_400_rows_are_few_if_there_are_fewer_than_20_for_each_number(n_rows, n_inputs, draws):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n_rows, n_inputs))
    model = KernelGPRegressor(learner=FullBatch(epochs=1), random_state=0)
    model.fit(X, X[:, 0] + generator.normal(size=n_rows))
    assert (model.plan_["hyperparameters"]["choice"] > 1) is draws
