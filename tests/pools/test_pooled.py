"""`GPRegressor`: what members see, and that the pool's predictions are the mixture of theirs."""

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import QUICK
from sklearn.base import clone

from stochgp import FeatureGPRegressor, GPRegressor, KernelGPRegressor, SparseGPRegressor, load
from stochgp.budget import Budget
from stochgp.data.rows import Rows
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import Mixture
from stochgp.learners import SVGP
from stochgp.likelihoods import Warped
from stochgp.numerics.seeds import as_key, seed_of, split
from stochgp.pools import comparing, joining, pool_division, pooled, pooled_regressor
from stochgp.pools.pool_run import Given
from stochgp.pools.pooling import Pooling, distance_of, limited
from stochgp.transforms import ShiftedLog

N = 1_200
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
F = np.sin(2 * X[:, 0]) + X[:, 1]
Y = 10 + F + 0.3 * GENERATOR.normal(size=N)
NEW = GENERATOR.uniform(-2, 2, (40, 2))


@pytest.fixture(autouse=True)
def quick_members(monkeypatch):
    monkeypatch.setattr(pooled_regressor, "FAMILIES", QUICK)


@pytest.fixture(scope="module")
def model():
    """Of members whose weights are set, so that both count."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pooled_regressor, "FAMILIES", QUICK)
        found = GPRegressor(random_state=0).fit(X, Y)
        both = GPRegressor(members=["feature", "sparse"], random_state=0)
        picked = pooled.alone(0, "")._replace(
            members=[0, 1], level=np.array([0.0, 0.4]), slope=np.zeros(2), average=np.array([0.4, 0.6])
        )
        patched.setattr(comparing, "chosen", lambda *_, **__: picked)
        return found, both.fit(X, Y)


def test_a_pool_predicts_and_knows_all_rows(model):
    found = model[0]
    assert found.n_rows_ == N and set(found.weights_) <= {"kernel", "feature", "linear", "trees"}
    assert abs(sum(found.weights_.values()) - 1) < 1e-9
    for member in found.estimators_.values():
        assert member.n_rows_ == N
    mean = found.predict(NEW)
    assert np.sqrt(np.mean((mean - 10 - np.sin(2 * NEW[:, 0]) - NEW[:, 1]) ** 2)) < 0.2
    assert {"kernel", "feature", "linear", "trees"} == set(found.scores_)
    assert "weight" in found.summary() and "nlpd" in found.summary()


def test_predictions_are_the_mixture_of_the_members(model):
    pool = model[1]
    w = np.exp([0.0, 0.4]) / np.exp([0.0, 0.4]).sum()
    members = list(pool.estimators_.values())
    for noise in (False, True):
        each = [member.predict(NEW, return_std=True, include_noise=noise) for member in members]
        mean, std = pool.predict(NEW, return_std=True, include_noise=noise)
        wanted = w[0] * each[0][0] + w[1] * each[1][0]
        squares = sum(a * (s**2 + (m - wanted) ** 2) for a, (m, s) in zip(w, each, strict=True))
        assert_allclose(mean, wanted)
        assert_allclose(std, np.sqrt(squares))
        covariance = pool.predict(NEW, return_cov=True, include_noise=noise)[1]
        assert_allclose(np.diag(covariance), std**2, rtol=1e-5)
        assert np.linalg.eigvalsh(covariance).min() > -1e-8
    found = pool.predict_distribution(NEW)
    base = found if isinstance(found, Mixture) else found.base
    parts = [member.predict_distribution(NEW) for member in members]
    assert_allclose(base.cdf(10.0), w[0] * parts[0].cdf(10.0) + w[1] * parts[1].cdf(10.0))
    lower, upper = pool.predict_interval(NEW, 0.9).T
    assert_allclose(found.cdf(lower), 0.05, atol=1e-6)
    assert_allclose(found.cdf(upper), 0.95, atol=1e-6)


def test_functions_are_of_the_members_in_proportion_to_their_weights(model):
    pool, S = model[1], 3_000
    draws = pool.sample_functions(S, 0)(NEW[:5])
    mean, std = pool.predict(NEW[:5], return_std=True)
    assert np.all(abs(draws.mean(axis=1) - mean) < 4 * std / S**0.5)
    assert_allclose(draws.std(axis=1), std, rtol=0.1)
    observed = pool.sample_y(NEW[:5], S, include_noise=True)
    assert_allclose(observed.std(axis=1), pool.predict(NEW[:5], True, include_noise=True)[1], rtol=0.1)


def test_weights_that_depend_on_the_row_give_the_mixture_of_each_row(model):
    pool, members = model[1], list(model[1].estimators_.values())
    distance = limited(distance_of(X[:50], np.ones(2), 0), X[50:300])
    other = pickle.loads(pickle.dumps(pool))
    other._pooling = Pooling(np.array([0.0, 0.4]), np.array([0.0, 2.0]), distance)
    w = other._pooling.weights(NEW)
    assert np.ptp(w[:, 0]) > 0.1
    means = np.stack([member.predict(NEW) for member in members], axis=1)
    assert_allclose(other.predict(NEW), np.sum(w * means, axis=1))
    covariance = other.predict(NEW, return_cov=True)[1]
    assert_allclose(np.diag(covariance), other.predict(NEW, return_std=True)[1] ** 2, rtol=1e-5)
    assert np.linalg.eigvalsh(covariance).min() > -1e-8
    draws = other.sample_functions(4_000, 1)(NEW[:5])
    assert np.all(abs(draws.mean(axis=1) - other.predict(NEW[:5])) < 4 * draws.std(axis=1) / 4_000**0.5)
    row = other.predict_distribution(NEW)[3:4]
    assert_allclose(row.cdf(10.0), other.predict_distribution(NEW).cdf(10.0)[3:4])


def test_files_and_pickles_give_the_same_bits(model, tmp_path):
    pool = model[1]
    pool.save(tmp_path / "pool.safetensors")
    for other in (load(tmp_path / "pool.safetensors"), pickle.loads(pickle.dumps(pool))):
        assert_array_equal(other.predict(NEW, True)[1], pool.predict(NEW, True)[1])
        assert other.plan_ == pool.plan_ and other.weights_ == pool.weights_
        assert_array_equal(
            other.estimators_["feature"].predict(NEW), pool.estimators_["feature"].predict(NEW)
        )


def test_held_out_rows_are_seen_by_no_member_before_they_are_compared(monkeypatch):
    given = []

    class Spy(FeatureGPRegressor):
        def fit(self, X, y, *more, **others):
            given.append(np.asarray(X))
            return super().fit(X, y, *more, **others)

    monkeypatch.setattr(
        pooled_regressor, "FAMILIES", {"kernel": partial(Spy, "rff", n_features=20, epochs=1)}
    )
    scored = []
    monkeypatch.setattr(
        comparing, "chosen", lambda found, *_, **__: scored.append(found) or pooled.alone(0, "as is")
    )
    GPRegressor(members=["kernel"], random_state=1).fit(X, Y)
    assert len(given[0]) == N - N // 4 and len(scored[0].y) == N // 4
    y_of = {tuple(x): y for x, y in zip(X, Y, strict=True)}
    seen = {y_of[tuple(x)] for x in given[0]}
    scale = np.std(Y)
    assert not any(np.isclose(y * scale, list(seen), rtol=1e-12).any() for y in scored[0].y)


def test_groups_stay_whole():
    group = np.repeat(np.arange(60, dtype=np.int32), 20)
    found = pool_division.held_out(Rows(X, Y, None, group), np.random.default_rng(0))
    for g in range(60):
        assert found.blocks[group == g].all() or not found.blocks[group == g].any()
    assert 0.25 * N <= found.blocks.sum() <= 0.25 * N + 20
    assert not found.single.any() and not found.in_time


@pytest.mark.parametrize("singles", [False, True])
@pytest.mark.parametrize("each", [20, 2_000])
def test_of_blocks_of_time_the_last_are_held_out_and_few_others(singles, each, monkeypatch):
    group = np.repeat(np.arange(60, dtype=np.int32), each)
    n = len(group)
    rows = Rows(np.zeros((n, 1)), np.zeros(n), None, group)
    found = pool_division.held_out_in_time(rows, singles, np.random.default_rng(0))
    whole = found.blocks | found.unscored
    for g in range(60):
        assert whole[group == g].all() or not whole[group == g].any()
    assert whole[group >= 51].all()  # 15 % of the rows
    assert found.in_time and 0.04 * n <= whole[group < 51].sum() <= 0.08 * n
    assert found.single.any() == singles and not (found.single & whole).any()
    assert found.scored.sum() <= 2 * pool_division.MOST and (each > 20 or not found.unscored.any())
    np.testing.assert_array_equal(found.all, found.single | whole)


@pytest.mark.parametrize("sizes", [[950, 50], [50, 950], [900, 50, 50], [10] * 40 + [600]])
def test_uneven_blocks_of_time_leave_rows_to_learn_from_wherever_some_are(sizes):
    """The last block is held out, however large; no other block of more than a tenth of the rows."""
    group = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    n = len(group)
    rows = Rows(np.zeros((n, 1)), np.zeros(n), None, group)
    for seed in range(10):
        found = pool_division.held_out_in_time(rows, True, np.random.default_rng(seed))
        whole = found.blocks | found.unscored
        assert whole[group == group.max()].all()
        assert whole[group < group.max()].sum() <= 0.1 * n
        assert (~found.all).sum() > 0 and found.single.sum() <= (~whole).sum() / 4


def test_tables_with_a_time_have_members_for_rows_near_and_far():
    n = 1_500
    hour = np.arange(n) // 2
    slow = np.interp(hour, np.arange(0, n, 30), GENERATOR.normal(size=n // 30))
    z = GENERATOR.normal(size=n)
    table = pd.DataFrame({"when": pd.Timestamp("2020-01-01") + pd.to_timedelta(hour, "h"), "z": z})
    y = slow + np.sin(z) + 0.1 * GENERATOR.normal(size=n)
    found = GPRegressor(members=["feature"], random_state=0).fit(table, y)
    assert set(found.scores_) == {"feature", "feature_by_blocks"}
    assert found.plan_.new_rows.choice == "after"
    between = GPRegressor(members=["feature"], random_state=0, new_rows="between").fit(table, y)
    assert set(between.scores_) == {"feature"}
    for member in found.estimators_.values():
        assert_array_equal(member.feature_names_in_, ["when", "z"])
        assert member.predict(table[:3]).shape == (3,)


@pytest.mark.parametrize(("n", "has"), [(10_000, True), (10_001, False)])
def test_large_tables_with_a_time_have_no_feature_gp_on_blocks(n, has):
    rows, pool = Rows(np.zeros((n, 1)), np.arange(float(n))), GPRegressor()
    pool.target_, pool._shift = "real", None
    assert set(pool._further(rows, ["kernel"], "_by_blocks")) == ({"feature_by_blocks"} if has else set())
    assert pool._further(rows, ["kernel"], "") == {}
    assert "feature_by_blocks" not in pool._candidates(True, pool_division.held_out(rows, GENERATOR))


@pytest.mark.parametrize(("gain", "stays"), [(0.5, "kernel_and_line"), (0.04, "kernel"), (-0.5, "kernel")])
def test_of_two_kernels_the_one_around_a_line_stays_where_held_out_rows_prefer_it(gain, stays):
    both = {"kernel_by_blocks", "kernel_and_line_by_blocks"}
    division = pool_division.held_out(Rows(X, Y), GENERATOR)
    assert both < set(GPRegressor()._candidates(True, division))
    assert not both & set(GPRegressor()._candidates(False, division))
    n, generator = 400, np.random.default_rng(1)
    y, logp = generator.normal(size=(2, n))
    rows = Rows(np.zeros((n, 1)), y, None)
    scored = lambda shift: (None, logp + shift + 0.1 * generator.normal(size=n), y + 1.0)
    found = {"kernel_by_blocks": scored(0.0), "kernel_and_line_by_blocks": scored(gain), "other": None}
    compared = comparing.Comparison(dict.fromkeys(found), {}, lambda new: np.arange(n) // 10, True)
    why = compared._without_one_kernel(found, rows, rows.weights)
    assert list(found) == list(compared.members) == [f"{stays}_by_blocks", "other"]
    assert f"without '{(both - set(found)).pop()}'" in why
    assert compared._without_one_kernel(found, rows, rows.weights) == ""


def test_members_of_a_table_in_time_are_made_anew_of_all_rows(monkeypatch):
    """The kernel's posterior is that of a fit of all rows at its hyperparameters, in their units."""
    n = 1_500
    rows = np.column_stack([np.arange(n), GENERATOR.normal(size=n)])
    y = 0.01 * rows[:, 0] + np.sin(rows[:, 1]) + 0.1 * GENERATOR.normal(size=n)
    monkeypatch.setattr(comparing, "near_and_far", lambda *_: pooled.alone(1, ""))
    found = GPRegressor(members=["kernel"], random_state=0, new_rows="auto").fit(rows, y)
    assert list(found.estimators_) == ["kernel_by_blocks"] == found.plan_["refit"]["choice"]
    member = found.estimators_["kernel_by_blocks"]
    settings = {"likelihood": "gaussian", "n_samples": 8, "random_state": 1, "learner": None}
    noise = member.noise_variance_ / y.std() ** 2
    alone = KernelGPRegressor(member.kernel_, noise_variance=noise, **settings).fit(rows, y)
    new = rows[::100] + [n, 0]
    root = np.sqrt(found.plan_["widths"]["choice"]["kernel_by_blocks"])
    assert root > 1
    for ours, other, factor in zip(
        member.predict(new, True), alone.predict(new, True), (1, root), strict=True
    ):
        assert_allclose(ours, factor * other, rtol=1e-4)


def test_very_few_rows_have_a_kernel_alone():
    n = pooled_regressor.FEWEST_IN_FOLDS - 1
    found = GPRegressor(random_state=0).fit(X[:n], Y[:n])
    alone = QUICK["kernel"](random_state=seed_of(split(as_key(0), 2)[1])[0]).fit(X[:n], Y[:n])
    assert list(found.estimators_) == ["kernel"]
    assert_array_equal(found.predict(NEW), alone.predict(NEW))
    assert "too few" in found.plan_.members.why


@pytest.mark.parametrize("groups", [None, np.arange(300) // 10])
def test_few_rows_are_predicted_fold_by_fold_by_members_that_then_know_all(groups):
    X_few, y = X[:300], Y[:300]
    found = GPRegressor(random_state=0).fit(X_few, y, groups=groups)
    rows = Rows(X_few, y, None, None if groups is None else groups.astype(np.int32)).merged()
    assert (
        set(found.scores_) == {"kernel", "linear", "trees"} and found.plan_["held_out_rows"]["choice"] == 300
    )
    assert all(member.n_rows_ == 300 for member in found.estimators_.values())
    seed = seed_of(split(as_key(0), 1)[0])[0]
    fold = pool_division.HeldOut.fold_by_fold(rows, 5, np.random.default_rng(seed)).fold
    assert_array_equal(np.unique(fold), np.arange(5))
    assert np.ptp(np.bincount(fold)) <= (1 if groups is None else 10)
    if groups is not None:
        assert len(np.unique(np.column_stack([fold, rows.group]), axis=0)) == 30
    logp, squares = np.empty(300), np.empty(300)
    for k in range(5):
        kernel = found.estimators_["kernel"]
        of_all = joining.curvature_of(kernel, Budget(10**10))
        again = joining.at_its_parameters(kernel, rows.some(fold != k), None, of_all)
        part = rows.some(fold == k)
        logp[fold == k] = again.predict_distribution(part.X).logpdf(part.y)
        squares[fold == k] = (again.predict(part.X) - part.y) ** 2
    assert_allclose(found.scores_["kernel"]["nlpd"], -logp.mean(), rtol=1e-4)
    assert_allclose(found.scores_["kernel"]["rmse"], np.sqrt(squares.mean()), rtol=1e-4)


@pytest.mark.parametrize("likelihood", ["gaussian", Warped("gaussian", ShiftedLog(1.0))])
@pytest.mark.parametrize("kind", ["kernel", "linear", "trees"])
def test_a_member_of_the_same_rows_at_its_parameters_is_the_same(kind, likelihood):
    member = QUICK[kind](random_state=0).set_params(likelihood=likelihood).fit(X[:300], Y[:300])
    again = joining.at_its_parameters(member, Rows(X[:300], Y[:300]), None)
    for ours, other in zip(member.predict(NEW, True), again.predict(NEW, True), strict=True):
        assert_allclose(ours, other, rtol=1e-4)


def test_one_member_on_request_and_members_of_one_s_own():
    own = {"a": QUICK["feature"](), "b": QUICK["sparse"](n_features=10)}
    found = GPRegressor(members=own, ensemble=False, random_state=0).fit(X, Y)
    assert list(found.weights_.values()) == [1.0]
    best = min(found.scores_, key=lambda name: found.scores_[name]["nlpd"])
    assert list(found.estimators_) == [best]
    assert own["a"].get_params()["random_state"] is None and not hasattr(own["a"], "plan_")


@pytest.mark.parametrize("n", [N, 300])
def test_counts_by_a_likelihood_of_their_own_are_predicted_by_one_member(n):
    counts = np.random.default_rng(0).poisson(np.exp(0.5 * F)).astype(float)
    of = partial(
        SparseGPRegressor, "rbf", n_inducing=20, likelihood="poisson", learner=SVGP(steps=40, batch_size=128)
    )
    found = GPRegressor(members={"one": of(), "two": of(n_inducing=10)}, random_state=0).fit(
        X[:n], counts[:n]
    )
    assert len(found.estimators_) == 1 and "counts" in found.plan_.members.why
    assert found.predict_distribution(NEW).is_discrete


def test_unknown_members_are_refused():
    with pytest.raises(ValueError, match="did you mean 'kernel'"):
        GPRegressor(members=["kernle"]).fit(X, Y)


def test_without_time_to_compare_the_first_member_stays(monkeypatch):
    def too_late(*_):
        raise TimeIsUpError

    monkeypatch.setattr(GPRegressor, "_compared", too_late)
    found = GPRegressor(members=["feature", "sparse"], random_state=0).fit(X, Y)
    assert found.weights_ == {"feature": 1.0} and "no time to compare" in found.plan_.members.why
    assert found.estimators_["feature"].n_rows_ == N and np.isfinite(found.predict(NEW)).all()
    pool = GPRegressor()
    pool.estimators_ = dict.fromkeys(["kernel", "kernel_by_blocks", "linear_by_blocks"])
    pool.scores_ = {name: {} for name in pool.estimators_}
    given, division = Given(as_key(0), None, None, {}), pool_division.held_out(Rows(X, Y), GENERATOR)
    assert pool._picked(Rows(X, Y), division, given).picked.members == [1]
    assert given.entries["ended"]["choice"] == "time_limit"


def test_few_of_the_held_out_rows_are_compared_in_haste():
    single, blocks = np.arange(N) % 3 == 0, np.arange(N) % 3 == 1
    division = pool_division.HeldOut(single, blocks)
    assert_array_equal(division.compared(None), np.flatnonzero(division.scored))
    for most in (1, 37, 399, 400, 401):
        some = division.compared(most)
        assert_array_equal(some, np.unique(some))
        for kind in (single, blocks):
            assert min(most, 400) / 2 <= kind[some].sum() <= most
        assert division.scored[some].all()


def test_a_short_time_limit_has_linear_regression_to_fall_back_on(monkeypatch):
    """It is learned first, whatever the order of the members, and its place in the pool stays the last."""
    order: list[str] = []

    class Spy(FeatureGPRegressor):
        def fit(self, *rows, **settings):
            order.append(self.features)
            return super().fit(*rows, **settings)

    monkeypatch.setitem(QUICK, "linear", partial(Spy, "linear", epochs=5, likelihood="gaussian"))
    monkeypatch.setitem(QUICK, "feature", partial(Spy, "rff", n_features=60, epochs=2, likelihood="gaussian"))
    found = GPRegressor(members=["feature", "linear"], random_state=0, time_limit=60).fit(X, Y)
    assert order == ["linear", "rff"] and list(found.scores_) == ["feature", "linear"]
    # There is no time for a further member: the first that takes time is begun all the same, and has a share of what is left.
    free = iter([60.0, 60.0, 0.0])
    monkeypatch.setattr(GPRegressor, "_free", lambda self: next(free))
    short = GPRegressor(members=["feature", "sparse", "linear"], random_state=0, time_limit=60).fit(X, Y)
    assert set(short.scores_) == {"feature", "linear"}


def test_members_are_of_the_families_that_take_the_likelihood():
    names = lambda likelihood: list(GPRegressor(likelihood=likelihood)._families())
    assert names("auto") == names("gaussian") == [
        "kernel", "feature", "linear", "trees", "sparse", "kernel_and_line"
    ]  # fmt: skip
    assert names("poisson") == ["sparse"] and names("row-noise-student-t") == ["feature", "linear", "trees"]
    with pytest.raises(ValueError, match="likelihood"):
        names("gausian")


def _heavy(slope):
    """A line, or waves, and errors of which a few are large: 8,000 rows, so that 500 can be held out to compare likelihoods."""
    generator = np.random.default_rng(3)
    rows = generator.uniform(-2, 2, (8_000, 2))
    f = slope * rows[:, 0] + (1 - slope) * 3 * np.sin(2 * rows[:, 0]) * np.sin(2 * rows[:, 1])
    return rows, f + 0.2 * generator.standard_t(2.5, len(rows))


def test_a_linear_member_learns_its_noise(monkeypatch):
    monkeypatch.setitem(QUICK, "linear", partial(FeatureGPRegressor, "linear", epochs=20))
    members = ["linear", "feature"]
    rows, y = _heavy(1.0)
    found = GPRegressor(members=members, random_state=0).fit(rows, y)
    assert found.weights_["linear"] > 0.5 and "student-t" in found.plan_["linear.likelihood"]["choice"]
    far = np.array([[30.0, 0.0], [-30.0, 0.0]])
    assert_allclose(found.estimators_["linear"].predict(far), [30, -30], rtol=0.05)


def test_the_kernel_of_a_large_pool_predicts_from_near_rows(monkeypatch):
    monkeypatch.setattr(pooled_regressor, "GLOBAL_ROWS", 500)
    found = GPRegressor(members=["kernel"], random_state=0).fit(X, Y)
    assert found.estimators_["kernel"].prediction == "local" and found.estimators_["kernel"].n_rows_ == N
    own = GPRegressor(members={"kernel": QUICK["kernel"]()}, random_state=0).fit(X, Y)
    assert own.estimators_["kernel"].prediction == "auto"


def test_distances_are_to_all_rows_that_the_members_learned_from(monkeypatch):
    """The held-out rows have joined: a row among them is as near as any other training row."""
    picked = pooled.alone(0, "")._replace(
        members=[0, 1], level=np.zeros(2), slope=np.array([0.0, 1.0]), average=np.array([0.5, 0.5])
    )
    monkeypatch.setattr(comparing, "chosen", lambda *_, **__: picked)
    found = GPRegressor(members=["feature", "sparse"], random_state=0).fit(X, Y)
    distance = found._pooling.distance
    assert len(distance.rows) == N and np.allclose(distance(X), distance(X[:1])[0])
    takes_in = joining.takes_in
    monkeypatch.setattr(
        pooled_regressor,
        "takes_in",
        lambda member, rows: takes_in(member, rows) and member.features != "orf",
    )
    fewer = GPRegressor(members=["feature", "sparse"], random_state=0).fit(X, Y)
    assert len(fewer._pooling.distance.rows) == N - fewer.plan_["held_out_rows"]["choice"]
    assert not takes_in(SparseGPRegressor(), Rows(X, Y, None, None))  # a family that takes in no rows


def test_a_member_that_stays_alone_has_its_probabilities_corrected(monkeypatch):
    """A member that promises twice the deviation; intervals, too, are then those of the corrected distribution."""

    monkeypatch.setattr(comparing, "chosen", lambda *_, **__: pooled.alone(0, "it is the best"))
    wide = KernelGPRegressor(learner=None, noise_variance=0.4, likelihood="gaussian")
    found = GPRegressor(members={"wide": wide, "other": QUICK["feature"]()}, random_state=0).fit(X, Y)
    assert list(found.estimators_) == ["wide"] and found.plan_["probabilities"]["choice"].startswith("Beta(")
    width = lambda model: np.diff(model.predict_interval(NEW, 0.5), axis=1).mean()
    assert width(found) < 0.8 * width(found.estimators_["wide"])
    assert_allclose(found.predict_interval(NEW, 0.5), found.predict_distribution(NEW).interval(0.5))


def test_probabilities_of_few_rows_are_corrected_by_their_folds(monkeypatch):
    """As those of many: a member that promises twice the deviation."""
    monkeypatch.setattr(comparing, "chosen", lambda *_, **__: pooled.alone(0, "it is the best"))
    wide = KernelGPRegressor(learner=None, noise_variance=0.4, likelihood="gaussian")
    found = GPRegressor(members={"wide": wide, "other": QUICK["feature"]()}, random_state=0)
    found.fit(X[:200], Y[:200])
    assert found.plan_["probabilities"]["choice"].startswith("Beta(")
    assert found.plan_["probabilities"]["why"].endswith("by 200 held-out rows")
    width = lambda model: np.diff(model.predict_interval(NEW, 0.5), axis=1).mean()
    assert width(found) < 0.8 * width(found.estimators_["wide"])


def test_a_kernel_gp_of_other_folds_has_not_learned_from_the_fold():
    """With a target moved in the fold alone its predictions of the fold stay, to a tenth of what they change by at the hyperparameters of all rows."""
    rows, moved = Rows(X[:150], Y[:150]), Y[:150].copy()
    moved[::5] += 3 * np.random.default_rng(1).normal(size=30)
    apart = {}
    for name in ("learned", "stepped"):
        found = []
        for y in (rows.y, moved):
            member = KernelGPRegressor(random_state=0, likelihood="gaussian").fit(rows.X, y)
            of_all = joining.curvature_of(member, Budget(10**10)) if name == "stepped" else None
            seen = rows.some(np.arange(150) % 5 != 0)
            again = joining.at_its_parameters(member, seen, None, of_all)
            found.append(np.log(again._fitted.posterior.noise.level.value))
        apart[name] = abs(found[1] - found[0])
    assert apart["learned"] > 1 and apart["stepped"] < 0.5 * apart["learned"]


def test_probabilities_are_not_corrected_by_rows_of_other_times(model):
    pool = pickle.loads(pickle.dumps(model[1]))
    single, blocks = np.arange(N) < 200, np.arange(N) >= N - 200
    told = pool._corrected(
        pool_division.HeldOut(single, blocks, in_time=True), pooled.Compared(pooled.alone(0, ""))
    )
    assert told["probabilities"]["choice"] == "as they are" and "exchangeable" in told["probabilities"]["why"]


def test_probabilities_of_rows_between_those_of_a_table_in_time_are_corrected(tmp_path):
    """A member that promises four times the variance is mended there, and stays as it is of the last block and later."""
    n = 1_500
    rows = np.column_stack([np.arange(n), GENERATOR.normal(size=n)])
    y = np.sin(rows[:, 0] / 180) + np.sin(rows[:, 1]) + 0.1 * GENERATOR.normal(size=n)
    wide = KernelGPRegressor(learner=None, noise_variance=0.3, likelihood="gaussian", n_samples=8)
    found = GPRegressor(members={"wide": wide}, random_state=0, new_rows="auto").fit(rows, y)
    assert "near the training rows" in found.plan_["probabilities"]["choice"]
    between, later = rows[:-400:20] + [0.5, 0], rows[-20:] + [400, 0]
    assert_allclose(found._pooling.strength(between), 1.0, atol=0.2)
    assert_allclose(found._pooling.strength(later), 0.0, atol=1e-12)
    plain = pickle.loads(pickle.dumps(found))
    plain._correction = None
    assert_allclose(found.predict_interval(later), plain.predict_interval(later))
    ratio = np.diff(found.predict_interval(between)) / np.diff(plain.predict_interval(between))
    assert np.all(ratio < 0.6)
    found.save(tmp_path / "pool.safetensors")
    assert_array_equal(
        load(tmp_path / "pool.safetensors").predict_interval(between), found.predict_interval(between)
    )


def test_trees_are_made_anew_of_all_rows_in_any_table():
    """Of a step, which neither a line nor waves say."""
    steps = np.sign(X[:, 0]) + 3 * (X[:, 1] > 0.5) + 0.1 * GENERATOR.normal(size=N)
    found = GPRegressor(members=["linear", "trees"], random_state=0).fit(X, steps)
    assert list(found.estimators_) == ["trees"] == found.plan_["refit"]["choice"]
    member = found.estimators_["trees"]
    alone = clone(member).set_params(missing="auto").fit(X, steps)
    assert member.n_rows_ == N
    assert_allclose(
        member._fitted.observation.mean_function(NEW), alone._fitted.observation.mean_function(NEW)
    )
    assert_allclose(member.predict(NEW), alone.predict(NEW), atol=1e-3)
    assert np.sqrt(np.mean((member.predict(X) - steps) ** 2)) < 0.15


def test_a_limit_that_two_factors_would_pass_makes_kernels_predict_from_near_rows(monkeypatch):
    """Without a limit of the user's they may take what they need."""
    fitted = lambda **settings: GPRegressor(members=["kernel", "linear"], random_state=0, **settings).fit(
        X, Y
    )
    prediction = lambda found: found.plan_["kernel.prediction"]["choice"]
    monkeypatch.setattr(pooled_regressor, "FACTORS", 10**6)
    assert prediction(fitted()) == "global"
    assert prediction(fitted(memory_limit="20GB")) == "local"
    monkeypatch.setattr(pooled_regressor, "FACTORS", 2)
    assert prediction(fitted(memory_limit="20GB")) == "global"
