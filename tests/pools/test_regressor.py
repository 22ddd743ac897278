"""`GPRegressor`: which rows its members learn from, and that its predictions are the mixture of theirs."""

import pickle

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import QUICK, member
from sklearn.base import clone

from stochgp import FeatureGPRegressor, GPRegressor, KernelGPRegressor, SparseGPRegressor, learners, load
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import Mixture
from stochgp.distributions import Warped as WarpedDistribution
from stochgp.estimators.report import shortest_lengthscales
from stochgp.learners import SVGP
from stochgp.likelihoods import Gaussian, Warped
from stochgp.likelihoods.noise import known_noise
from stochgp.pools import members, regressor, weights
from stochgp.pools.division import BLOCK, SINGLE
from stochgp.pools.weights import PoolWeights, alone
from stochgp.transforms import Log

N = 1_000
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
F = np.sin(2 * X[:, 0]) + X[:, 1]
Y = 10 + F + 0.3 * GENERATOR.normal(size=N)
NEW = GENERATOR.uniform(-2, 2, (40, 2))
W = np.array([0.4, 0.6])


@pytest.fixture(scope="module", autouse=True)
def _quick_members():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(regressor, "REGRESSORS", QUICK)
        yield


@pytest.fixture(scope="module")
def default(_quick_members):
    return GPRegressor(random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def pool(_quick_members):
    """Of members with given weights."""
    weights = PoolWeights(["feature", "sparse"], W, "given")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(regressor, "weigh", lambda *_: weights)
        return GPRegressor(members=["feature", "sparse"], random_state=0).fit(X, Y)


def of_one(monkeypatch, name):
    monkeypatch.setattr(regressor, "weigh", lambda *_: alone(name, "given"))


def test_a_pool_predicts_and_has_learned_from_all_rows(default):
    assert default.n_rows_ == N and {"kernel", "linear", "trees"} == set(default.scores_)
    assert default.fit_report_["held_out_rows"] == N // 4 and abs(sum(default.weights_.values()) - 1) < 1e-9
    assert all(member.n_rows_ == N for member in default.estimators_.values())
    truth = 10 + np.sin(2 * NEW[:, 0]) + NEW[:, 1]
    assert np.sqrt(np.mean((default.predict(NEW) - truth) ** 2)) < 0.2
    assert "weight" in default.summary() and "nlpd" in default.summary()
    assert f"the mean of the targets: rmse {default.fit_report_['constant_rmse']:.4g}" in default.summary()
    assert 0.8 < default.fit_report_["constant_rmse"] / np.std(Y) < 1.25
    assert f"contain {default.fit_report_['coverage_90']:.1%} of the held-out targets" in default.summary()


def test_the_plan_of_a_default_pool_is_short(default):
    assert len(default.plan_) <= 15 and not any("." in name for name in default.plan_)


def test_predictions_are_the_mixture_of_the_members(pool):
    parts = list(pool.estimators_.values())
    for noise in (False, True):
        each = [member.predict(NEW, return_std=True, include_noise=noise) for member in parts]
        mean, std = pool.predict(NEW, return_std=True, include_noise=noise)
        expected = W[0] * each[0][0] + W[1] * each[1][0]
        squares = sum(w * (s**2 + (m - expected) ** 2) for w, (m, s) in zip(W, each, strict=True))
        assert_allclose(mean, expected)
        assert_allclose(std, np.sqrt(squares))
        covariance = pool.predict(NEW, return_cov=True)[1]
        assert_allclose(np.diag(covariance), pool.predict(NEW, return_std=True)[1] ** 2, rtol=1e-5)
        assert np.linalg.eigvalsh(covariance).min() > -1e-8
    found = pool.predict_distribution(NEW)
    assert isinstance(found, Mixture)
    each = [member.predict_distribution(NEW).cdf(10.0) for member in parts]
    assert_allclose(found.cdf(10.0), W[0] * each[0] + W[1] * each[1])
    lower, upper = pool.predict_interval(NEW, 0.9).T
    assert_allclose(found.cdf(lower), 0.05, atol=1e-6)
    assert_allclose(found.cdf(upper), 0.95, atol=1e-6)


def test_functions_are_of_the_members_in_proportion_to_their_weights(pool):
    S = 3_000
    draws = pool.sample_functions(S, 0)(NEW[:5])
    mean, std = pool.predict(NEW[:5], return_std=True)
    assert np.all(abs(draws.mean(axis=1) - mean) < 4 * std / S**0.5)
    assert_allclose(draws.std(axis=1), std, rtol=0.1)
    observed = pool.sample_y(NEW[:5], S, include_noise=True)
    assert_allclose(observed.std(axis=1), pool.predict(NEW[:5], True, include_noise=True)[1], rtol=0.1)


def test_files_and_pickles_give_the_same_bits(pool, tmp_path):
    pool.save(tmp_path / "pool.safetensors")
    for other in (load(tmp_path / "pool.safetensors"), pickle.loads(pickle.dumps(pool))):
        assert_array_equal(other.predict(NEW, True)[1], pool.predict(NEW, True)[1])
        assert other.plan_ == pool.plan_ and other.weights_ == pool.weights_
        assert other.fit_report_ == pool.fit_report_
        for name, one in pool.estimators_.items():
            assert_array_equal(other.estimators_[name].predict(NEW), one.predict(NEW))


def test_a_pool_of_equal_members_is_one_of_them():
    same = FeatureGPRegressor("linear", learner=learners.SCGD(epochs=5), likelihood="gaussian")
    found = GPRegressor(members={"one": same, "other": same}, random_state=0).fit(X[:200], Y[:200])
    assert len(found.estimators_) == 1 and list(found.weights_.values()) == [1.0]
    assert set(found.scores_) == {"one", "other"}


def test_no_member_sees_held_out_rows_before_members_are_compared(monkeypatch):
    seen, predictions, predict = [], [], regressor.predict_held_out

    class Spy(FeatureGPRegressor):
        def fit(self, X, y, *more, **others):
            seen.append(np.asarray(X))
            return super().fit(X, y, *more, **others)

    monkeypatch.setattr(
        regressor,
        "REGRESSORS",
        {"kernel": member(Spy, "rff", n_features=20, learner=learners.SCGD(epochs=1))},
    )
    monkeypatch.setattr(
        regressor, "predict_held_out", lambda *given: predictions.append(predict(*given)) or predictions[0]
    )
    GPRegressor(members=["kernel"], random_state=1).fit(X, Y)
    held = predictions[0].rows.X
    assert len(seen[0]) == N - N // 4 and len(held) == N // 4
    assert len(np.unique(np.concatenate([seen[0], held]), axis=0)) == N


def test_with_very_few_rows_a_kernel_gp_is_alone():
    n = regressor.MIN_ROWS_FOLDS - 1
    found = GPRegressor(random_state=0).fit(X[:n], Y[:n])
    seed = FitContext(found).seed("kernel")
    expected = QUICK["kernel"](None, None).set_params(random_state=seed).fit(X[:n], Y[:n])
    assert list(found.estimators_) == ["kernel"] and "too few" in found.plan_["members"]["why"]
    assert_allclose(found.predict(NEW), expected.predict(NEW), rtol=1e-6)
    assert f"{shortest_lengthscales(found.estimators_['kernel'])[0]} (kernel)" in found.summary()


def test_few_rows_are_predicted_fold_by_fold_by_members_that_have_all(monkeypatch):
    """Groups stay whole. Each fold is given the others, at the hyperparameters of all rows."""
    groups = np.arange(200, dtype=np.int32) // 10
    of_one(monkeypatch, "kernel")
    found = GPRegressor(random_state=0).fit(X[:200], Y[:200], groups=groups)
    assert set(found.scores_) == {"kernel", "trees"} and found.fit_report_["held_out_rows"] == 200
    kernel, rows = found.estimators_["kernel"], Data(X[:200], Y[:200], None, groups).merged()
    assert kernel.n_rows_ == 200
    fold = found._divide(rows, False, FitContext(found))[2]
    assert_array_equal(np.bincount(fold), np.full(5, 40))
    assert len(np.unique(np.column_stack([fold, rows.group]), axis=0)) == 20
    assert_allclose(found.scores_["kernel"]["nlpd"], -fold_out(kernel, rows, fold).mean(), rtol=1e-4)


def fold_out(kernel, rows, fold):
    """Log densities by a kernel GP that is given the rows of other folds in the units of the fit."""
    of_fit, density = kernel._fitted, np.empty(len(rows))
    base = getattr(of_fit.posterior, "base", of_fit.posterior)
    gram = jax.jit(lambda A, B: base.system.kernel.matrix(A, B))
    for k in np.unique(fold):
        seen, part = rows.take(fold != k), rows.take(fold == k)
        Z, z = (
            (of_fit.inputs.transform(r.X, np.float64) for r in (seen, part)),
            of_fit.targets.transform(seen.y),
        )
        Z, new = Z
        K = lambda A, B: np.asarray(gram(A, B))
        with jax.enable_x64(True):
            A = K(Z, Z) + np.diag(np.full(len(Z), float(base.noise.level)) / seen.weights)
            mean = K(new, Z) @ np.linalg.solve(A, z)
            variance = np.diag(K(new, new) - K(new, Z) @ np.linalg.solve(A, K(Z, new)))
        X_k = of_fit._rows(part.X)
        density[fold == k] = of_fit.observation.predict(mean[:, None], variance[:, None], X_k).logpdf(part.y)
    return density


@pytest.mark.parametrize("likelihood", ["gaussian", Warped("gaussian", Log(1.0))])
@pytest.mark.parametrize("mean", [None, "trees"])
def test_folds_of_linear_regression_are_those_of_fits_without_them(likelihood, mean):
    """Around trees the errors are those of the trees of other folds, less what their mean varies less."""
    rows = Data(X[:200], Y[:200]).merged()
    model = FeatureGPRegressor("linear", mean=mean, likelihood=likelihood).fit(rows.X, rows.y)
    fold, o = np.arange(200) % 4, model._fitted.observation
    found = model._fitted.fold_out(rows, fold)
    z, values = o.transformed(rows.y), 0.0
    if mean is not None:
        values = o.mean_function.left_out(Data(rows.X, z))
        assert np.mean((z - values) ** 2) > 1.2 * np.mean((z - o.mean_function(rows.X)) ** 2)
    y, Phi = (
        o.targets.transform(z - values),
        np.column_stack([np.ones(200), model._fitted.inputs.transform(rows.X, np.float64)]) / 3**0.5,
    )
    v, s2 = model._fitted.stream[1], float(model._fitted.posterior.noise.level)
    for k in range(4):
        some, rest = fold == k, fold != k
        F = v * Phi[rest].T @ Phi[rest] + s2 * np.eye(3)
        mean_k = v * Phi[some] @ np.linalg.solve(F, Phi[rest].T @ y[rest])
        outward = mean_k * o.scale + float(o.targets.mean) + (values if mean is None else values[some])
        base = found.base if isinstance(found, WarpedDistribution) else found
        assert_allclose(base.mean[some], outward, rtol=2e-3, atol=2e-3)
    # The variance of trees is largest at the rows whose errors they have learned; deviations of left-out rows do not show it.
    assert np.ptp(base.std) < 0.1 * base.std.mean()


def test_one_member_on_request_and_members_of_the_user():
    own = {
        "a": FeatureGPRegressor("rff", n_features=60, learner=learners.SCGD(epochs=2)),
        "b": FeatureGPRegressor("linear", learner=learners.SCGD(epochs=2)),
    }
    found = GPRegressor(members=own, ensemble=False, random_state=0).fit(X, Y)
    best = min(found.scores_, key=lambda name: found.scores_[name]["nlpd"])
    assert list(found.estimators_) == [best] and found.weights_ == {best: 1.0}
    assert own["a"].get_params()["random_state"] is None and not hasattr(own["a"], "plan_")


def test_counts_of_a_likelihood_of_counts_are_predicted_by_one_member():
    counts = np.random.default_rng(0).poisson(np.exp(0.5 * F)).astype(float)
    learner = lambda rate: SVGP(steps=40, batch_size=128, learning_rate=rate)
    settings = {"likelihood": "poisson", "n_inducing": 20}
    own = {str(rate): SparseGPRegressor("rbf", learner(rate), **settings) for rate in (0.03, 0.1)}
    found = GPRegressor(members=own, random_state=0).fit(X, counts)
    assert len(found.estimators_) == 1 and "cannot be mixed" in found.plan_["members"]["why"]
    assert found.predict_distribution(NEW).is_discrete


def test_unknown_members_are_refused():
    with pytest.raises(ValueError, match="did you mean 'kernel'"):
        GPRegressor(members=["kernle"]).fit(X, Y)
    with pytest.raises(TypeError, match="is a str, not a regressor"):
        GPRegressor(members={"kernel": "rbf"}).fit(X, Y)


def test_without_time_to_compare_the_first_member_is_alone(monkeypatch):
    def too_late(*_):
        raise TimeIsUpError

    monkeypatch.setattr(weights, "_predict", too_late)
    found = GPRegressor(members=["feature", "sparse"], random_state=0).fit(X, Y)
    assert found.weights_ == {"feature": 1.0} and "no time to compare" in found.plan_["members"]["why"]
    assert found.estimators_["feature"].n_rows_ == N and found.plan_["ended"]["choice"] == "time_limit"
    some, names = np.arange(N) < 9, ["kernel", "kernel_by_blocks", "linear_by_blocks"]
    role = np.where(some, SINGLE, BLOCK)
    of_first = found._weigh(dict.fromkeys(names), Data(X, Y), role, None, {}, FitContext(found))
    assert of_first.names == ["kernel_by_blocks"]


def test_with_a_short_time_limit_linear_regression_is_fitted_first(monkeypatch):
    """Its place in the pool stays the last. The first member that takes time is begun at any rate."""
    order, seconds = [], {"left": 6_000.0}

    class Spy(FeatureGPRegressor):
        def fit(self, *rows, **settings):
            order.append(self.features)
            if self.features != "linear":
                seconds["left"] = 0.0
            return super().fit(*rows, **settings)

    known = {
        name: member(Spy, of, n_features=60, learner=learners.SCGD(epochs=2))
        for name, of in (("feature", "rff"), ("sparse", "orf"))
    }
    known["linear"] = member(Spy, "linear")
    monkeypatch.setattr(regressor, "REGRESSORS", known)
    monkeypatch.setattr(members, "seconds_for_members", lambda _: seconds["left"])
    settings = {"likelihood": "gaussian", "random_state": 0, "time_limit": 6_000}
    found = GPRegressor(members=["feature", "sparse", "linear"], **settings).fit(X, Y)
    assert order == ["linear", "rff"] and list(found.scores_) == ["feature", "linear"]
    assert found.plan_["ended"]["choice"] == "time_limit" and "sparse" in found.plan_["ended"]["why"]


def test_a_likelihood_that_kernel_gps_do_not_take_is_refused():
    with pytest.raises(ValueError, match="only SparseGPRegressor accepts"):
        GPRegressor(likelihood="poisson").fit(X, Y)
    with pytest.raises(ValueError, match="likelihood"):
        GPRegressor(likelihood="gausian").fit(X, Y)


def test_a_refit_of_a_local_posterior_on_the_same_rows_changes_nothing():
    """The scale of its variances differs from 1 and must not become part of the noise."""
    settings = {"learner": None, "likelihood": Gaussian(known_noise(0.3)), "solver": "local"}
    member = KernelGPRegressor(**settings, random_state=0, time_order="interpolate").fit(X, Y)
    assert abs(member._fitted.posterior.scale - 1) > 0.1
    again = members.kernel_of_all_rows(member, Data(X, Y))
    for left, right in zip(*(m.predict(X[:9], return_std=True) for m in (member, again)), strict=True):
        assert_allclose(left, right, rtol=1e-5)


def test_a_kernel_gp_of_many_rows_or_little_memory_predicts_from_near_rows():
    solver = lambda n, limit: members.kernel(Data(np.zeros((n, 1)), np.zeros(n)), limit).solver
    most = members.MAX_GLOBAL_ROWS
    assert (solver(most, None), solver(most + 1, None)) == ("auto", "local")
    assert (solver(most, "4GB"), solver(100, "4GB")) == ("local", "auto")


@pytest.mark.parametrize("n", [N, 500])
def test_a_member_alone_has_calibrated_probabilities(n, monkeypatch):
    """A member predicts twice the deviation; intervals, too, are of the calibrated distribution. Members of the user do not predict folds."""
    of_one(monkeypatch, "wide")
    wide = KernelGPRegressor(learner=None, likelihood=Gaussian(known_noise(0.4)))
    own = {"wide": wide, "other": FeatureGPRegressor("linear", likelihood="gaussian")}
    found = GPRegressor(members=own, random_state=0).fit(X[:n], Y[:n])
    assert found.plan_["probabilities"]["choice"].startswith("Beta(")
    assert f"on {n // 4} held-out rows" in found.plan_["probabilities"]["why"]
    width = lambda model: np.diff(model.predict_interval(NEW, 0.5), axis=1).mean()
    assert width(found) < 0.8 * width(found.estimators_["wide"])
    assert_allclose(found.predict_interval(NEW, 0.5), found.predict_distribution(NEW).interval(0.5))


def test_trees_learn_again_from_all_rows():
    """Targets are a step, which neither a line nor waves fit."""
    steps = np.sign(X[:, 0]) + 3 * (X[:, 1] > 0.5) + 0.1 * GENERATOR.normal(size=N)
    found = GPRegressor(members=["linear", "trees"], random_state=0).fit(X, steps)
    assert list(found.estimators_) == ["trees"]
    trees = found.estimators_["trees"]
    expected = clone(trees).set_params(missing="auto").fit(X, steps)
    assert trees.n_rows_ == N
    of = lambda model: model._fitted.observation.mean_function(NEW)
    assert_allclose(of(trees), of(expected))
    assert_allclose(trees.predict(NEW), expected.predict(NEW), atol=1e-3)
    assert np.sqrt(np.mean((trees.predict(X) - steps) ** 2)) < 0.15


@pytest.fixture(scope="module")
def prices():
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(N, 2))
    return X, np.exp(X[:, 0] + 0.8 * generator.normal(size=N))


def of_line(**settings):
    line = FeatureGPRegressor("linear", learner=learners.SCGD(epochs=5), likelihood="gaussian")
    return GPRegressor(members={"line": line, "other": line}, random_state=0, **settings)


def test_quantiles_of_positive_skewed_targets_are_positive(prices, tmp_path):
    X, y = prices
    model = of_line().fit(X, y)
    assert model.plan_["positive"]["choice"] is True and "CRPS" in model.plan_["positive"]["why"]
    found = model.predict_distribution(X)
    assert np.all(found.quantile([1e-4, 0.025]) > 0) and np.all(found.logpdf(-0.1) == -np.inf)
    assert np.all(model.predict_interval(X)[:, 0] > 0)
    assert_allclose(model.predict(X, return_std=True, include_noise=True)[1], found.std)
    model.save(tmp_path / "model")
    assert_array_equal(load(tmp_path / "model").predict_interval(X), model.predict_interval(X))
    plain = of_line(target="real").fit(X, y)
    assert "positive" not in plain.plan_ and np.mean(plain.predict_interval(X)[:, 0] < 0) > 0.5
    assert found.crps(y).mean() <= plain.predict_distribution(X).crps(y).mean()
    for other in (y - 1.0, 20 + np.log(y)):
        model = of_line().fit(X, other)
        assert "positive" not in model.plan_ and not model._pooling.positive
