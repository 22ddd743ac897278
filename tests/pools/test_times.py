"""`GPRegressor` with tables that hold a time: members for near and far rows, which learn again from all of them."""

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import QUICK

from stochgp import GPRegressor, KernelGPRegressor, load
from stochgp.data.rows import Data
from stochgp.pools import held_out, regressor
from stochgp.pools.held_out import HeldOut
from stochgp.pools.weights import alone

GENERATOR = np.random.default_rng(0)
N = 1_200
TIMED = np.column_stack([np.arange(N), GENERATOR.normal(size=N)])


@pytest.fixture(autouse=True)
def quick_members(monkeypatch):
    monkeypatch.setattr(regressor, "REGRESSORS", QUICK)


def test_members_are_scored_near_and_far():
    hour = np.arange(N) // 2
    slow = np.interp(hour, np.arange(0, N, 30), GENERATOR.normal(size=N // 30))
    table = pd.DataFrame({"when": pd.Timestamp("2020-01-01") + pd.to_timedelta(hour, "h"), "z": TIMED[:, 1]})
    y = slow + np.sin(TIMED[:, 1]) + 0.1 * GENERATOR.normal(size=N)
    found = GPRegressor(members=["feature"], random_state=0).fit(table, y)
    assert set(found.scores_) == {"feature", "feature_by_blocks"} and found.plan_.new_rows.choice == "after"
    if found._pooling.distance is not None:
        assert len(found._pooling.distance.rows) == N
    between = GPRegressor(members=["feature"], random_state=0, new_rows="between").fit(table, y)
    assert set(between.scores_) == {"feature"}
    for one in found.estimators_.values():
        assert_array_equal(one.feature_names_in_, ["when", "z"])
        assert one.predict(table[:3]).shape == (3,)
    after = GPRegressor(members=["feature"], random_state=0, new_rows="after").fit(table, y)
    assert after._correction is None and "exchangeable" in after.plan_["probabilities"]["why"]
    few = GPRegressor(members=["trees", "linear"], random_state=0).fit(table[:400], y[:400])
    assert set(few.scores_) == {"trees", "linear"} and few.fit_report_["held_out_rows"] == 400


def test_members_of_tables_with_a_time():
    pool, nothing = GPRegressor(), np.zeros(1_000, bool)
    pool.target_ = "real"
    rows = Data(np.zeros((1_000, 1)), np.arange(1_000.0), None, np.arange(1_000, dtype=np.int32) // 100)
    division = HeldOut(nothing, ~nothing, in_time=True)
    by_blocks = {f"{name}_by_blocks" for name in ("kernel", "trees", "kernel_and_line")}
    assert set(pool._candidates(rows, None, division)) == {"kernel"} | by_blocks
    assert not by_blocks & set(pool._candidates(rows, None, division._replace(in_time=False)))


def test_a_kernel_gp_is_refitted_on_all_rows(monkeypatch):
    """Its posterior is that of a fit to all rows at its hyperparameters, in their units, with wider errors."""
    y = 0.01 * TIMED[:, 0] + np.sin(TIMED[:, 1]) + 0.1 * GENERATOR.normal(size=N)
    monkeypatch.setattr(regressor, "stack_near_and_far", lambda *_: alone("kernel_by_blocks", "given"))
    monkeypatch.setattr(held_out, "best_width", lambda *_: 2.0)
    found = GPRegressor(members=["kernel"], random_state=0).fit(TIMED, y)
    assert list(found.estimators_) == ["kernel_by_blocks"]
    one = found.estimators_["kernel_by_blocks"]
    settings = {"likelihood": "gaussian", "n_samples": 8, "random_state": 1, "learner": None}
    expected = KernelGPRegressor(one.kernel_, noise_variance=one.noise_variance_ / y.std() ** 2, **settings)
    expected.fit(TIMED, y)
    new = TIMED[::100] + [N, 0]
    root = np.sqrt(found.fit_report_["widths"]["kernel_by_blocks"])
    assert root == np.sqrt(2)
    pairs = zip(one.predict(new, True), expected.predict(new, True), (1, root), strict=True)
    for ours, other, factor in pairs:
        assert_allclose(ours, factor * other, rtol=1e-4)


def test_probabilities_are_calibrated_between_the_training_rows_only(tmp_path):
    """A member that predicts four times the variance keeps it in the last block and later."""
    y = np.sin(TIMED[:, 0] / 180) + np.sin(TIMED[:, 1]) + 0.1 * GENERATOR.normal(size=N)
    wide = KernelGPRegressor(learner=None, noise_variance=0.3, likelihood="gaussian", n_samples=8)
    found = GPRegressor(members={"wide": wide}, random_state=0).fit(TIMED, y)
    assert "near the training rows" in found.plan_["probabilities"]["choice"]
    between, later = TIMED[:-400:20] + [0.5, 0], TIMED[-20:] + [400, 0]
    assert_allclose(found._pooling.strength(between), 1.0, atol=0.2)
    assert_allclose(found._pooling.strength(later), 0.0, atol=1e-12)
    plain = pickle.loads(pickle.dumps(found))
    plain._correction = None
    assert_allclose(found.predict_interval(later), plain.predict_interval(later))
    assert np.all(np.diff(found.predict_interval(between)) < 0.6 * np.diff(plain.predict_interval(between)))
    found.save(tmp_path / "pool.safetensors")
    again = load(tmp_path / "pool.safetensors")
    assert_array_equal(again.predict_interval(between), found.predict_interval(between))
