"""KernelGPRegressor: the dense posterior in the user's units, samples, solvers, files, limits, bad input."""

import json
import pickle
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

import stochgp
from stochgp import KernelGPRegressor, kernels, learners, solvers
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise

LENGTHSCALE, VARIANCE, NOISE = np.array([0.7, 1.5]), 1.3, 0.05


def given(**settings):
    """With hyperparameters that nothing learns."""
    kernel = kernels.Matern32(LENGTHSCALE.tolist(), VARIANCE)
    return KernelGPRegressor(
        **{"kernel": kernel, "likelihood": Gaussian(known_noise(NOISE)), "learner": None, "random_state": 0}
        | settings
    )


def make_data(n=60, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 2)) * [3.0, 0.1] + [13.0, -5.0]
    y = 40.0 + 10.0 * np.sin(X[:, 0]) + 20 * X[:, 1] + generator.normal(size=n)
    return X, y


X, y = make_data()
X_NEW = make_data(7, seed=1)[0]


@pytest.fixture(scope="module")
def fitted():
    return given().fit(X, y)


class Dense(NamedTuple):
    """The posterior at X_NEW by N × N algebra in float64, in target units."""

    mean: np.ndarray
    covariance: np.ndarray
    noise: float
    nlml: float
    std_of_mean: (
        np.ndarray
    )  # how much a right-hand side off by one, in standardised units, moves each mean, at most


def matern32(A, B):
    r = np.sqrt((((A[:, None] - B[None]) / LENGTHSCALE) ** 2).sum(axis=-1))
    return VARIANCE * (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r)


def dense(X, y, *, center=None, standardize=True):
    mx, sx, m, s = X.mean(axis=0), X.std(axis=0), y.mean(), y.std()
    if not standardize:
        mx, sx, m, s = 0.0, 1.0, 0.0, 1.0
    m = m if center is None else center
    A, Z, t = (X - mx) / sx, (X_NEW - mx) / sx, (y - m) / s
    K, across = matern32(A, A) + NOISE * np.eye(len(y)), matern32(A, Z)
    explained = np.linalg.solve(K, across)
    total = t @ np.linalg.solve(K, t) + np.linalg.slogdet(K)[1] + len(y) * np.log(2 * np.pi)
    covariance = matern32(Z, Z) - across.T @ explained
    return Dense(
        m + s * explained.T @ t,
        s**2 * covariance,
        s**2 * NOISE,
        total / (2 * len(y)) + np.log(s),
        s * np.linalg.norm(explained, axis=0),
    )


def assert_is(model, exact, rtol=1e-5):
    """All that a model says equals the dense posterior, up to the rounding of rows and hyperparameters to float32."""
    size = exact.noise + np.diag(exact.covariance)
    near = {"rtol": rtol, "atol": rtol * float(size.max())}
    for include_noise in (False, True):
        noise = exact.noise if include_noise else 0.0
        mean, std = model.predict(X_NEW, return_std=True, include_noise=include_noise)
        assert_allclose(mean, exact.mean, rtol=rtol, atol=10 * rtol * float(np.sqrt(size).max()))
        assert_allclose(std**2, np.diag(exact.covariance) + noise, **near)
        covariance = model.predict(X_NEW, return_cov=True, include_noise=include_noise)[1]
        assert_allclose(covariance, exact.covariance + noise * np.eye(len(X_NEW)), **near)
    assert_allclose(model.noise_variance_, exact.noise, rtol=1e-6)
    assert_allclose(model.nlml_, exact.nlml, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_given_hyperparameters_give_the_dense_posterior_in_target_units(scale):
    model = given().fit(X, scale * y)
    assert_is(model, dense(X, scale * y))
    assert model.converged_ and model.plan_["variance"]["choice"] == "exact"


def test_a_prior_mean_is_in_target_units_and_rules_far_away():
    model = given(mean=-7.0).fit(X, y)
    assert_is(model, dense(X, y, center=-7.0))
    assert_allclose(model.predict(X_NEW + 1e6), -7.0)


def test_without_standardising_the_kernel_sees_the_data_as_they_are():
    assert_is(given(standardize=False).fit(X, y), dense(X, y, standardize=False), rtol=1e-4)


def test_weights_are_repetitions_and_order_does_not_matter():
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    order = np.random.default_rng(1).permutation(np.arange(len(y)).repeat(weight))
    weighted = given().fit(X, y, sample_weight=weight)
    assert_is(weighted, dense(X[order], y[order]))
    repeated = given().fit(X[order], y[order])
    assert_array_equal(repeated.predict(X_NEW), weighted.predict(X_NEW))
    assert repeated.nlml_ == weighted.nlml_


def test_single_precision_is_close_where_it_is_chosen(monkeypatch):
    monkeypatch.setattr(
        "stochgp.solvers.cholesky.SMALL", 10
    )  # rows up to which direct solves are in double precision
    model = given(solver="cholesky").fit(X, y)
    assert model._fitted.dtype == "float32"
    assert_is(model, dense(X, y), rtol=1e-3)


# Stochastic dual descent


@pytest.fixture(scope="module")
def descended():
    return given(solver=solvers.SDD(batch_size=16)).fit(X, y)


def test_dual_descent_is_as_close_as_its_residual_says(descended):
    """|m̂(x) − m(x)| = |k(x, X) A⁻¹r| ≤ ‖A⁻¹k(X, x)‖ ‖r‖, and ‖y‖ = √N for standardised targets."""
    exact = dense(X, y)
    residual = descended.fit_report_["residual"]
    bound = exact.std_of_mean * residual * np.sqrt(len(y)) + 1e-4 * y.std()
    assert np.all(np.abs(descended.predict(X_NEW) - exact.mean) < bound)
    assert descended.converged_ and residual < 0.01 and descended.n_iter_ > 0
    assert not hasattr(descended, "nlml_")


def test_conjugate_gradients_are_as_close_as_their_residual_says():
    exact, model = dense(X, y), given(solver="cg").fit(X, y)
    residual = model.fit_report_["residual"]
    bound = exact.std_of_mean * residual * np.sqrt(len(y)) + 1e-4 * y.std()
    assert model.converged_ and model.plan_["solver"]["choice"] == "CG"
    assert np.all(np.abs(model.predict(X_NEW) - exact.mean) < bound)


def test_variances_from_near_rows_are_nearly_exact(descended):
    """Near rows are nearly all, or all that say something."""
    exact = dense(X, y)
    std = descended.predict(X_NEW, return_std=True)[1]
    assert_allclose(std**2, np.diag(exact.covariance), rtol=0.02)
    assert descended.plan_["variance"]["choice"] == "near rows"
    prior = VARIANCE * y.std() ** 2
    assert np.all(descended.predict(1e3 * X, return_std=True)[1] ** 2 <= prior * (1 + 1e-5))
    assert np.all(std > 0)


def test_covariances_of_an_iterative_solver_are_never_below_the_exact_ones(descended):
    """It is that of the error of a linear predictor, of which the exact one is the least, and RᵀA⁻¹R more, R the residuals of k(X, Z)."""
    exact = dense(X, y)
    rounding = 1e-4 * exact.covariance.max()
    more = descended.predict(X_NEW, return_cov=True)[1] - exact.covariance
    assert np.linalg.eigvalsh(more).min() > -rounding
    rows, new = ((part - X.mean(axis=0)) / X.std(axis=0) for part in (X, X_NEW))
    residuals = descended._fitted.posterior.tolerance * np.linalg.norm(matern32(rows, new), axis=0)
    most = y.std() * residuals / np.sqrt(NOISE)  # the least eigenvalue of A is at least the noise variance
    assert np.all(np.abs(more) <= np.outer(most, most) + rounding)


# Files


@pytest.mark.parametrize("which", ["fitted", "descended", "local"])
def test_a_loaded_model_is_the_same_to_the_last_bit(which, request, tmp_path):
    model = given(solver="local").fit(X, y) if which == "local" else request.getfixturevalue(which)
    path = tmp_path / "model"
    model.save(path)
    for other in (stochgp.load(path), pickle.loads(pickle.dumps(model))):
        for mine, theirs in zip(
            model.predict(X_NEW, return_std=True), other.predict(X_NEW, return_std=True), strict=True
        ):
            assert_array_equal(mine, theirs)
        assert other.plan_ == model.plan_ and other.history_ == model.history_
        assert float(other.kernel_.variance) == float(model.kernel_.variance)
        if which != "local":
            assert_array_equal(
                other.predict(X_NEW, return_cov=True)[1], model.predict(X_NEW, return_cov=True)[1]
            )
            assert_array_equal(other.sample_functions(2)(X_NEW), model.sample_functions(2)(X_NEW))
    assert path.stat().st_size > 4 * X.size  # it holds the rows


def test_plans_are_json_with_a_reason_for_every_choice(fitted, descended):
    local = given(solver="local").fit(X, y)
    for model in (fitted, descended, local):
        json.dumps(model.plan_)
        assert all(set(entry) == {"choice", "why"} and entry["why"] for entry in model.plan_.values())
    assert fitted.plan_["solver"]["choice"] == "Cholesky"
    assert local.plan_["prediction"] == {"choice": "local", "why": "set by the user"}


# Local prediction


def test_local_prediction_with_all_rows_as_neighbours_is_global(fitted):
    """Up to the factor c on all variances, by which it is calibrated."""
    local = given(solver="local").fit(X, y)
    c = local._fitted.posterior.scale
    mean, std = local.predict(X_NEW, return_std=True)
    exact = fitted.predict(X_NEW, return_std=True)
    assert_allclose(mean, exact[0], rtol=1e-5)
    assert_allclose(std, np.sqrt(c) * exact[1], rtol=1e-4)
    assert_allclose(local.noise_variance_, c * fitted.noise_variance_, rtol=1e-6)
    noisy = local.predict(X_NEW, return_std=True, include_noise=True)[1]
    assert_allclose(noisy**2, std**2 + local.noise_variance_, rtol=1e-6)


# Limits


def test_what_exceeds_the_memory_limit_is_refused_with_both_numbers(fitted):
    with pytest.raises(ValueError, match=r"needs .*B on top of the .*B in use, .*memory_limit is 10 MB"):
        given(memory_limit="10MB").fit(X, y)
    many = np.zeros((1_000_000, 2))
    for limit, text in (("8GB", "8 GB"), (None, ".*B")):
        fitted.set_params(memory_limit=limit)
        with pytest.raises(
            ValueError, match=rf"covariance of 1000000 rows needs .*TB.* memory_limit is {text}"
        ):
            fitted.predict(many, return_cov=True)
    fitted.set_params(memory_limit=None)


def test_a_time_limit_ends_a_solve_with_the_best_point_and_says_so():
    with pytest.warns(ConvergenceWarning, match="time limit"):
        model = given(solver=solvers.SDD(batch_size=8), time_limit=1e-6).fit(X, y)
    assert not model.converged_ and np.isfinite(model.predict(X_NEW)).all()
    assert model.fit_report_["residual"] > 0.01


@pytest.mark.filterwarnings("ignore:the time limit ended the fit before the first step")
def test_a_checkpoint_of_the_learning_continues_to_the_same_result(tmp_path):
    settings = {"kernel": "rbf", "learner": learners.BSGD(epochs=100), "random_state": 0}
    whole = KernelGPRegressor(**settings).fit(X, y)
    first = KernelGPRegressor(**settings, time_limit=1e-6).fit(X, y, checkpoint=tmp_path / "c")
    assert first.n_iter_ < whole.n_iter_ and not first.converged_
    second = KernelGPRegressor(**settings).fit(X, y, checkpoint=tmp_path / "c")
    assert second.n_iter_ == whole.n_iter_
    assert_array_equal(second.predict(X_NEW), whole.predict(X_NEW))


# What comes in


@pytest.mark.filterwarnings("ignore:all targets are equal")
@pytest.mark.parametrize(
    "learner", [learners.FullBatch(epochs=4), learners.BSGD(epochs=4)], ids=["full-batch", "bsgd"]
)
@pytest.mark.parametrize(
    ("rows", "targets"),
    [
        (np.ones((1, 2)), np.array([3.0])),
        (X[:12], np.full(12, 1e6)),
        (np.column_stack([X[:12, 0], np.full(12, 7.0)]), y[:12]),
        (np.column_stack([X[:12, 0], 2 * X[:12, 0]]), y[:12]),
        (np.repeat(X[:3], 4, axis=0), np.repeat(y[:3], 4)),
        (np.repeat(X[:3], 4, axis=0), y[:12]),
        (X[:12], 1e6 * y[:12]),
        (X[:12], 1e-6 * y[:12]),
    ],
    ids=[
        "one row",
        "equal targets",
        "constant column",
        "collinear",
        "duplicates",
        "replicates",
        "1e6",
        "1e-6",
    ],
)
def test_degenerate_data_give_finite_answers(rows, targets, learner):
    """Twelve rows: fewer than a mini-batch of 16."""
    model = KernelGPRegressor("rbf", learner=learner, random_state=0).fit(rows, targets)
    mean, std = model.predict(rows, return_std=True, include_noise=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
    assert np.isfinite(model.nlml_) and model.noise_variance_ > 0
    if np.ptp(targets) == 0:
        assert_allclose(mean, targets, rtol=1e-6)


def test_frames_are_matched_by_name():
    frame = pd.DataFrame({"a": X[:, 0], "kind": np.where(X[:, 1] > -5, "up", "down")})
    model = KernelGPRegressor("rbf", learner=None, random_state=0).fit(frame, pd.Series(y, name="late"))
    assert list(model.feature_names_in_) == ["a", "kind"] and model.target_name_ == "late"
    expected = model.predict(frame)
    assert_array_equal(model.predict(frame[["kind", "a"]]), expected)
    assert_array_equal(model.sample_functions(2)(frame), model.sample_y(frame, 2))
    with pytest.raises(ValueError, match="lacks the column 'kind'"):
        model.predict(frame[["a"]])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"kernel": "matern33"}, "did you mean 'matern32'"),
        ({"learner": "bsdg"}, "did you mean 'bsgd'"),
        ({"solver": "cholesk"}, "did you mean 'cholesky'"),
        ({"solver": "locl"}, "did you mean 'local'"),
        ({"dtype": "float16"}, "dtype"),
        ({"likelihood": Gaussian(known_noise(0.0))}, "noise variance is 0"),
        ({"time_limit": -1}, "time_limit is -1"),
        ({"memory_limit": "1 apple"}, "not a size"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(setting, message):
    with pytest.raises(ValueError, match=message) as caught:
        given().set_params(**setting).fit(X, y)
    assert "\n" not in str(caught.value)


def test_bad_values_are_named_with_their_place(fitted):
    bad = X.copy()
    bad[4, 1] = np.nan
    strict = given().set_params(missing="refuse")
    with pytest.raises(ValueError, match="NaN at row 5, column 2"):
        strict.fit(bad, y)
    with pytest.raises(ValueError, match="NaN at row 5, column 2"):
        strict.fit(X, y).predict(bad)
    with pytest.raises(ValueError, match="cannot both be True"):
        fitted.predict(X_NEW, return_std=True, return_cov=True)


def test_verbose_writes_to_stderr_and_silence_writes_nothing(capsys):
    settings = {"learner": learners.BSGD(epochs=2), "random_state": 0}
    KernelGPRegressor(**settings, verbose=1).fit(X[:12], y[:12])
    captured = capsys.readouterr()
    assert captured.out == "" and "learning" in captured.err
    KernelGPRegressor(**settings).fit(X[:12], y[:12])
    assert capsys.readouterr() == ("", "")
