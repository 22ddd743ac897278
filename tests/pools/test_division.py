"""Which rows pools and calibrations hold out: whole groups, but for one that has most of the rows, blocks of time, folds of all classes."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from stochgp.data.rows import Data
from stochgp.numerics import clustered
from stochgp.pools.division import (
    BLOCK,
    LEARNED,
    MOST,
    SINGLE,
    UNSCORED,
    folds,
    held_out,
    held_out_in_time,
    of_known_classes,
)

N = 1_010
UNEVEN = {
    "99 %": np.maximum(np.arange(N) - (N - 13), 0),
    "60 %": np.where(np.arange(N) < 0.6 * N, 0, 1 + np.arange(N) % 9),
    "49 % twice": np.minimum(np.arange(N) // 495, 2) + np.maximum(np.arange(N) - 1_000, 0),
    "halves": np.arange(N) // 505,
}
GENERATOR = np.random.default_rng(1)


def rows_of(group, y=None):
    n = len(group)
    y = GENERATOR.integers(0, 2, n) if y is None else y
    return Data(GENERATOR.normal(size=(n, 2)), np.asarray(y, float), None, group)


def assert_whole(part, group):
    assert all(len(np.unique(part[group == g])) == 1 for g in np.unique(group))


def test_groups_stay_whole():
    group = np.repeat(np.arange(60, dtype=np.int32), 20)
    found = held_out(rows_of(group), np.random.default_rng(0))
    assert_whole(found, group)
    assert 300 <= found.sum() <= 320 and set(found) == {LEARNED, SINGLE}
    assert held_out(Data(np.zeros((1_200, 1)), np.zeros(1_200)), np.random.default_rng(0)).sum() == 300


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_at_most_about_half_of_the_rows_are_held_out(name, share):
    rows = rows_of(UNEVEN[name])
    for seed in range(12):
        found = held_out(rows, np.random.default_rng(seed), share) == SINGLE
        assert 0.01 * N < found.sum() <= 0.6 * N
        assert len(np.unique(rows.group[~found])) > 1 or name == "halves"


@pytest.mark.parametrize("name", ["99 %", "60 %"])
def test_no_fold_has_the_whole_of_a_group_with_most_of_the_rows(name):
    rows, large = rows_of(UNEVEN[name]), UNEVEN[name] == 0
    for seed in range(5):
        generator = np.random.default_rng(seed)
        for fold in (clustered.folds(N, rows.group, 5, seed), folds(rows, 5, generator)):
            assert max(np.bincount(fold)) < 0.6 * N and len(np.unique(fold[large])) == 5
            assert_whole(fold[~large], rows.group[~large])


def test_groups_of_at_most_half_of_the_rows_stay_whole():
    assert clustered.divisible(np.array([5, 5, 3, 3, 3, 5])).tolist() == [1, 1, 0, 0, 0, 1]
    assert clustered.divisible(np.array([5, 5, 3, 5])).tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("singles", [False, True])
@pytest.mark.parametrize("each", [20, 2_000])
def test_the_last_blocks_of_time_are_held_out_and_few_others(singles, each):
    group = np.repeat(np.arange(60, dtype=np.int32), each)
    n = len(group)
    found = held_out_in_time(rows_of(group), singles, np.random.default_rng(0))
    whole = found >= BLOCK
    assert_whole(whole, group)
    assert whole[group >= 51].all()  # 15 % of the rows
    assert 0.04 * n <= whole[group < 51].sum() <= 0.08 * n
    assert (found == SINGLE).any() == singles
    assert np.isin(found, (SINGLE, BLOCK)).sum() <= 2 * MOST and (each > 20 or not (found == UNSCORED).any())


@pytest.mark.parametrize("sizes", [[950, 50], [50, 950], [900, 50, 50], [10] * 40 + [600]])
def test_with_uneven_blocks_of_time_some_rows_are_left_to_learn_from(sizes):
    """The last block is held out, however large; no other block of more than a tenth of the rows."""
    group = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    n, rows = len(group), rows_of(group)
    for seed in range(10):
        found = held_out_in_time(rows, True, np.random.default_rng(seed))
        whole = found >= BLOCK
        assert whole[group == group.max()].all()
        assert whole[group < group.max()].sum() <= 0.1 * n
        assert (found == LEARNED).any() and (found == SINGLE).sum() <= (~whole).sum() / 4


@pytest.mark.parametrize(("n", "expected"), [(1_200, 192), (4_000, 380), (20_000, 950)])
def test_enough_single_rows_of_a_table_with_a_time_are_held_out_to_calibrate_probabilities(n, expected):
    rows = rows_of(np.repeat(np.arange(40, dtype=np.int32), n // 40))
    assert (held_out_in_time(rows, True, np.random.default_rng(0)) == SINGLE).sum() >= expected


@pytest.mark.parametrize(
    ("y", "group", "n_folds"),
    [
        (np.arange(120) % 30, None, None),  # no class can be in all folds
        (np.arange(120) % 2, np.arange(120) % 3, 3),
        (np.arange(120) % 2, None, 5),
        (np.zeros(120), None, None),
    ],
)
def test_folds_are_as_many_as_classes_and_groups_allow(y, group, n_folds):
    rows = Data(np.zeros((120, 1)), np.asarray(y, float), None, group)
    found = folds(rows, 5, np.random.default_rng(0))
    assert (found is None) if n_folds is None else (np.unique(found).tolist() == list(range(n_folds)))


def test_a_class_is_not_held_out_as_a_whole():
    y, some = np.zeros(N), 0
    y[:5], y[5] = 1.0, 2.0
    rows = Data(np.zeros((N, 1)), y)
    for seed in range(20):
        role = held_out(rows, np.random.default_rng(seed))
        found = of_known_classes(rows, role)
        assert found[5] == LEARNED and set(y[found == LEARNED]) == {0.0, 1.0, 2.0}
        assert_array_equal(found[6:], role[6:])
        some += found[:5].any()
    assert some  # rows of rare classes count too: without them their probability would be too high


def few_levels(n: int = 1_500) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    levels = generator.integers(0, 3, (n, 2)).astype(float)
    return levels, np.rint(30 + 3 * levels[:, 0] + 4 * generator.normal(size=n))


def test_rows_that_are_equal_by_chance_are_held_out_one_by_one():
    X, y = few_levels()
    merged = Data(X, y).merged()
    apart = merged.apart()
    assert len(merged) < 300 and len(apart) == len(y) and apart.weight is None
    again = apart.merged()
    for name in ("X", "y", "weight"):
        assert_array_equal(getattr(again, name), getattr(merged, name))
    grouped = Data(X, y, None, np.arange(len(y)) % 7).merged()
    assert_array_equal(np.bincount(grouped.apart().group), np.bincount(np.arange(len(y)) % 7))


def test_copies_and_weights_that_are_no_numbers_of_rows_stay_together():
    merged = Data(*few_levels()).merged()
    for weight in (merged.weight / 2, merged.weight * 100):
        rows = Data(merged.X, merged.y, weight)
        assert rows.apart() is rows
    X = GENERATOR.normal(size=(N, 2))
    copied = Data(np.repeat(X, 3, axis=0), np.repeat(np.arange(N) % 9.0, 3)).merged()
    assert len(copied) == N and copied.apart() is copied
