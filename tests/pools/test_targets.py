"""When targets are modelled as counts, and when all members learn their logarithm."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import WITHOUT_KERNEL

from stochgp import GPRegressor, load
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import Warped
from stochgp.pools import regressor, targets
from stochgp.pools.targets import choose_counts, choose_transform, may_be_counts, shift_of
from stochgp.pools.weights import PoolWeights

N = 1_000
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
COUNTS = GENERATOR.poisson(np.exp(0.8 * X[:, 0] + 0.7 * GENERATOR.normal(size=N))).astype(float)
MARKS = (10 - COUNTS).clip(0)  # skew the other way, of eleven values
PRICES = np.exp(1 + X[:, 0] + 0.5 * GENERATOR.normal(size=N))
NEW = GENERATOR.uniform(-2, 2, (40, 2))
SETTINGS = {"random_state": 0}


@pytest.fixture(scope="module", autouse=True)
def _quick_members():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(regressor, "REGRESSORS", WITHOUT_KERNEL)
        patched.setattr(regressor, "MEMBERS", ("linear", "trees"))
        yield


def context_of_pool():
    return FitContext(GPRegressor(random_state=0))


@pytest.mark.parametrize(
    ("y", "holds"),
    [
        (COUNTS, True),
        (MARKS, True),  # they may be; models decide
        (COUNTS + 0.5, False),
        (COUNTS - 1, False),
        (COUNTS + 100, False),
        ((COUNTS > 0).astype(float), False),
        (np.arange(N) % 59.0, False),  # none frequent
        (np.full(N, 1e300), False),
    ],
)
def test_which_targets_may_be_counts(y, holds):
    assert may_be_counts(Data(X, y)) is holds


def test_trees_of_both_kinds_decide_about_counts():
    context = context_of_pool()
    assert choose_counts(Data(X, COUNTS), context) == "count"
    assert "changes the CRPS by -" in context.plan_["target"]["why"]
    assert choose_counts(Data(X, MARKS), context) == "real"
    few = Data(X, COUNTS).take(np.arange(targets.MIN_ROWS - 1))
    assert choose_counts(few, context) == "real" and "too few" in context.plan_["target"]["why"]
    assert choose_counts(Data(X, MARKS + 0.5), nothing := context_of_pool()) == "real"
    assert "target" not in nothing.plan_


def test_trees_decide_about_the_logarithm():
    context = context_of_pool()
    found = choose_transform(Data(X, np.where(np.arange(N) == 7, 0.0, PRICES)), context)
    assert found is not None and found.shift == PRICES[np.arange(N) != 7].min() / 2
    assert context.plan_["transform"]["choice"].startswith("log(y + ")
    waves = Data(X, 3 + np.exp(1.2 * X[:, 0]) + 0.3 * GENERATOR.normal(size=N))  # skew, with equal errors
    assert shift_of(waves) is not None and choose_transform(waves, context) is None
    assert context.plan_["transform"]["choice"] is None


@pytest.mark.parametrize(
    "y",
    [
        MARKS - 20.0,
        PRICES - 1,
        -PRICES,
        np.where(X[:, 1] > 1.9, 0.0, PRICES),
        np.zeros(N),
        100 - PRICES.clip(0, 99),
    ],
)
def test_targets_that_are_negative_or_not_skew_have_no_logarithm(y):
    assert shift_of(Data(X, y)) is None


def test_all_members_learn_the_logarithm_of_prices(tmp_path):
    found = GPRegressor(random_state=0).fit(X, PRICES)
    assert set(found.scores_) == {"linear", "trees"} and found.target_ == "real"
    for one in found.estimators_.values():
        part = one.predict_distribution(NEW)
        assert isinstance(part, Warped) and np.isfinite(part.logpdf(0.0)).all()
    found.save(tmp_path / "prices.safetensors")
    assert_array_equal(load(tmp_path / "prices.safetensors").predict(NEW), found.predict(NEW))
    plain = GPRegressor(members=["linear"], random_state=0, target="real").fit(X, PRICES)
    crps = lambda model: model.predict_distribution(X).crps(PRICES).mean()
    assert crps(found) < crps(plain)


def test_a_pool_of_counts_mixes_the_probabilities_of_its_members(monkeypatch, tmp_path):
    w = np.array([0.4, 0.6])
    weights = PoolWeights(["feature", "linear"], w, "given")
    monkeypatch.setattr(regressor, "weigh", lambda *_: weights)
    monkeypatch.setattr(regressor, "MEMBERS", weights.names)
    found = GPRegressor(random_state=0).fit(X, COUNTS)
    assert found.target_ == found.plan_["target"]["choice"] == "count"
    mixed = found.predict_distribution(NEW)
    each = [one.predict_distribution(NEW) for one in found.estimators_.values()]
    k = np.broadcast_to(np.arange(12.0), (len(NEW), 12))
    expected = sum(share * np.exp(part.logpdf(k)) for share, part in zip(w, each, strict=True))
    assert_allclose(np.exp(mixed.logpdf(k)), expected, rtol=1e-9)
    assert_allclose(mixed.mean, sum(s * part.mean for s, part in zip(w, each, strict=True)), rtol=1e-6)
    assert_allclose(mixed.mean, found.predict(NEW), rtol=1e-3)
    drawn = found.sample_y(NEW, 2_000, 1, include_noise=True)
    assert np.all(drawn == np.floor(drawn)) and drawn.min() >= 0
    found.save(tmp_path / "counts.safetensors")
    other = load(tmp_path / "counts.safetensors")
    assert_array_equal(other.predict(NEW), found.predict(NEW))
    assert other.target_ == "count"


@pytest.mark.parametrize(
    "settings",
    [{"target": "real"}, {"likelihood": "gaussian"}, {"point_mass": 0.0}, {"members": ["linear"]}],
)
def test_settings_of_the_user_are_not_tried(settings):
    context, pool = context_of_pool(), GPRegressor(**SETTINGS | settings)
    pool._target_settings(Data(X, COUNTS), False, context)
    assert pool.target_ == "real" and not context.plan_


def test_an_unknown_kind_of_targets_is_refused():
    with pytest.raises(ValueError, match="unknown target 'whole'"):
        GPRegressor(target="whole").fit(X, COUNTS)


def test_a_pool_of_few_levels_is_as_sure_as_one_of_distinct_rows():
    """If a held-out row were left out with all its equals, no member would have seen the most frequent targets."""
    levels = GENERATOR.integers(0, 3, (N, 2)).astype(float)
    y = np.rint(30 + 3 * levels[:, 0] + 4 * GENERATOR.normal(size=N))
    weighed = Data(levels, y).merged()
    fit = lambda *rows: GPRegressor(members=["feature", "linear"], random_state=0, target="real").fit(*rows)
    found, again = fit(levels, y), fit(weighed.X, weighed.y, weighed.weight)
    assert found.n_rows_ == again.n_rows_ == len(weighed) and found.fit_report_["held_out_rows"] == N // 4
    assert_array_equal(found.predict(levels[:20], True)[1], again.predict(levels[:20], True)[1])
    cells = np.unique(levels, axis=0)
    means = np.array([y[(cell == levels).all(axis=1)].mean() for cell in cells])
    assert np.all(abs(found.predict(cells) - means) < 1.0)
