"""When targets are modelled as counts or besides by their logarithm, and that equal rows of few levels are observations of their own."""

import equinox as eqx
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import WITHOUT_KERNEL

from stochgp import FeatureGPRegressor, GPRegressor, KernelGPRegressor, load
from stochgp.budget import MemoryLimitError
from stochgp.data.rows import Rows
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import Warped
from stochgp.learners import LeaveOneOut
from stochgp.numerics.seeds import as_key
from stochgp.pools import comparing, hurdle, pooled, pooled_regressor, target_choice
from stochgp.pools.pool_run import Given
from stochgp.pools.target_choice import Kind, kind_of_targets, may_be_counts, shift_of

N = 1_200
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (N, 2))
COUNTS = GENERATOR.poisson(np.exp(0.8 * X[:, 0] + 0.7 * GENERATOR.normal(size=N))).astype(float)
SCORES = (10 - COUNTS).clip(0)  # skew the other way, of eleven values
NEW = GENERATOR.uniform(-2, 2, (40, 2))


@pytest.fixture(scope="module", autouse=True)
def _quick_members():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pooled_regressor, "FAMILIES", WITHOUT_KERNEL)
        yield


@pytest.mark.parametrize(
    ("y", "holds"),
    [
        (COUNTS, True),
        (SCORES, True),  # they may be; models decide
        (COUNTS + 0.5, False),
        (COUNTS - 1, False),
        (COUNTS + 100, False),
        ((COUNTS > 0).astype(float), False),
        (np.arange(N) % 59.0, False),  # none frequent
        (np.full(N, 1e300), False),
    ],
)
def test_what_may_be_counts(y, holds):
    assert may_be_counts(Rows(X, y)) is holds


SETTINGS = {"random_state": 0}
PRICES = np.exp(1 + X[:, 0] + 0.5 * GENERATOR.normal(size=N))


def test_models_of_both_kinds_say_which_numbers_targets_are():
    found = kind_of_targets(Rows(X, COUNTS), False, 0, SETTINGS)
    assert found.target == "count" and found.shift is None
    assert "changes the CRPS by -" in found.entries["target"]["why"]
    assert kind_of_targets(Rows(X, SCORES), False, 0, SETTINGS).target == "real"
    assert kind_of_targets(Rows(X, SCORES + 0.5), False, 0, SETTINGS) == Kind()
    few = Rows(X, COUNTS).some(np.arange(target_choice.FEWEST_ROWS - 1))
    assert kind_of_targets(few, False, 0, SETTINGS).target == "real"


@pytest.mark.parametrize(
    "refused", [MemoryLimitError("no memory"), TimeIsUpError("too late"), ValueError("no")]
)
def test_what_small_models_refuse_leaves_targets_real(refused, monkeypatch):
    def refuse(*_):
        raise refused

    monkeypatch.setattr(target_choice, "_predicted", refuse)
    for y, name in ((COUNTS, "target"), (PRICES, "logarithm")):
        found = kind_of_targets(Rows(X, y), False, 0, SETTINGS)
        assert (found.target, found.shift) == ("real", None) and str(refused) in found.entries[name]["why"]


def test_models_of_both_kinds_say_whether_logarithms_are_tried():
    rows = Rows(X, np.where(np.arange(N) == 7, 0.0, PRICES))
    found = kind_of_targets(rows, False, 0, SETTINGS)
    assert found.target == "real" and found.shift == PRICES[np.arange(N) != 7].min() / 2
    assert Kind.of_plan(found.entries) == found
    assert kind_of_targets(rows, True, 0, SETTINGS) == Kind()
    waves = 3 + np.exp(1.2 * X[:, 0]) + 0.3 * GENERATOR.normal(size=N)  # skew, of the same errors everywhere
    assert shift_of(Rows(X, waves)) is not None
    assert kind_of_targets(Rows(X, waves), False, 0, SETTINGS).shift is None


@pytest.mark.parametrize(
    "y",
    [
        SCORES - 20.0,
        PRICES - 1,
        -PRICES,
        np.where(X[:, 1] > 1.9, 0.0, PRICES),
        np.zeros(N),
        100 - PRICES.clip(0, 99),
    ],
)
def test_what_is_negative_or_not_skew_has_no_logarithm(y):
    assert shift_of(Rows(X, y)) is None


def test_a_pool_has_members_of_the_logarithm_too(tmp_path):
    found = GPRegressor(random_state=0).fit(X, PRICES)
    assert {"feature_of_log", "linear_of_log"} < set(found.scores_)
    shift = found.plan_["logarithm"]["choice"]
    assert shift == PRICES.min() / 2 and found.target_ == "real"
    taken = [name for name in found.estimators_ if name.endswith("_of_log")]
    assert taken  # the targets are their exponentials
    member = found.estimators_[taken[0]].predict_distribution(NEW)
    assert isinstance(member, Warped) and np.isfinite(member.logpdf(0.0)).all()
    found.save(tmp_path / "prices.safetensors")
    assert_array_equal(load(tmp_path / "prices.safetensors").predict(NEW), found.predict(NEW))
    plain = GPRegressor(random_state=0, target="real").fit(X, PRICES)
    assert (
        found.predict_distribution(X).crps(PRICES).mean() < plain.predict_distribution(X).crps(PRICES).mean()
    )


def test_a_kernel_gp_of_the_logarithm_begins_at_that_of_the_targets():
    rows, pool = Rows(X, PRICES), GPRegressor()
    first = KernelGPRegressor(learner="loo", random_state=0).fit(X[:200], PRICES[:200])
    member, line = KernelGPRegressor(), KernelGPRegressor(mean="linear")
    pool._suit("kernel_of_log", member, rows, [], {"kernel": first})
    assert eqx.tree_equal(member.kernel, first.kernel_)
    assert member.metric == "inputs" and member.learner == LeaveOneOut(spread=1.0, searches=1)
    pool._suit("kernel_and_line_by_blocks", line, rows, [], {"kernel": first, "kernel_by_blocks": first})
    assert line.kernel == KernelGPRegressor().kernel and line.learner == "auto"


def test_a_pool_of_counts_mixes_the_probabilities_of_its_members(monkeypatch, tmp_path):
    picked = pooled.alone(0, "")._replace(
        members=[0, 1], level=np.array([0.0, 0.4]), slope=np.zeros(2), average=np.array([0.4, 0.6])
    )
    monkeypatch.setattr(comparing, "chosen", lambda *_, **__: picked)
    found = GPRegressor(members=["feature", "sparse"], random_state=0).fit(X, COUNTS)
    assert found.target_ == found.plan_["target"]["choice"] == "count"
    mixed, w = found.predict_distribution(NEW), np.exp([0.0, 0.4]) / np.exp([0.0, 0.4]).sum()
    each = [member.predict_distribution(NEW) for member in found.estimators_.values()]
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


@pytest.mark.parametrize("settings", [{"target": "real"}, {"likelihood": "gaussian"}, {"point_mass": 0.0}])
def test_what_is_asked_for_is_not_tried(settings, monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(hurdle, "kind_of_targets", never)
    monkeypatch.setattr(GPRegressor, "_fit_hurdle", lambda *_: None)
    found = GPRegressor(members=["linear"], random_state=0, **settings)
    given = Given(as_key(0), None, None, {})
    assert found._kind_of_targets(Rows(X, COUNTS), False, given) == Kind()


def test_a_family_must_be_told_what_its_targets_are():
    with pytest.raises(ValueError, match="unknown target 'auto'"):
        FeatureGPRegressor(target="auto").fit(X, COUNTS)
    with pytest.raises(ValueError, match="unknown target 'whole'"):
        GPRegressor(target="whole").fit(X, COUNTS)


def few_levels(n: int = 1_500) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    levels = generator.integers(0, 3, (n, 2)).astype(float)
    return levels, np.rint(30 + 3 * levels[:, 0] + 4 * generator.normal(size=n))


def test_rows_that_are_equal_by_chance_are_held_out_one_by_one():
    X, y = few_levels()
    merged = Rows(X, y).merged()
    apart = merged.apart()
    assert len(merged) < 300 and len(apart) == len(y) and apart.weight is None
    again = apart.merged()
    for name in ("X", "y", "weight"):
        assert_array_equal(getattr(again, name), getattr(merged, name))
    grouped = Rows(X, y, None, np.arange(len(y)) % 7).merged()
    assert_array_equal(np.bincount(grouped.apart().group), np.bincount(np.arange(len(y)) % 7))


def test_copies_and_weights_that_are_no_numbers_of_rows_stay_together():
    merged = Rows(*few_levels()).merged()
    halves = Rows(merged.X, merged.y, merged.weight / 2)
    assert halves.apart() is halves
    copied = Rows(np.repeat(X, 3, axis=0), np.repeat(COUNTS, 3)).merged()
    assert len(copied) == N and copied.apart() is copied
    many = Rows(merged.X, merged.y, merged.weight * 100)
    assert many.apart() is many


def test_a_pool_of_few_levels_is_as_sure_as_one_of_distinct_rows():
    """A held-out row was left out with all its equals, so that the most frequent targets were those that no member had seen."""
    X, y = few_levels()
    found = GPRegressor(members=["feature", "linear"], random_state=0, target="real").fit(X, y)
    weighed = Rows(X, y).merged()
    again = GPRegressor(members=["feature", "linear"], random_state=0, target="real")
    again.fit(weighed.X, weighed.y, weighed.weight)
    assert found.n_rows_ == again.n_rows_ == len(weighed)
    assert found.plan_["held_out_rows"]["choice"] == len(y) // 4
    assert_array_equal(found.predict(X[:20], True)[1], again.predict(X[:20], True)[1])
    cells = np.unique(X, axis=0)
    means = np.array([y[(cell == X).all(axis=1)].mean() for cell in cells])
    assert np.all(abs(found.predict(cells) - means) < 1.0)
