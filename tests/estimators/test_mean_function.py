"""A prior mean that is fitted first: a fit to what a line or trees leave, with these put back everywhere."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sweeps import some_of

import stochgp
from stochgp import FeatureGPRegressor, KernelGPRegressor, SparseGPRegressor, kernels, learners, likelihoods
from stochgp.contrib.joint_predictions import joint_moments, values
from stochgp.data.rows import Data
from stochgp.deadline import within
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.numerics.clustered import folds
from stochgp.numerics.seeds import as_key
from stochgp.observations import LinearMean, TreeMean, mean_function
from stochgp.posteriors import LocalPosterior

N = 300
RNG = np.random.default_rng(0)
X = RNG.normal(3.0, 2.0, (N, 3))
X = X[np.argsort(X[:, 0])]  # as fits have their rows: folds are of numbers of rows
SLOPE = np.array([2.0, -1.0, 0.0])
Y = 10 + X @ SLOPE + np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=N)
NEW = np.vstack([X[:5] + 0.1, X[:3] + 40.0])
LINE = LinearMean.fit(Data(X, Y))[0]

KERNEL = {
    "kernel": kernels.Matern32(1.0),
    "learner": None,
    "likelihood": Gaussian(known_noise(0.01)),
    "random_state": 0,
}
FITS = {
    "exact": lambda **more: KernelGPRegressor(**KERNEL | more),
    "local": lambda **more: KernelGPRegressor(**KERNEL | {"solver": "local"} | more),
    "sampled": lambda **more: KernelGPRegressor(**KERNEL | {"solver": "cg"} | more),
    "sparse": lambda **more: SparseGPRegressor(
        "matern32",
        n_inducing=20,
        learner=learners.SVGP(epochs=2),
        random_state=0,
        likelihood="gaussian",
        **more,
    ),
    "sparse student": lambda **more: SparseGPRegressor(
        "matern32",
        n_inducing=20,
        learner=learners.SVGP(epochs=2),
        random_state=0,
        likelihood="student-t",
        **more,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    with pytest.MonkeyPatch.context() as patched:
        few = dataclasses.replace(mean_function.BOOSTING, n_trees=60, rate=0.3, depth=5, patience=10)
        patched.setattr(mean_function, "BOOSTING", few)
        yield


PAIRS = [("linear", name) for name in FITS] + [("trees", name) for name in ("exact", "sparse student")]


@pytest.fixture(
    scope="module",
    params=some_of(PAIRS, [("linear", "exact"), ("linear", "sparse"), ("trees", "exact")]),
    ids=" ".join,
)
def pair(request, _few_trees):
    """(With the mean function, the same of the rest, the function)."""
    mean, make = request.param[0], FITS[request.param[1]]
    values = LINE(X) if mean == "linear" else TreeMean.fit(Data(X, Y))[1]
    one = make(mean=mean).fit(X, Y)
    return one, make().fit(X, Y - values), one._fitted.observation.mean_function


def test_the_line_is_ridge_regression_by_numpy():
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    gaps = []
    for penalty in 10.0 ** np.arange(-3, 6):
        b = np.linalg.solve(Z.T @ Z + penalty * np.eye(3), Z.T @ (Y - Y.mean()))
        gaps.append(np.max(np.abs(b / X.std(axis=0) - LINE.slope)))
    assert min(gaps) < 1e-10
    np.testing.assert_allclose(LINE(X).mean(), Y.mean(), rtol=1e-12)


def test_weights_of_the_line_count_as_copies():
    weight = RNG.integers(1, 4, N)
    copies = np.repeat(np.arange(N), weight)
    once = LinearMean.fit(Data(X, Y, weight.astype(float)))[0]
    many = LinearMean.fit(Data(X[copies], Y[copies]))[0]
    np.testing.assert_allclose(once(NEW), many(NEW), rtol=1e-4)  # left-out rows are one row, or one copy


def test_predictions_are_those_of_the_rest_with_the_line(pair):
    one, rest, m = pair
    mean, std = one.predict(NEW, return_std=True, include_noise=True)
    other, same = rest.predict(NEW, return_std=True, include_noise=True)
    np.testing.assert_allclose(mean, other + m(NEW), rtol=1e-9)
    of_f, of_rest = (model.predict(NEW, return_std=True)[1] for model in (one, rest))
    factor = 1.0 if isinstance(one, KernelGPRegressor) else m.noise_factor
    of_both = factor if m.residual > 0 and isinstance(one._fitted.observation.likelihood, Gaussian) else 1.0
    np.testing.assert_allclose(of_f**2, of_both * of_rest**2 + m.variance(NEW), rtol=1e-6)
    np.testing.assert_allclose(std**2 - of_f**2, factor * (same**2 - of_rest**2), rtol=1e-4)
    np.testing.assert_allclose(one.noise_variance_, factor * rest.noise_variance_, rtol=1e-6)
    np.testing.assert_allclose(one.predict(NEW, return_std=True)[0], mean, rtol=1e-9)
    np.testing.assert_allclose(one.predict_distribution(NEW).std, std, rtol=1e-6)
    low, high = one.predict_interval(NEW, 0.9).T
    np.testing.assert_allclose((low + high) / 2, mean, rtol=1e-6)


@pytest.mark.long
def test_draws_are_those_of_the_rest_with_the_line(pair):
    one, rest, m = pair
    if isinstance(one._fitted.posterior, LocalPosterior):  # which has no functions
        return
    f, g = (model.sample_functions(5, random_state=3) for model in (one, rest))
    if one._fitted.observation.inflation is not None:  # draws of the rest are wider
        g = rest._fitted.widened(m.noise_factor).sample_functions(5, key=as_key(3))
    of_mean = m(NEW)[:, None] + m.deviations(NEW) @ np.asarray(f.normals)
    np.testing.assert_allclose(f(NEW), g(NEW) + of_mean, rtol=1e-6, atol=1e-6)
    is_noise_given = isinstance(one, KernelGPRegressor)
    for noisy in (False, True) if is_noise_given else ():
        found, other = (part.sample_y(NEW, 5, random_state=3, include_noise=noisy) for part in (one, rest))
        np.testing.assert_allclose(found, other + of_mean, rtol=1e-6, atol=1e-6)
    single = jnp.asarray(NEW, jnp.float32)
    np.testing.assert_allclose(jax.jit(lambda X: f(X))(single), f(NEW), rtol=1e-4, atol=1e-4)
    slope = jax.jit(jax.grad(lambda x: f(x[None])[0, 0] - g(x[None])[0, 0]))(single[0])
    z = jnp.asarray(np.asarray(f.normals)[:, 0], jnp.float32)
    of_draw = lambda x: m(x[None], jnp)[0] + m.deviations(x[None], jnp)[0] @ z
    by = jax.jit(jax.grad(of_draw))(single[0])
    np.testing.assert_allclose(slope, by, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mean", ["linear", "trees"])
def test_draws_and_covariances_have_the_variance_of_f(mean):
    """Monte Carlo variances within four standard errors, of f and of observations; exact ones everywhere else."""
    model = FITS["exact"](kernel=kernels.Linear(0.01), mean=mean).fit(X, Y)
    n, covariance = 1_000, model.predict(NEW, return_cov=True)[1]
    for noisy in (False, True):
        std = model.predict(NEW, return_std=True, include_noise=noisy)[1]
        drawn = model.sample_y(NEW, n, random_state=1, include_noise=noisy)
        assert np.all(np.abs(np.var(drawn, axis=1) / std**2 - 1) < 4 * np.sqrt(2 / n))
        exact = model.predict(NEW, return_cov=True, include_noise=noisy)[1]
        np.testing.assert_allclose(np.diagonal(exact), std**2, rtol=1e-6)
    found, size = np.cov(drawn), np.sqrt(np.outer(std**2, std**2) / n)
    apart = ~np.eye(len(NEW), dtype=bool)
    assert np.all(np.abs(found - covariance)[apart] < 4 * 2**0.5 * size[apart])
    np.testing.assert_allclose(values(joint_moments(model), NEW[None])[1][0], covariance, rtol=1e-5)
    wide = model._fitted.widened(4.0).mean_and_std(NEW, include_noise=True)[1]
    np.testing.assert_allclose(wide, 2 * std, rtol=1e-9)


def test_values_on_the_line_are_those_without_the_row():
    Z, y = RNG.normal(size=(40, 12)), RNG.normal(size=40)
    values = LinearMean.fit(Data(Z, y))[1]
    centre, scale = Z.mean(axis=0), Z.std(axis=0)
    design, gaps = np.hstack([np.ones((40, 1)), (Z - centre) / scale]), []
    for penalty in 10.0 ** np.arange(-3, 6):
        ridge, without = penalty * np.diag([0.0] + [1.0] * 12), np.empty(40)
        for i in range(40):
            A, b = np.delete(design, i, axis=0), np.delete(y, i)
            without[i] = design[i] @ np.linalg.solve(A.T @ A + ridge, A.T @ b)
        gaps.append((np.mean((y - without) ** 2), np.max(np.abs(values - without))))
    assert min(gaps)[1] < 1e-9


def test_slopes_have_the_covariance_of_their_posterior_with_the_penalty_integrated_out():
    """Against quadrature over the penalties, of Gaussians given each with σ² integrated out."""
    Z, y = RNG.normal(size=(30, 4)), RNG.normal(size=30)
    line = LinearMean.fit(Data(Z, y))[0]
    scale, targets = Z.std(axis=0), y - y.mean()
    H = (Z - Z.mean(axis=0)) / scale
    weights, moments = [], []
    for penalty in 10.0 ** np.arange(-3, 6):
        K = np.eye(30) + H @ H.T / penalty
        square = targets @ np.linalg.solve(K, targets)
        prior = 1 / (penalty**0.5 + penalty**-0.5)
        weights.append(prior * np.linalg.det(K) ** -0.5 * square ** (-29 / 2))
        P = np.linalg.inv(H.T @ H + penalty * np.eye(4))
        off = P @ H.T @ targets - line.slope * scale
        moments.append(square / 27 * P + np.outer(off, off))
    exact = np.average(moments, axis=0, weights=weights) / np.outer(scale, scale)
    np.testing.assert_allclose(line.root @ line.root.T, exact, rtol=1e-8)
    new = RNG.normal(size=(5, 4)) / 10
    of_slopes = np.einsum("ni,ij,nj->n", new - line.center, exact, new - line.center)
    np.testing.assert_allclose(line.variance(new), of_slopes + line.residual / 30, rtol=1e-8)


def test_the_line_errs_by_what_left_out_rows_err_by():
    """n²/(n − v) is the variance of y given the other rows: 1/Q_ii, Q = (K + nI)⁻¹."""
    model = FITS["exact"](mean="linear").fit(X, Y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    with jax.enable_x64(True):
        K = np.asarray(model.kernel_.matrix(jnp.asarray(Z), jnp.asarray(Z)))
    left_out = 1 / np.diagonal(np.linalg.inv(K + 0.01 * np.eye(N)))
    line = model._fitted.observation.mean_function
    errors = np.mean(left_out) * model._fitted.target_scale**2
    np.testing.assert_allclose(line.width**2, min(1.0, errors / line.residual), rtol=1e-3)


def test_noise_around_a_line_is_that_of_new_rows():
    """σ² = 1, of 60 rows and 20 slopes: the mean over 40 tables within four standard errors, and Σ h = tr H."""
    factors, noise = [], []
    for _ in range(40):
        Z = RNG.normal(size=(60, 20))
        y = Z @ RNG.normal(size=20) + RNG.normal(size=60)
        line = LinearMean.fit(Data(Z, y))[0]
        noise.append(np.mean((y - line(Z)) ** 2) * line.noise_factor)
        factors.append(line.noise_factor)
    assert abs(np.mean(noise) - 1) < 4 * np.std(noise) / 40**0.5 + 0.02  # the bias of shrunk slopes
    assert min(factors) > 1


def test_far_from_the_rows_the_mean_is_the_line_within_one_width_of_their_range():
    model = FITS["exact"](mean="linear").fit(X, Y)
    low, high = X.min(axis=0), X.max(axis=0)
    beyond = np.vstack([high + 0.99 * (high - low), high + (high - low), np.full(3, 1e6), np.full(3, -1e6)])
    b = LINE.slope
    plain = Y.mean() + (beyond - X.mean(axis=0)) @ b
    found = LINE(beyond)
    np.testing.assert_allclose(found[:2], plain[:2], rtol=1e-9)
    np.testing.assert_allclose(found[2], found[1])
    np.testing.assert_allclose(found[3], Y.mean() + (2 * low - high - X.mean(axis=0)) @ b, rtol=1e-9)
    slopes = jax.vmap(jax.grad(lambda x: LINE(x[None], jnp)[0]))(jnp.asarray(beyond, jnp.float32))
    np.testing.assert_allclose(slopes[np.array([0, 2])], [b, 0 * b], rtol=1e-6)
    np.testing.assert_allclose(LINE(jnp.asarray(beyond, jnp.float32), jnp), found, rtol=1e-4)
    far = np.full((1, 3), 1e3)
    np.testing.assert_allclose(model.predict(far), LINE(far), rtol=1e-9)
    assert "a line" in model.summary() and model.plan_["mean"]["choice"] == "linear"


def test_of_transformed_targets_the_line_is_of_the_logarithm():
    y = np.exp(0.2 * Y)
    line = LinearMean.fit(Data(X, np.log(y)))[0]
    one = FITS["exact"](mean="linear", likelihood=likelihoods.Warped(Gaussian(known_noise(0.01)), "log")).fit(
        X, y
    )
    rest = FITS["exact"]().fit(X, np.log(y) - line(X))
    mean, std = rest.predict(NEW, return_std=True, include_noise=True)
    std = np.sqrt(std**2 + one._fitted.observation.mean_function.variance(NEW))
    shifted = np.exp(np.add.outer(mean + line(NEW), [0.0, 0.0]) + np.outer(std, norm.ppf([0.05, 0.95])))
    np.testing.assert_allclose(one.predict_interval(NEW, 0.9), shifted, rtol=1e-6)


def test_new_rows_join_what_the_line_leaves():
    one = FITS["exact"](mean="linear").fit(X[:250], Y[:250])
    line = one._fitted.observation.mean_function
    rest = FITS["exact"]().fit(X[:250], Y[:250] - line(X[:250]))
    one.update(X[250:], Y[250:])
    rest.update(X[250:], Y[250:] - line(X[250:]))
    np.testing.assert_allclose(one.predict(NEW), rest.predict(NEW) + line(NEW), rtol=1e-9)


def test_where_no_line_can_be_taken_out_it_is_said(tmp_path):
    with pytest.raises(ValueError, match="a feature GP does not accept mean='linear'"):
        FeatureGPRegressor("linear", mean="linear").fit(X, Y)
    path = tmp_path / "rows.csv"
    pd.DataFrame(X, columns=list("abc")).assign(y=Y).to_csv(path, index=False)
    with pytest.raises(ValueError, match="mean='linear' needs rows in memory"):
        SparseGPRegressor(mean="linear").fit(str(path), "y")
    with pytest.raises(ValueError, match="mean='trees' needs rows in memory"):
        FeatureGPRegressor("linear", mean="trees").fit(str(path), "y")
    with pytest.raises(ValueError, match="mean='linear' cannot be used with a likelihood of counts"):
        SparseGPRegressor(likelihood="poisson", mean="linear").fit(X, np.round(np.abs(Y)))
    with pytest.raises(
        ValueError, match="mean is 'constant'; it must be None, 'linear', 'trees' or a finite number"
    ):
        KernelGPRegressor(mean="constant").fit(X, Y)


OF_FEATURES = {"features": "linear", "likelihood": "gaussian", "random_state": 0}


def test_a_row_has_the_value_of_trees_that_have_not_seen_it_and_new_rows_that_of_all():
    weight = RNG.integers(1, 4, N).astype(float)
    found, values = TreeMean.fit(Data(X, Y, weight))
    fold, mean = folds(N, None, 5), np.average(Y, weights=weight)
    new, each = np.full(len(NEW), mean), []
    for k in range(5):
        seen, others = fold != k, fold == k
        targets, rho = Y[seen] - mean, weight[seen]
        trees = dataclasses.replace(mean_function.BOOSTING, share=0.8).fit(
            X[seen],
            lambda v, targets=targets, rho=rho: (rho * (v - targets), rho),
            X[others],
            lambda v, others=others: float(np.average((v - Y[others] + mean) ** 2, weights=weight[others])),
            k,
            rho,
        )
        np.testing.assert_allclose(values[others], mean + trees.on_host(X[others]), rtol=1e-9)
        new += trees.on_host(NEW) / 5
        each.append(trees.on_host(NEW))
    np.testing.assert_allclose(found(NEW), new, rtol=1e-9)
    np.testing.assert_allclose(found.variance(NEW), 4 / 5 * 5 * np.var(each, axis=0), rtol=1e-9)
    error = np.average((Y - values) ** 2, weights=weight)
    share = np.average(found.variance(X), weights=weight) / error
    np.testing.assert_allclose(found.noise_factor, max(1 - share, 0.1), rtol=1e-9)
    np.testing.assert_allclose(found(jnp.asarray(NEW, jnp.float32), jnp), new, rtol=1e-4)


def test_groups_are_learned_from_as_a_whole():
    """A tree that has seen other rows of a group knows its level; new groups have levels of their own."""
    group = np.repeat(np.arange(60, dtype=np.int32), 10)
    Z, level = group[:, None].astype(float), RNG.normal(size=60)[group]
    apart, whole = (np.var(level - TreeMean.fit(Data(Z, level, None, g))[1]) for g in (None, group))
    assert apart < 0.1 * np.var(level) and whole > 0.7 * np.var(level)


def test_without_time_or_other_rows_there_are_no_trees():
    with within(0.0):
        found = TreeMean.fit(Data(X, Y))[0]
    np.testing.assert_allclose(found(NEW), Y.mean())
    one, value = TreeMean.fit(Data(X[:1], Y[:1]))
    np.testing.assert_array_equal([one(NEW[:1])[0], value[0]], Y[[0, 0]])


def test_trees_of_a_transformed_target_are_fitted_once(monkeypatch):
    fitted, fit = [], TreeMean.fit
    monkeypatch.setattr(TreeMean, "fit", lambda rows: fitted.append(rows.y) or fit(rows))
    model = FeatureGPRegressor(
        **OF_FEATURES | {"likelihood": likelihoods.Warped("gaussian", "log")}, mean="trees"
    ).fit(X, np.exp(Y / 10))
    assert len(fitted) == 1
    np.testing.assert_allclose(np.sort(fitted[0]), np.sort(Y / 10))
    assert model.plan_["mean"]["choice"] == "trees"


def test_new_rows_join_a_stream_of_what_trees_leave_and_a_file_has_the_trees(tmp_path):
    first = np.arange(N) % 6 > 0
    one = FeatureGPRegressor(**OF_FEATURES, mean="trees").fit(X[first], Y[first])
    trees, values = TreeMean.fit(Data(X[first], Y[first]))
    rest = FeatureGPRegressor(**OF_FEATURES).fit(X[first], Y[first] - values)
    np.testing.assert_allclose(one.predict(NEW), rest.predict(NEW) + trees(NEW), rtol=1e-9)
    one.partial_fit(X[~first], Y[~first])
    rest.partial_fit(X[~first], Y[~first] - trees(X[~first]))
    np.testing.assert_allclose(one.predict(NEW), rest.predict(NEW) + trees(NEW), rtol=1e-9)
    one.save(tmp_path / "model.safetensors")
    again = stochgp.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(NEW, True), one.predict(NEW, True))
    assert "minus trees" in one.summary() and "explained by trees" in one.plan_["mean"]["why"]
