"""Division into training and test rows, by rows and by groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochgp.data import train_test_indices


def test_groups_are_not_torn():
    group = np.random.default_rng(0).choice(["a", "b", "c", "d", "e"], 200)
    train, test = train_test_indices(200, 0.4, 3, group)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(200))
    assert len(set(group[test])) == 2 and not set(group[test]) & set(group[train])


def test_too_few_groups_are_refused():
    with pytest.raises(ValueError, match="both sets need at least one"):
        train_test_indices(10, 0.2, 0, np.zeros(10))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 200), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_split_divides_all_rows(n, fraction, seed):
    if not 1 <= round(n * fraction) <= n - 1:
        with pytest.raises(ValueError, match="at least one"):
            train_test_indices(n, fraction, seed)
        return
    train, test = train_test_indices(n, fraction, seed)
    assert len(test) == round(n * fraction)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
    np.testing.assert_array_equal(test, train_test_indices(n, fraction, seed)[1])
