"""Which groups pools and calibrations hold out where one group has most of the rows."""

import numpy as np
import pytest

from stochgp.data.rows import Rows
from stochgp.estimators import calibrating
from stochgp.numerics import clustered
from stochgp.pools.pool_division import folds, held_out

N = 1_010
UNEVEN = {
    "99 %": np.maximum(np.arange(N) - (N - 13), 0),
    "60 %": np.where(np.arange(N) < 0.6 * N, 0, 1 + np.arange(N) % 9),
    "49 % twice": np.minimum(np.arange(N) // 495, 2) + np.maximum(np.arange(N) - 1_000, 0),
    "halves": np.arange(N) // 505,
}


def rows_of(group):
    generator = np.random.default_rng(1)
    return Rows(generator.normal(size=(N, 2)), generator.integers(0, 2, N).astype(float), None, group)


@pytest.mark.parametrize("name", UNEVEN)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_at_most_about_half_of_the_rows_are_held_out(name, share):
    rows = rows_of(UNEVEN[name])
    for seed in range(12):
        found = held_out(rows, np.random.default_rng(seed), share).all
        assert 0.01 * N < found.sum() <= 0.6 * N
        assert len(np.unique(rows.group[~found])) > 1 or name == "halves"


@pytest.mark.parametrize("name", ["99 %", "60 %"])
def test_no_fold_has_the_whole_of_a_group_with_most_of_the_rows(name):
    rows, large = rows_of(UNEVEN[name]), UNEVEN[name] == 0
    for seed in range(5):
        for fold in (
            clustered.folds(N, rows.group, 5, seed),
            folds(rows, 5, np.random.default_rng(seed)),
        ):
            assert max(np.bincount(fold)) < 0.6 * N
            assert len(np.unique(fold[large])) == 5
            assert all(len(np.unique(fold[rows.group == g])) == 1 for g in range(1, 10))


def test_a_calibration_does_not_set_aside_a_group_with_most_of_the_rows():
    group = np.maximum(np.arange(N) - (N - 250), 0)
    for seed in range(12):
        assert calibrating._groups(group, 101, np.random.default_rng(seed)).sum() < 0.3 * N


def test_groups_of_at_most_half_of_the_rows_stay_whole():
    group = np.array([5, 5, 3, 3, 3, 5])
    assert clustered.divisible(group).tolist() == [1, 1, 0, 0, 0, 1]
    assert clustered.divisible(np.array([5, 5, 3, 5])).tolist() == [1, 2, 0, 3]
