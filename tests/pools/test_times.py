"""`GPRegressor` with tables that hold a time: members for near and far rows, which learn again from all of them."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quick_members import QUICK

from stochgp import GPRegressor, KernelGPRegressor
from stochgp.data.rows import Data
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.pools import regressor, weights
from stochgp.pools.division import BLOCK, LEARNED
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
    assert (
        set(found.scores_) == {"feature", "feature_by_blocks"}
        and found.plan_["time_order"]["choice"] == "forecast"
    )
    between = GPRegressor(members=["feature"], random_state=0, time_order="interpolate").fit(table, y)
    assert set(between.scores_) == {"feature"}
    for one in found.estimators_.values():
        assert_array_equal(one.feature_names_in_, ["when", "z"])
        assert one.predict(table[:3]).shape == (3,)
    after = GPRegressor(members=["feature"], random_state=0, time_order="forecast").fit(table, y)
    assert set(after.scores_) == {"feature"}
    few = GPRegressor(members=["trees", "linear"], random_state=0).fit(table[:400], y[:400])
    assert set(few.scores_) == {"trees", "linear"} and few.fit_report_["held_out_rows"] == 400


def test_members_of_tables_with_a_time():
    pool, role = GPRegressor(), np.full(1_000, BLOCK)
    pool.target_ = "real"
    rows = Data(np.zeros((1_000, 1)), np.arange(1_000.0), None, np.arange(1_000, dtype=np.int32) // 100)
    by_blocks = {f"{name}_by_blocks" for name in ("kernel", "trees", "linear")}
    assert set(pool._candidates(rows, role, None)) == {"kernel"} | by_blocks
    assert not by_blocks & set(pool._candidates(rows, np.full(1_000, LEARNED), None))


def test_a_kernel_gp_is_refitted_on_all_rows(monkeypatch):
    """Its posterior is that of a fit to all rows at its hyperparameters, in their units, with wider errors."""
    y = 0.01 * TIMED[:, 0] + np.sin(TIMED[:, 1]) + 0.1 * GENERATOR.normal(size=N)
    monkeypatch.setattr(regressor, "weigh", lambda *_: alone("kernel_by_blocks", "given"))
    monkeypatch.setattr(weights, "best_width", lambda *_: 2.0)
    monkeypatch.setattr("stochgp.posteriors.kernel.NEIGHBOURS", 16)
    found = GPRegressor(members=["kernel"], random_state=0).fit(TIMED, y)
    assert list(found.estimators_) == ["kernel_by_blocks"]
    one = found.estimators_["kernel_by_blocks"]
    settings = {"random_state": 1, "learner": None}
    expected = KernelGPRegressor(
        one.kernel_, likelihood=Gaussian(known_noise(one.noise_variance_ / y.std() ** 2)), **settings
    )
    expected.fit(TIMED, y)
    new = TIMED[::100] + [N, 0]
    root = np.sqrt(found.fit_report_["widths"]["kernel_by_blocks"])
    assert root == np.sqrt(2)
    pairs = zip(one.predict(new, True), expected.predict(new, True), (1, root), strict=True)
    for ours, other, factor in pairs:
        assert_allclose(ours, factor * other, rtol=1e-4)
