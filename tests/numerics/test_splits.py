"""Division into training and test rows, by rows and by groups."""

import numpy as np
import pytest

from stochgp.data import train_test_indices


def test_rows_are_divided_once():
    train, test = train_test_indices(103, 0.2, 1)
    assert len(test) == 21
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(103))
    np.testing.assert_array_equal(test, train_test_indices(103, 0.2, 1)[1])


def test_groups_are_not_torn():
    group = np.random.default_rng(0).choice(["a", "b", "c", "d", "e"], 200)
    train, test = train_test_indices(200, 0.4, 3, group)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(200))
    assert len(set(group[test])) == 2 and not set(group[test]) & set(group[train])


def test_too_few_groups_are_refused():
    with pytest.raises(ValueError, match="each side needs at least one"):
        train_test_indices(10, 0.2, 0, np.zeros(10))
