"""likelihood= of kernel and sparse GPs: what is chosen, and that intervals, files, plans and limits keep to it."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import spearmanr

from stochgp import KernelGPRegressor, SparseGPRegressor, learners, load
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.families import left_out as choosing
from stochgp.families import variational
from stochgp.kernels import RBF
from stochgp.likelihoods import AbstractNoise, Bernoulli, Gaussian, StudentT, constant_noise
from stochgp.models import KernelGP
from stochgp.numerics.seeds import random_rows
from stochgp.observations.error_distribution import GAUSSIAN, STUDENT
from stochgp.parameters import AbstractParameter, frozen, positive
from stochgp.variational.decoupled import DecoupledProcess

N = 500


KERNEL = {"learner": learners.FullBatch(epochs=8, spread=1.0)}
SPARSE = {"learner": learners.SGPR(epochs=8), "n_inducing": 60}
families = pytest.mark.parametrize("family", ["kernel", "sparse"])

# A posterior that does not know its rows without themselves.
UNKNOWING = SimpleNamespace(errors_of_left_out=lambda *_: None, leaves_groups_out=False)


def make(family="kernel", **settings):
    """A quick fit: what is tested comes after it."""
    kind, more = (KernelGPRegressor, KERNEL) if family == "kernel" else (SparseGPRegressor, SPARSE)
    return kind("rbf", random_state=0, **more | settings)


def rows(n, seed=0):
    """Noise of standard deviation 0.1 where x₁ < 0, else 1."""
    generator = np.random.default_rng(seed)
    X = generator.uniform(-2, 2, size=(n, 2))
    std = np.where(X[:, 0] > 0, 1.0, 0.1)
    return X, np.sin(2 * X[:, 1]) + std * generator.normal(size=n)


def plain(n, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.2 * generator.normal(size=n)


@functools.cache
def fitted(family="kernel"):
    return make(family).fit(*rows(N))


@families
def test_a_scale_of_the_input_is_chosen_and_covers_where_noise_is_small_and_where_it_is_large(family):
    model, (X, y) = fitted(family), rows(1000, seed=1)
    assert model.plan_["likelihood"]["choice"] == STUDENT
    assert model.fit_report_["error_trees"] > 0
    assert "student-t" in model.summary()
    lower, upper = model.predict_interval(X, 0.9).T
    inside = (lower <= y) & (y <= upper)
    for half in (X[:, 0] > 0, X[:, 0] < 0):
        assert abs(inside[half].mean() - 0.9) < 0.04 + 3 * (0.09 / half.sum()) ** 0.5


@families
def test_means_are_those_of_the_gaussian_law(family):
    X, model = rows(50, seed=2)[0], fitted(family)
    gaussian = make(family, likelihood="gaussian").fit(*rows(N))
    assert_array_equal(gaussian.predict(X), model.predict(X))
    evidence = "nlml_" if family == "kernel" else "elbo_"
    assert getattr(gaussian, evidence) == getattr(model, evidence)
    assert gaussian.kernel_.variance == model.kernel_.variance


@families
def test_deviations_of_functions_covariances_and_noise_agree(family):
    model, X = fitted(family), rows(40, seed=3)[0]
    mean, std = model.predict(X, return_std=True)
    noisy = model.predict(X, return_std=True, include_noise=True)[1]
    assert_allclose(np.sqrt(np.diag(model.predict(X, return_cov=True)[1])), std, rtol=1e-3)
    S = 200
    drawn = model.sample_functions(S, random_state=1)(X)
    assert_allclose(drawn.var(axis=1), std**2, rtol=5 * (2 / S) ** 0.5)
    found = model.predict_distribution(X)
    assert_allclose(found.std, noisy, rtol=1e-9)
    assert_allclose(found.mean, mean, rtol=1e-9)
    assert_allclose(found.quantile([0.1, 0.7]), model.predict_quantiles(X, [0.1, 0.7]), rtol=1e-12)


@families
def test_files_and_refits_keep_the_law(family, tmp_path):
    model, X = fitted(family), rows(50, seed=2)[0]
    model.save(tmp_path / "model")
    again = make(family)
    if family != "sparse":  # which learns a Student-t by name
        vars(again)["_chosen_likelihood"] = model.plan_["likelihood"]["choice"]
    again.fit(*rows(N))
    assert again.plan_["likelihood"]["choice"] == model.plan_["likelihood"]["choice"]
    for other in (load(tmp_path / "model"), again):
        assert_array_equal(other.predict_interval(X), model.predict_interval(X))


@families
def test_gaussian_data_keep_every_bit_of_constant_noise(family):
    X, y = plain(300)
    default, gaussian = (make(family, likelihood=name).fit(X, y) for name in ("auto", "gaussian"))
    assert default.plan_["likelihood"]["choice"] == GAUSSIAN
    assert "left-out" in default.plan_["likelihood"]["why"]
    assert_array_equal(default.predict_interval(X), gaussian.predict_interval(X))


@pytest.mark.filterwarnings("ignore:the time limit ended the fit before the first step")
def test_few_rows_and_little_time_choose_nothing():
    few = make().fit(*rows(60))
    assert few.plan_["likelihood"]["choice"] == GAUSSIAN
    assert "too few" in few.plan_["likelihood"]["why"]
    kept = KernelGPRegressor("rbf", learner=None).fit(*rows(150))
    assert "not learned" in kept.plan_["likelihood"]["why"]
    late = make(time_limit=0.5).fit(*rows(N))
    assert late.plan_["likelihood"]["choice"] == GAUSSIAN
    assert "time is too short" in late.plan_["likelihood"]["why"]


@pytest.mark.parametrize("grouped", [False, True])
def test_errors_of_rows_are_those_of_single_observations_given_rows_of_other_groups(grouped):
    """By dense algebra, up to one factor: the neighbours' noise variances are σ²/ρ, the row's own is σ², and Σρz²/Σρ = 1."""
    X, y = plain(40)
    weight, each = np.random.default_rng(1).choice([0.1, 1.0, 10.0], 40), np.arange(40)
    group = each // 4 if grouped else each
    gp = KernelGP(RBF([0.7, 1.5], 1.3), 0.04)
    data = TrainingData.of(Data(X, y, weight, group if grouped else None), False, None, "float64")
    found = choosing._left_out(UNKNOWING, gp, data)
    z = np.empty(40)
    K = 1.3 * np.exp(-0.5 * np.sum(((X[:, None] - X) / [0.7, 1.5]) ** 2, axis=2))
    for i in range(40):
        rest = group != group[i]
        solved = np.linalg.solve(K[np.ix_(rest, rest)] + np.diag(0.04 / weight[rest]), K[rest, i])
        z[i] = (y[i] - solved @ y[rest]) / np.sqrt(K[i, i] - solved @ K[rest, i] + 0.04)
    assert_allclose(found.y, z / np.sqrt(np.average(z**2, weights=weight)), rtol=1e-4, atol=1e-5)
    assert (found.group is not None) == grouped


def test_few_groups_choose_nothing():
    X, y = rows(150)
    few = make().fit(X, y, groups=np.arange(150) % 5)
    assert "groups" in few.plan_["likelihood"]["why"]


def left_out(scale=1.0):
    """(Of 300 rows, 80 with their weights and groups, each predicted from its neighbours by a kernel and a noise of this scale; their numbers)."""
    (X, y), generator = rows(300), np.random.default_rng(1)
    weight, group = generator.uniform(0.5, 3, 300), (np.arange(300) // 3).astype(np.int32)
    data = TrainingData.of(Data(X, y, weight, group), True, None, "float64")
    with jax.enable_x64(True):
        gp = KernelGP(
            kernel=RBF(np.ones(2), np.float64(scale)), noise=constant_noise(0.2 * scale, dtype=np.float64)
        )
        found = choosing._left_out(UNKNOWING, gp, data)
    return found, weight, group


def test_errors_of_neighbours_have_weights_groups_and_no_scale(monkeypatch):
    """That of all variances is the posterior's: mean z² is 1, and 9 k and 9 σ² change nothing."""
    monkeypatch.setattr(choosing, "ROWS", 80)
    (found, weight, group), (scaled, *_) = left_out(), left_out(9.0)
    at = random_rows(300, 80)
    assert_array_equal(found.weight, weight[at])
    assert_array_equal(found.group, group[at])
    assert_allclose(np.average(found.y**2, weights=weight[at]), 1, rtol=1e-12)
    assert_allclose(scaled.y, found.y, rtol=1e-3)  # matrices in float32


def test_a_student_t_is_fitted_as_asked():
    generator = np.random.default_rng(5)
    X, _ = plain(400)
    y = np.sin(2 * X[:, 0]) + 0.2 * generator.standard_t(3, size=400)
    model = make(likelihood="student-t").fit(X, y)
    assert model.plan_["likelihood"]["choice"] == STUDENT
    assert 2.1 <= model.plan_["df"]["choice"] < 12
    kept = make(likelihood=StudentT(frozen(5.0))).fit(X, y)
    assert kept.plan_["df"]["choice"] == 5
    half, most = (model.predict_interval(X[:3], level) for level in (0.5, 0.99))
    ratio = np.diff(most)[:, 0] / np.diff(half)[:, 0]
    assert (ratio > 2.576 / 0.6745).all()  # tails are heavier than a Gaussian's


class Sloped(AbstractNoise):
    """s(x) = exp(slope x₁)."""

    level: AbstractParameter
    slope: Float[Array, ""]

    def multiplier(self, X):
        return jnp.exp(jnp.asarray(self.slope, X.dtype) * X[:, 0])


def test_a_noise_model_is_learned_with_the_kernel():
    """The slope within 4 standard errors √(2/Σ(x − x̄)²) of noise that is seen directly, and the prior's pull."""
    generator = np.random.default_rng(6)
    X = generator.normal(size=(400, 1))
    y = np.sin(X[:, 0]) + 0.3 * np.exp(0.5 * X[:, 0]) * generator.normal(size=400)
    noise = Sloped(positive(0.1), jnp.float32(0.0))
    model = make(likelihood=Gaussian(noise)).fit(X, y)
    found = (
        float(model._fitted.posterior.noise.slope) / X.std()
    )  # per unit of x, which the kernel sees standardised
    assert abs(found - 1.0) < 4 * (2 / np.sum((X - X.mean()) ** 2)) ** 0.5 + 0.05
    low, high = model.predict(np.array([[-1.5], [1.5]]), return_std=True, include_noise=True)[1]
    assert high > 2.5 * low
    student = make(likelihood=StudentT(frozen(5.0), noise)).fit(X, y)
    c = student.fit_report_["error_scale"] * 5 / 3
    for include_noise in (False, True):
        deviations = (
            of.predict(X, return_std=True, include_noise=include_noise)[1] for of in (student, model)
        )
        assert_allclose(next(deviations) ** 2 / next(deviations) ** 2, c, rtol=1e-5)


def test_other_values_are_refused():
    with pytest.raises(ValueError, match="did you mean 'student-t'"):
        KernelGPRegressor(likelihood="student").fit(*plain(30))
    with pytest.raises(TypeError, match="likelihood must be a name .*for classes, use SparseGPClassifier"):
        KernelGPRegressor(likelihood=Bernoulli()).fit(*plain(30))
    with pytest.raises(ValueError, match="df is 1.5"):
        KernelGPRegressor(likelihood=StudentT(frozen(1.5))).fit(*plain(30))


def test_draws_of_observations_are_of_the_predicted_distribution():
    """Probabilities of draws are uniform, within 4 standard errors of their first moments; ranks of rows close together those of f and Gaussian noise."""
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, size=(800, 1))
    model = make().fit(X, np.sin(2 * X[:, 0]) + 0.3 * (generator.exponential(size=800) - 1))
    Z, S = np.append([-1.0, 2.5, 2.6], np.linspace(-2, 2, 20))[:, None], 250
    draws = model.sample_y(Z, S, include_noise=True)
    law = model.predict_distribution(Z)
    u = law._tails(draws)[0]
    for power in (1, 2, 3):
        each = (u**power).mean(axis=0)  # of a draw, whose rows depend on each other
        assert each.mean() == pytest.approx(1 / (power + 1), abs=4 * each.std() / S**0.5)
    fitted = model._fitted
    latent = fitted.covariance(Z, include_noise=True)
    r = latent[1, 2] / (latent[1, 1] * latent[2, 2]) ** 0.5
    assert r > 0.3
    assert spearmanr(draws[1], draws[2]).statistic == pytest.approx(
        6 / np.pi * np.arcsin(r / 2), abs=4 / S**0.5
    )


@pytest.mark.parametrize("why", ["groups", "no time"])
def test_where_sparse_gps_cannot_leave_rows_out_noise_is_constant_and_they_say_why(why, monkeypatch):
    X, y = rows(N)
    settings, groups = SPARSE | {"learner": learners.SVGP(epochs=2)}, np.arange(N) // 4
    if why == "no time":  # for a pass over all rows: functions that grew stay as they were learned
        monkeypatch.setattr(variational, "COMPILING_PASS", 1e6)
        settings = {"learner": learners.SVDGP(epochs=1), "n_inducing": 20, "time_limit": 1_000}
        groups = None
    model = SparseGPRegressor("rbf", random_state=0, **settings).fit(X, y, groups=groups)
    assert isinstance(model._fitted.posterior.process, DecoupledProcess) == (why == "no time")
    assert model.plan_["likelihood"]["choice"] == GAUSSIAN and why in model.plan_["likelihood"]["why"]
