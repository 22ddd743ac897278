"""Transformed targets: everything in the units of y, positive intervals of positive targets, a gate that refuses what does not help."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sweeps import some_of

from stochgp import (
    FeatureGPRegressor,
    KernelGPRegressor,
    SparseGPRegressor,
    learners,
    likelihoods,
    load,
    metrics,
    transforms,
)
from stochgp.choosing import Preference, prefer
from stochgp.distributions import Rounded, Warped
from stochgp.families import targets
from stochgp.families.targets import fit_transforms
from stochgp.observations.error_distribution import SCALED

POSITIVE, COUNTED = likelihoods.Warped("auto", "log"), likelihoods.Warped("auto", "count")
RNG = np.random.default_rng(8)
N = 120
X = RNG.uniform(-2, 2, size=(N, 2))
F = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
Z = F + 0.2 * RNG.normal(size=N)
Y = np.exp(1 + Z)
X_NEW = RNG.uniform(-2, 2, size=(7, 2))
GIVEN = {"kernel": "rbf", "learner": None, "solver": "cholesky", "random_state": 0}


@pytest.fixture(scope="module")
def positive():
    return KernelGPRegressor(**GIVEN, likelihood=POSITIVE).fit(X, Y)


@pytest.fixture(scope="module")
def of_logs():
    return KernelGPRegressor(**GIVEN).fit(X, np.log(Y))


def test_positive_targets_are_the_model_of_their_logarithms(positive, of_logs):
    found, base = positive.predict_distribution(X_NEW), of_logs.predict_distribution(X_NEW)
    y = np.exp(base.quantile(0.3))
    assert_allclose(found.logpdf(y), base.logpdf(np.log(y)) - np.log(y), rtol=1e-9)
    assert_allclose(
        positive.predict_quantiles(X_NEW, [0.1, 0.9]), np.exp(of_logs.predict_quantiles(X_NEW, [0.1, 0.9]))
    )
    assert_allclose(positive.predict(X_NEW), np.exp(base.mean + base.std**2 / 2), rtol=1e-9)
    assert np.all(positive.predict_interval(X_NEW, 0.999) > 0)


def test_without_noise_the_spread_is_smaller_and_draws_are_of_the_transform(positive, of_logs):
    mean, std = positive.predict(X_NEW, return_std=True)
    same, wide = positive.predict(X_NEW, return_std=True, include_noise=True)
    assert_array_equal(mean, same)
    assert np.all(std < wide)
    draws, logs = (model.sample_y(X_NEW, 3, random_state=4) for model in (positive, of_logs))
    assert_allclose(draws, np.exp(logs), rtol=1e-6)
    assert np.all(positive.sample_y(X_NEW, 5, include_noise=True) > 0)
    with pytest.raises(ValueError, match="return_cov is not available"):
        positive.predict(X_NEW, return_cov=True)


def test_new_rows_are_transformed_too():
    grown = KernelGPRegressor(**GIVEN, likelihood=POSITIVE).fit(X[:-5], Y[:-5]).update(X[-5:], Y[-5:])
    logs = KernelGPRegressor(**GIVEN).fit(X[:-5], np.log(Y[:-5])).update(X[-5:], np.log(Y[-5:]))
    q = [0.1, 0.6]
    assert_allclose(grown.predict_quantiles(X_NEW, q), np.exp(logs.predict_quantiles(X_NEW, q)), rtol=1e-9)
    with pytest.raises(ValueError, match="positive targets"):
        grown.update(X_NEW, -np.ones(len(X_NEW)))
    assert grown.nlml_ == pytest.approx(logs.nlml_ + np.mean(np.log(Y)), rel=1e-9)


def test_counts_are_predicted_as_counts():
    counts = RNG.poisson(Y).astype(float)
    model = KernelGPRegressor(**GIVEN, likelihood=COUNTED).fit(X, counts)
    found = model.predict_distribution(X_NEW)
    k = np.arange(2000.0)
    assert_allclose(np.exp(found.logpdf(np.tile(k, (len(X_NEW), 1)))).sum(axis=1), 1, rtol=1e-6)
    interval = model.predict_interval(X_NEW)
    assert np.all(interval >= 0) and np.all(interval == np.rint(interval))
    draws = model.sample_y(X_NEW, 4, include_noise=True)
    assert np.all(draws >= 0) and np.all(draws == np.rint(draws))


def test_a_fitted_transform_has_a_higher_held_out_density():
    """Of targets whose logarithms are a GP with noise; the logarithm itself has the highest."""
    x = RNG.uniform(-2, 2, size=(450, 1))
    y = np.exp(np.sin(2 * x[:, 0]) + 0.3 * RNG.normal(size=450))
    _, found = fit_transforms({"a": transforms.SinhArcsinh(), "log": transforms.Log()}, x, y, seed=0)
    assert found.gains["a"].n_rows == 150 and found.name is not None
    a, log = found.gains["a"], found.gains["log"]
    assert a.mean > 2 * a.error and log.mean > a.mean - 2 * a.error


def test_an_asked_for_transform_is_used_with_its_evidence():
    model = KernelGPRegressor(**GIVEN, likelihood=likelihoods.Warped("gaussian", "sinh-arcsinh")).fit(X, Y)
    assert model.plan_["transform"]["choice"] == "SinhArcsinh" and "±" in model.plan_["transform"]["why"]
    plain = KernelGPRegressor(**GIVEN).fit(X, Y)
    new = RNG.uniform(-2, 2, size=(200, 2))
    y = np.exp(1 + np.sin(2 * new[:, 0]) + 0.5 * new[:, 1] + 0.2 * RNG.normal(size=200))
    assert (
        metrics.nlpd(y, model.predict_distribution(new))
        < metrics.nlpd(y, plain.predict_distribution(new)) - 0.1
    )


def test_few_rows_get_no_transform_of_auto():
    model = KernelGPRegressor(**GIVEN, likelihood=likelihoods.Warped("gaussian", "auto")).fit(X[:60], Y[:60])
    assert model.plan_["transform"]["choice"] is None
    plain = KernelGPRegressor(**GIVEN).fit(X[:60], Y[:60])
    assert_array_equal(model.predict(X_NEW), plain.predict(X_NEW))


@pytest.mark.parametrize("seed", some_of([0, 1], [0]))
def test_gaussian_targets_refuse_a_transform(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(450, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=450)
    _, found = fit_transforms({"a": transforms.SinhArcsinh()}, x, y, seed=seed)
    assert found.gains["a"].n_rows == 150 and found.name is None


COUNT = np.random.default_rng(1).integers(1, 5, N)


def test_whole_groups_judge_and_rows_weigh_what_they_count(monkeypatch):
    """Errors of gains are those of sums over groups, here of 12 of 36."""
    group, seen, rng = np.repeat(np.arange(36), 10).astype(np.int32), [], np.random.default_rng(2)
    rows, count = rng.uniform(-2, 2, size=(360, 2)), rng.integers(1, 5, 360)
    y = np.exp(np.sin(2 * rows[:, 0]) + 0.2 * rng.normal(size=360))
    monkeypatch.setattr(
        targets, "prefer", lambda *given, **more: seen.append(given) or prefer(*given, **more)
    )
    tried = {"a": transforms.Log()}
    _, found = fit_transforms(tried, rows, y, seed=0, group=group, weight=count.astype(float))
    _, held = targets._sides(360, 0, group)
    base, scores, cell, weight = seen[0]
    gains = scores["a"] - base
    assert_array_equal(weight, count[held])
    assert_array_equal(cell[:, None] == cell, group[held][:, None] == group[held])
    sums = np.bincount(cell, weight * (gains - np.average(gains, weights=weight))) / weight.sum()
    assert found.gains["a"].error == pytest.approx(np.sqrt(12 / 11 * np.sum(sums**2)), rel=1e-12)
    _, few = fit_transforms(tried, X, Y, seed=0, group=np.repeat(np.arange(12), 10).astype(np.int32))
    assert few.name is None and "too few" in few.why


@pytest.mark.parametrize("T", [None, transforms.anchored(transforms.SinhArcsinh(0.8, 0.2), Y)])
def test_rows_that_count_are_repeated_rows_in_the_fit_of_a_transform(T):
    """The loss per datum, but for the jitter, and the densities of new rows."""
    theta, start = np.log([0.7, 1.1, 1.3, 0.2]), np.zeros(4)
    one = X[:30], Y[:30], COUNT[:30].astype(float)
    many = tuple(np.repeat(part, COUNT[:30], axis=0) for part in (*one[:2], np.ones(30)))

    def loss(inputs, y, count):
        z, others = targets._outward(T, np.array([] if T is None else T.raw), y, count, 0.3)
        return (targets._loss(theta, z, inputs, count, start)[0] + others) / count.sum()

    assert loss(*one) == pytest.approx(loss(*many), rel=1e-6)
    found, wanted = (targets._held_out((T, theta), *rows, X[30:40], Y[30:40]) for rows in (one, many))
    assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", ["auto", "sinh-arcsinh"])
def test_weights_reach_the_fit_of_a_transform(name, monkeypatch):
    seen = []

    def judged(tried, X, y, **given):
        seen.append(given["weight"])
        return next(iter(tried.values())), Preference(None, {}, "")

    monkeypatch.setattr(targets, "fit_transforms", judged)
    settings = GIVEN | {"likelihood": likelihoods.Warped("gaussian", name)}
    KernelGPRegressor(**settings).fit(X, Y, COUNT)
    order = np.lexsort((Y, X[:, 1], X[:, 0]))
    assert seen and all(np.array_equal(weight, COUNT[order]) for weight in seen)


def test_the_likelihood_has_the_jacobian_of_rows_that_count():
    model = KernelGPRegressor(**GIVEN, likelihood=POSITIVE).fit(X, Y, COUNT)
    logs = KernelGPRegressor(**GIVEN).fit(X, np.log(Y), COUNT)
    wanted = logs.nlml_ + np.average(np.log(Y), weights=COUNT)
    assert model.nlml_ == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "y", "words"),
    [
        ({"likelihood": POSITIVE}, Z, "the transform Log needs positive targets"),
        ({"likelihood": COUNTED}, -Y, "counts must be whole numbers of at least 0"),
        ({"likelihood": COUNTED}, Y, "counts must be whole numbers of at least 0"),
        ({"likelihood": likelihoods.Warped("normal", "log")}, Y, "unknown likelihood 'normal'"),
        ({"likelihood": likelihoods.Warped(likelihoods.Bernoulli(), "log")}, Y, "likelihood must be a name"),
    ],
)
def test_what_cannot_be_used_is_refused(settings, y, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        KernelGPRegressor(**GIVEN, **settings).fit(X, y)
    assert "\n" not in str(caught.value)


def test_unknown_transforms_are_named():
    with pytest.raises(ValueError, match="did you mean 'log'"):
        likelihoods.Warped("gaussian", "logg")
    with pytest.raises(TypeError, match="or an object of stochgp.transforms"):
        likelihoods.Warped("gaussian", 3)


def test_the_dispersion_of_observations_is_that_of_the_transformed_targets():
    """Noise that depends on the input, of log y."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-2, 2, size=(560, 2))
    z = np.sin(2 * x[:, 1]) + np.where(x[:, 0] > 0, 0.8, 0.08) * rng.normal(size=560)
    settings = {"learner": learners.FullBatch(epochs=10), "random_state": 0}
    model = KernelGPRegressor("rbf", likelihood=POSITIVE, **settings).fit(x, np.exp(z))
    logs = KernelGPRegressor("rbf", **settings)
    vars(logs)["_chosen_likelihood"] = SCALED
    logs.fit(x, np.log(np.exp(z)))
    assert model.plan_["likelihood"]["choice"] == SCALED
    assert "student-t" not in model.plan_["likelihood"]["why"]
    q = [0.1, 0.8]
    assert_allclose(model.predict_quantiles(X_NEW, q), np.exp(logs.predict_quantiles(X_NEW, q)), rtol=1e-9)
    low, high = np.array([[-1.0, 0.0]]), np.array([[1.0, 0.0]])
    wide, narrow = (np.diff(np.log(model.predict_interval(at)))[0, 0] for at in (high, low))
    assert wide > 4 * narrow


@pytest.mark.parametrize(("transform", "compared"), [("log", False), ("sinh-arcsinh", True)])
def test_heavy_tails_are_compared_only_where_there_is_a_mean(transform, compared):
    """z has Student-t noise; T⁻¹ of the last is nearly a straight line."""
    rng = np.random.default_rng(6)
    x = rng.uniform(-2, 2, size=(300, 1))
    z = np.sin(2 * x[:, 0]) + 0.1 * rng.standard_t(2.5, size=300)
    y = z if transform == "sinh-arcsinh" else np.exp(z)
    likelihood = likelihoods.Warped("auto", transform)
    model = KernelGPRegressor(
        "rbf", learner=learners.FullBatch(epochs=10), random_state=0, likelihood=likelihood
    )
    model.fit(x, y)
    assert ("student-t" in model.plan_["likelihood"]["why"]) == compared
    assert model.predict_distribution(X_NEW[:, :1]).tail_index > 1


def test_heavy_tails_of_logarithms_are_there_when_asked_for():
    likelihood = likelihoods.Warped("student-t", "log")
    model = KernelGPRegressor(**GIVEN, likelihood=likelihood).fit(X, Y)
    logs = KernelGPRegressor(**GIVEN, likelihood="student-t").fit(X, np.log(Y))
    q = [0.01, 0.5, 0.9]
    assert_allclose(model.predict_quantiles(X_NEW, q), np.exp(logs.predict_quantiles(X_NEW, q)), rtol=1e-9)
    with pytest.warns(UserWarning, match="no mean"):
        assert_allclose(model.predict(X_NEW), model.predict_quantiles(X_NEW, [0.5])[:, 0], rtol=1e-9)
    rounded = Rounded(model.predict_distribution(X_NEW))
    with pytest.warns(UserWarning, match="no mean"):
        assert_array_equal(rounded.mean, rounded.quantile(0.5))
    low, high = rounded.limits  # that the training targets support
    assert np.all(rounded.std < high - low)


FEATURES = {"n_features": 40, "learner": learners.SCGD(epochs=3), "random_state": 0, "likelihood": "gaussian"}


@pytest.fixture(scope="module")
def features():
    """Of positive targets, and of their logarithms."""
    rows = np.tile(X, (2, 1)) + 0.01 * RNG.normal(size=(2 * N, 2))
    y = np.tile(Y, 2)
    return (
        (rows, y),
        FeatureGPRegressor("rff", **FEATURES | {"likelihood": likelihoods.Warped("gaussian", "log")}).fit(
            rows, y
        ),
        FeatureGPRegressor("rff", **FEATURES).fit(rows, np.log(y)),
    )


def test_feature_models_of_positive_targets_are_those_of_logarithms(features):
    (_, y), model, logs = features
    q = [0.1, 0.6]
    assert_allclose(model.predict_quantiles(X_NEW, q), np.exp(logs.predict_quantiles(X_NEW, q)), rtol=1e-12)
    assert model.nlml_ == pytest.approx(logs.nlml_ + np.mean(np.log(y)), rel=1e-9)
    assert model.history_[-1]["nlml"] == pytest.approx(logs.history_[-1]["nlml"] + np.mean(np.log(y)))
    assert model.noise_variance_ == logs.noise_variance_


def test_feature_models_take_in_positive_targets(features, tmp_path):
    (_, y), model, logs = features
    model.save(tmp_path / "m")
    logs.save(tmp_path / "l")
    new = 2 * np.exp(RNG.normal(size=len(X_NEW)))
    grown, of_logs = load(tmp_path / "m"), load(tmp_path / "l")
    grown.partial_fit(X_NEW, new, forget=0.5)
    of_logs.partial_fit(X_NEW, np.log(new), forget=0.5)
    weights = np.concatenate([np.full(len(y), 0.5), np.ones(len(new))])
    shift = np.average(np.log(np.concatenate([y, new])), weights=weights)
    assert_allclose(grown.predict_quantiles(X_NEW, [0.3]), np.exp(of_logs.predict_quantiles(X_NEW, [0.3])))
    assert grown.nlml_ == pytest.approx(of_logs.nlml_ + shift, rel=1e-9)
    assert grown.drift_ == of_logs.drift_
    with pytest.raises(ValueError, match="positive targets"):
        grown.partial_fit(X_NEW, -new)


def test_sparse_models_of_positive_targets_are_those_of_logarithms():
    settings = {"learner": learners.SGPR(epochs=3), "n_inducing": 10, "random_state": 0}
    model = SparseGPRegressor(**settings, likelihood=POSITIVE).fit(X, Y)
    logs = SparseGPRegressor(**settings).fit(X, np.log(Y))
    q = [0.1, 0.6]
    assert_allclose(model.predict_quantiles(X_NEW, q), np.exp(logs.predict_quantiles(X_NEW, q)), rtol=1e-12)
    assert model.elbo_ == pytest.approx(logs.elbo_ - np.mean(np.log(Y)), rel=1e-9)


@pytest.mark.long
def test_streams_of_positive_targets_are_those_of_logarithms():
    learner = learners.SVDGP(20, 3, mirror_rate=learners.InverseRoot(1.0, 1.0))
    settings, q = {"learner": learner, "n_inducing": 10, "random_state": 0}, [0.1, 0.6]
    of_positive = (
        SparseGPRegressor(**settings, likelihood=POSITIVE).fit(X, Y).partial_fit(X_NEW, Y[: len(X_NEW)])
    )
    of_logs = SparseGPRegressor(**settings).fit(X, np.log(Y)).partial_fit(X_NEW, np.log(Y[: len(X_NEW)]))
    assert_allclose(of_positive.predict_quantiles(X, q), np.exp(of_logs.predict_quantiles(X, q)), rtol=1e-6)


def test_learned_transforms_are_saved_and_drawn_from(tmp_path):
    model = KernelGPRegressor(**GIVEN, likelihood=likelihoods.Warped("gaussian", "sinh-arcsinh")).fit(X, Y)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert_array_equal(again.predict_quantiles(X_NEW, [0.2]), model.predict_quantiles(X_NEW, [0.2]))
    assert type(again.predict_distribution(X_NEW)) is Warped
    functions = model.sample_functions(3)
    found = jax.jit(lambda X: functions(X))(jnp.asarray(X_NEW, jnp.float32))
    assert found.dtype == jnp.float32
    assert_allclose(np.asarray(found), functions(X_NEW), rtol=1e-3)
    draws = model.sample_y(X_NEW, 500, random_state=1, include_noise=True)
    u = model.predict_distribution(X_NEW).cdf(draws)
    assert np.all(np.abs(u.mean(axis=1) - 0.5) < 4 / np.sqrt(12 * 500))


def test_a_mean_is_one_of_the_targets_as_given():
    far = np.full((1, 2), 1e3)
    model = KernelGPRegressor(**GIVEN, likelihood=POSITIVE, mean=2.5).fit(X, Y)
    assert model.predict_quantiles(far, [0.5])[0, 0] == pytest.approx(2.5, rel=1e-6)
    whole = KernelGPRegressor(**GIVEN, likelihood=POSITIVE, mean=np.int64(2)).fit(X, Y)
    assert whole.predict_quantiles(far, [0.5])[0, 0] == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(ValueError, match="positive targets"):
        KernelGPRegressor(**GIVEN, likelihood=POSITIVE, mean=-1.0).fit(X, Y)


def test_slopes_of_the_fit_of_a_transform_are_those_of_differences(monkeypatch):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(20, 2))
    y = np.exp(X[:, 0] + 0.1 * generator.normal(size=20))
    seen = []

    def minimize(evaluate, begin, **options):
        point = begin + 0.1 * generator.normal(size=len(begin))
        value, slope = evaluate(point)
        steps = 1e-5 * np.eye(len(point))
        assert_allclose(
            slope, [(evaluate(point + h)[0] - evaluate(point - h)[0]) / 2e-5 for h in steps], atol=1e-6
        )
        seen.append(value)
        return SimpleNamespace(x=point)

    monkeypatch.setattr(targets.scipy.optimize, "minimize", minimize)
    tried = {"a": transforms.SinhArcsinh(), "b": transforms.SinhArcsinh(0.5), "c": transforms.Log()}
    fit_transforms(tried, X, y, seed=0)
    assert len(seen) == 4
