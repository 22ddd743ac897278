"""Rows that are copies count as one row that is left out whole, at any number of rows, also where they differ by rounding."""

import warnings

import numpy as np
import pytest

from stochgp import KernelGPRegressor
from stochgp.data.rows import MERGED_ROWS, Data, rounded
from stochgp.numerics.clustered import equal_rows
from stochgp.pools.division import LEARNED, held_out

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 3)), RNG.normal(size=300)


def drawn(n, d, *, dtype=np.float64):
    """Rows of few values, with negative zeros, weights and groups."""
    X = -RNG.integers(-1, 2, (n, d)).astype(dtype)
    return Data(
        X, RNG.integers(0, 3, n) * 1.0, RNG.uniform(0.1, 3, n), RNG.integers(0, 3, n).astype(np.int32)
    )


@pytest.mark.parametrize("n", [1, 2, 40])
def test_equal_rows_are_those_of_a_double_loop(n):
    columns = list(RNG.integers(0, 2, (4, n)))
    rows = list(zip(*columns, strict=True))
    np.testing.assert_array_equal(equal_rows(columns), [rows.index(row) for row in rows])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_rows_are_sorted_and_equal_ones_are_one(dtype):
    """As by `np.unique` of rows."""
    rows = drawn(200, 2, dtype=dtype)
    merged = rows.merged()
    table = np.column_stack([rows.X, rows.y, rows.group]).astype(np.float64) + 0.0
    unique, which = np.unique(table, axis=0, return_inverse=True)
    found = np.column_stack([merged.X, merged.y, merged.group])
    np.testing.assert_array_equal(found, unique)
    assert not np.signbit(found[found == 0]).any() and merged.X.dtype == np.float64
    np.testing.assert_array_equal(merged.weights, np.bincount(which.ravel(), rows.weights))


def test_copies_beyond_10_000_rows_are_held_out_together():
    n = MERGED_ROWS // 2 + 500
    X, y = RNG.normal(size=(n, 2)), RNG.normal(size=n)
    rows = Data(np.repeat(X, 2, axis=0), np.repeat(y, 2)).merged()
    np.testing.assert_array_equal(rows.X, X)
    np.testing.assert_array_equal(rows.y, y)
    assert (rows.weights == 2).all()
    role = held_out(rows, np.random.default_rng(0))
    seen = {tuple(row) for row in rows.take(role == LEARNED).X}
    assert not any(tuple(row) in seen for row in rows.take(role != LEARNED).X)
    halves = Data(np.tile(X, (2, 1)), np.tile(y, 2), None, np.repeat([0, 1], n)).merged()
    assert len(halves) == 2 * n and halves.weight is None  # of different groups


def test_many_rows_without_copies_stay_as_they_are():
    """Also those that are equal by chance: targets of equal inputs differ in more than a tenth of all pairs."""
    n = MERGED_ROWS + 1
    for X, y in (
        (RNG.normal(size=(n, 2)), RNG.integers(0, 3, n) * 1.0),
        (RNG.integers(0, 9, (n, 2)) * 1.0, RNG.integers(0, 3, n) * 1.0),
    ):
        merged = Data(X, y).merged()
        assert merged.X is X and merged.y is y and merged.weight is None


@pytest.mark.parametrize(
    "again",
    [lambda X: X + 1e-9, lambda X: X * (1 + 1e-10), lambda X: X.astype(np.float32).astype(np.float64)],
    ids=["1e-9 apart", "ten digits", "float32"],
)
@pytest.mark.parametrize("shift", [0.0, 50.0])
@pytest.mark.parametrize("times", [1, 40])
def test_copies_up_to_rounding_are_one_row(again, shift, times):
    X = RNG.normal(size=(300 * times, 2)) + shift
    y = RNG.normal(size=300 * times)
    n = len(y)
    with pytest.warns(UserWarning, match=f"of {2 * n} rows equal other rows except for rounding"):
        found = Data(np.r_[X, again(X)], np.r_[y, again(y)]).merged()
    assert (
        n <= len(found) <= 1.03 * n and found.weight is None
    )  # where float32 is coarse two rows may share a value


def test_rows_that_differ_by_more_than_rounding_stay():
    """Seconds since 1970, whole numbers, a fine grid, a column that an outlier stretches; a few rows that are near by chance."""
    n = 3000
    seconds = 1.7e9 + np.arange(n) * 1.0
    stretched = np.r_[np.arange(n - 1) * 1e-3, 1e15]
    grid = np.arange(n) * 1e-10
    near = np.r_[RNG.normal(size=n - 1), 0.0]
    near[-1] = near[0] * (1 + 1e-12)
    for column in (seconds, np.arange(n) + 1e8, grid, stretched, near):
        merged = Data(column[:, None], np.zeros(n)).merged()
        assert len(merged) == n and merged.weight is None
        if column is not near:
            np.testing.assert_array_equal(rounded(column), column)


def test_packed_bits_are_no_numbers():
    X = np.full((200, 2), 1.0) + np.arange(200)[:, None] * 1e-12
    assert len(Data(X, np.zeros(200)).merged(True)) == 200


def test_a_table_exported_twice_is_learned_from_once():
    y = np.sin(X[:, 0])
    make = lambda: KernelGPRegressor(learner=None, random_state=0)
    once = make().fit(X, y)
    with pytest.warns(UserWarning, match="300 of 600 rows"):
        twice = make().fit(np.r_[X, X + 1e-9], np.r_[y, y])
    for a, b in zip(once.predict(X, return_std=True), twice.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().fit(X, y)


def test_rows_of_one_group_have_no_groups_to_hold_out():
    X, y = np.zeros((4, 1)), np.arange(4.0)
    assert Data(X, y).groups is None and Data(X, y, None, np.full(4, 7)).groups is None
    rows = Data(X, y, None, np.array([0, 0, 1, 1]))
    np.testing.assert_array_equal(rows.groups, rows.group)
    assert rows.take(np.arange(2)).groups is None
