"""Blocks of time as groups: which columns say the time, when blocks are worth it, how they are cut, and that a fit takes them as it takes groups."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from stochgp import KernelGPRegressor
from stochgp.context import FitContext
from stochgp.data.files import FileSource
from stochgp.data.reading import read_files, read_training_rows
from stochgp.data.time_order import (
    blocks,
    dependence,
    depends,
    drift,
    groups_in_time,
    increasing,
    n_blocks,
)
from stochgp.estimators.report import notes
from stochgp.learners import LeaveOneOut

N, PHI = 4000, 0.9
TIMES = pd.date_range("2019-11-01", periods=N, freq="h")
SOME = 700  # rows of a fit


def series(phi=PHI, n=N, seed=0):
    """(X [n, 2] that says nothing, y of an autoregression of unit variance)."""
    generator = np.random.default_rng(seed)
    y, shocks = np.zeros(n), generator.normal(size=n) * (1 - phi**2) ** 0.5
    for t in range(n):
        y[t] = (phi * y[t - 1] if t else 0.0) + shocks[t]
    return generator.normal(size=(n, 2)), y


def calendar(n=N):
    return np.column_stack([getattr(TIMES[:n], part) for part in ("year", "month", "day", "hour")])


def table(n=SOME):
    X, y = series(n=n)
    return pd.DataFrame({"when": TIMES[:n], "a": X[:, 0], "b": X[:, 1]}), y


def read(X, y, time_order="auto", groups=None):
    context = FitContext(model := KernelGPRegressor())
    rows, _ = read_training_rows(model, X, y, None, groups, context, time_order=time_order)
    return SimpleNamespace(X=rows.X, group=rows.group, plan=context.plan_)


def grouped(X, y, time_order, **more):
    """(Blocks of time of rows that are numbers, the decisions)."""
    plan = {}
    record = lambda name, value, why: plan.update({name: {"choice": value, "why": why}})
    return groups_in_time(X, y, None, time_order, record, **more), plan


@pytest.mark.parametrize("n", [2, 7, 20])
def test_blocks_hold_equally_many_rows_in_order_and_rows_of_one_time_together(n):
    generator = np.random.default_rng(n)
    position = generator.integers(0, 60, 300).astype(np.float64)
    found = blocks(position, n)
    first = np.array([np.sum(position < p) for p in position])
    wanted = first * n // 300
    np.testing.assert_array_equal(found[:, None] == found, wanted[:, None] == wanted)
    order = np.argsort(position, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert set(found) == set(range(len(set(found))))
    alone = np.bincount(blocks(generator.permutation(300).astype(np.float64), n))
    assert alone.max() - alone.min() <= 1 and len(alone) == n


def test_a_permutation_of_the_rows_changes_no_block():
    generator = np.random.default_rng(1)
    position, order = generator.normal(size=200), generator.permutation(200)
    np.testing.assert_array_equal(blocks(position, 9)[order], blocks(position[order], 9))


@pytest.mark.parametrize(
    "columns", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 1, 2)], ids=["hours", "reversed", "days"]
)
def test_a_calendar_is_found_in_any_order_of_its_columns(columns):
    """Its changes are those of the time that the columns say together."""
    X = np.column_stack([series()[0], calendar()[:, columns]])
    found, changes = increasing(X)
    assert {j - 2 for j in found} == set(range(len(columns)))
    when = calendar()[:, sorted(columns)]
    np.testing.assert_array_equal(changes, (np.diff(when, axis=0) != 0).any(axis=1))


def test_which_columns_say_no_time():
    """Rows in no order; a grid; the only input; a sorted input with many equal values; a level of the last rows alone."""
    X, _ = series()
    grid = np.column_stack(
        [part.ravel() for part in np.meshgrid(np.arange(50), np.arange(80), indexing="ij")]
    )
    shuffled = np.random.default_rng(0).permutation(N)
    late = np.column_stack([X, np.arange(N) == N - 1])
    few = np.column_stack([X, np.arange(N) // 10])
    none = {
        "no order": X,
        "shuffled": np.column_stack([X, calendar()])[shuffled],
        "grid": grid.astype(np.float64),
        "one input": np.arange(N, dtype=np.float64)[:, None],
        "late": late,
        "few": few,
    }
    for name, rows in none.items():
        assert increasing(rows.astype(np.float64))[0] == [], name
    assert increasing(np.column_stack([X, np.arange(N) * 0.5]))[0] == [2]


def test_the_dependence_of_neighbours_is_that_of_the_series():
    """Errors y_t − ȳ, ȳ of 10 rows of other times: their correlation is φ/(1 + 1/10) and falls below 0.1 beyond 16 rows at φ = 0.9."""
    X, y = series()
    found, reach = dependence(X, y, np.arange(N, dtype=np.float64))
    assert abs(found.value - PHI / 1.1) < 3 * found.stderr + 0.05
    assert depends(found) and reach in (16, 32, 64)
    order = np.random.default_rng(3).permutation(N)
    again, _ = dependence(X[order], y[order], order.astype(np.float64))
    assert abs(again.value - found.value) < 3 * found.stderr


def test_no_row_is_predicted_from_its_own_block():
    """Targets that are the same in each of the 40 blocks: own rows would predict them exactly; by others the errors of neighbours are equal."""
    place = np.arange(N, dtype=np.float64)
    y = np.random.default_rng(0).normal(size=40)[np.arange(N) * 40 // N]
    assert dependence(place[:, None], y, place)[0].value > 0.9


def test_rows_without_dependence_are_judged_one_by_one():
    """Of 20 series without dependence none is clear, though neighbours share what X says of them; z² of the correlation is 1 in the mean."""
    squares = []
    for seed in range(20):
        X, y = np.sin(np.arange(1000) / 30)[:, None], series(0.0, 1000, seed)[1]
        found, _ = dependence(X, np.sin(3 * X[:, 0]) + y, np.arange(1000.0))
        assert not depends(found)
        squares.append((found.value / found.stderr) ** 2)
    assert np.mean(squares) < 1 + 4 * (2 / 20) ** 0.5


def test_drift_is_what_rows_of_their_own_time_are_worth():
    """y = s·t/T + ε: earlier rows alone err by the trend that they have not seen, σ² + m² for σ² and a little."""
    t = np.arange(8000.0)
    X, noise = np.random.default_rng(0).normal(size=(8000, 1)), np.random.default_rng(1).normal(size=8000)
    found = drift(X, 20 * (t > 6800) + noise, t)  # the last 15 % have another level
    of_all = 20 * 1200 / 2 / (6800 + 1200 / 2)  # that of neighbours, whose time X does not say
    wanted = 0.5 * np.log((1.1 + 20**2) / (1.1 + (20 - of_all) ** 2 + 20**2 * 0.01))
    assert abs(found.value - wanted) < 0.1 and found.value > 2 * found.stderr + 0.01
    squares = []
    for seed in range(20):
        none = drift(X, np.random.default_rng(2 + seed).normal(size=8000), t)
        assert none.value < 2 * none.stderr + 0.01
        squares.append((none.value / none.stderr) ** 2)
    assert np.mean(squares) < 2.5


def test_a_table_whose_targets_drift_is_judged_by_blocks_where_single_rows_are_judged_too():
    """Errors of neighbours are independent given the inputs: 20 hours of one day; the trend goes on beyond the last row."""
    X, noise = series(0.0)
    day = np.arange(N) // 100
    rows, y = np.column_stack([X, day]), 0.2 * day + noise
    assert not depends(dependence(rows, y, np.arange(N, dtype=float))[0])
    group, plan = grouped(rows, y, "either")
    assert group is not None and "earlier rows predict the last rows worse" in plan["time_order"]["why"]
    assert grouped(rows, noise, "either")[0] is None


def test_blocks_reach_beyond_the_dependence():
    assert [n_blocks(10_000, reach) for reach in (0, 10, 50, 100, 200, 10_000)] == [100, 100, 100, 50, 25, 20]


def test_a_column_that_never_falls_is_a_time_where_rows_are_judged_singly_too():
    """Of 20 different values; the finer columns of a calendar and of counters still come first."""
    X, y = series()
    month = np.arange(N) * 24 // N
    found, changes = increasing(np.column_stack([X, month]), True)
    assert found == [2]
    np.testing.assert_array_equal(changes, np.diff(month) > 0)
    few = np.column_stack([X, np.arange(N) * 19 // N])
    assert increasing(few, True)[0] == [] == increasing(np.column_stack([X, month]))[0]
    assert increasing(np.column_stack([X, month, np.arange(N)]), True)[0] == [3]
    rows = np.column_stack([X, month])
    group, plan = grouped(rows, y, "either")
    assert plan["time_order"]["choice"] == "forecast" and len(np.unique(group)) == 24
    assert grouped(rows, y, "auto") == (None, {})
    tied = np.column_stack([X, np.maximum(0, np.arange(N) - N // 2)])  # half of the rows have one value
    assert grouped(tied, y, "either")[0] is None


def test_dates_are_taken_in_any_order_of_the_rows_and_merging_keeps_them():
    X, y = table()
    order = np.random.default_rng(0).permutation(len(y))
    rows, again = read(X, y), read(X.iloc[order], y[order])
    assert rows.plan["time_order"]["choice"] == "forecast"
    np.testing.assert_array_equal(rows.X, again.X)
    np.testing.assert_array_equal(rows.group, again.group)
    in_time = np.argsort(rows.X[:, 0])
    assert (np.diff(rows.group[in_time]) >= 0).all() and rows.group.max() + 1 >= 20


def test_what_is_left_as_it_is():
    X, y = table()
    assert read(X, y, "interpolate").group is None and not read(X, y, "interpolate").plan
    given = np.arange(len(y)) % 7
    rows = read(X, y, groups=given)
    assert not rows.plan and rows.group.max() == 6
    assert read(X.iloc[:400], y[:400]).group is None
    assert not read(X[["a", "b"]], y).plan
    noise = read(X, np.random.default_rng(0).normal(size=len(y)))
    assert noise.group is None and noise.plan["time_order"]["choice"] == "interpolate"


def test_after_as_asked_takes_the_order_of_the_rows():
    X, y = table()
    rows = read(X[["a", "b"]].to_numpy(), y, "forecast")
    assert rows.plan["time_order"]["choice"] == "forecast"
    wanted = blocks(np.arange(len(y), dtype=np.float64), int(rows.group.max()) + 1)
    np.testing.assert_array_equal(rows.group, wanted[np.lexsort((y, X["b"], X["a"]))])
    assert read(X[:39], y[:39], "forecast").group is None
    with pytest.raises(ValueError, match="needs a column of dates"):
        grouped(X[["a"]].to_numpy(), y, "forecast", in_order=False)
    with pytest.raises(ValueError, match="time_order"):
        KernelGPRegressor(time_order="later").fit(X, y)


def test_rows_in_files_have_the_same_blocks_by_their_dates(tmp_path):
    """Though a sample of them is in no order; columns that belong together take the place of blocks."""
    X, y = table()
    X.assign(y=y, shop=np.arange(SOME) % 5).to_parquet(tmp_path / "rows.parquet")

    def read_of(source):
        context = FitContext(model := KernelGPRegressor(random_state=0))
        return read_files(model, source, "y", {}, context, keeps_all=False)[0], context.plan_

    source = FileSource.of(tmp_path / "rows.parquet")
    (found, plan), rows = read_of(source.only(("when", "a", "b", "y"))), read(X, y)
    np.testing.assert_array_equal(found.rows.group, rows.group)
    assert plan["time_order"] == rows.plan["time_order"]
    assert "time_order" not in read_of(FileSource.of(tmp_path / "rows.parquet", split_by=("shop",)))[1]


def test_a_fit_takes_blocks_of_time_as_it_takes_groups(monkeypatch):
    """To the bit; and its plan says so, and what the other choice is."""
    monkeypatch.setattr("stochgp.posteriors.kernel.NEIGHBOURS", 16)
    X, y = table()
    learner = LeaveOneOut(epochs=1, n_neighbours=8)
    of = lambda **more: KernelGPRegressor("matern12", learner=learner, random_state=0, **more)
    found, plain = of().fit(X, y), of(time_order="interpolate").fit(X, y)
    n = int(read(X, y).group.max()) + 1
    days = (X["when"] - X["when"].min()) / pd.Timedelta("1D")
    group = blocks(days.to_numpy(), n)
    given = of().fit(X, y, groups=group)
    for a, b in zip(*(m.predict(X[:9], return_std=True) for m in (found, given)), strict=True):
        np.testing.assert_array_equal(a, b)
    told = notes(found.plan_, SOME)[0]
    assert (
        "'when'" in told
        and "time_order='interpolate'" in told
        and told in found.summary().replace("\n      ", " ")
    )
    assert "time_order" not in plain.plan_ and "time_order" not in given.plan_
    assert found.noise_variance_ != plain.noise_variance_


def test_a_forecast_that_auto_takes_is_said_as_a_warning():
    X, y = table()
    with pytest.warns(
        UserWarning, match=r"as a 'forecast': rows are sorted by 'when': prediction errors of successive"
    ):
        assert read(X, y).group is not None
    with pytest.warns(
        UserWarning, match="time_order='interpolate' predicts better; time_order='forecast' avoids"
    ):
        read(X, y, "either")
    with warnings.catch_warnings(action="error"):
        assert read(X, y, "forecast").group is not None
        assert read(X, y, "interpolate").group is None
        assert read(X, np.random.default_rng(1).normal(size=SOME)).group is None
