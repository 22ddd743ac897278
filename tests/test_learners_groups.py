"""Which rows are held out where rows have groups."""

import numpy as np
import pytest

from stochgp.data.streams import DeviceRows
from stochgp.learners import ByEvidence
from stochgp.planning.steps import held_out_rows


@pytest.mark.parametrize("sizes", [[5] * 40, [1] * 100 + [50, 50], [150, 50], [199, 1], [110, 90]])
def test_whole_groups_are_held_out(sizes):
    """No group is in both parts, most rows train, and no group that may join would bring the number held out nearer to the one wanted."""
    wanted = held_out_rows(200, ByEvidence().validation_fraction)
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = np.arange(200.0)[:, None]
    for seed in range(5):
        division = ByEvidence().divide(DeviceRows(X, X[:, 0], group=group), (seed,))
        train, held_out = (division.train.indices, division.held_out.indices)
        np.testing.assert_array_equal(np.sort(np.concatenate([train, held_out])), np.arange(200))
        assert not set(group[train]) & set(group[held_out])
        np.testing.assert_array_equal(division.held_out.group, group[held_out])
        left = np.unique(group[train], return_counts=True)[1]
        assert len(left) > 0 and len(held_out) > 0
        left = left[2 * (len(held_out) + left) < 200]
        assert (np.abs(len(held_out) + left - wanted) >= abs(len(held_out) - wanted)).all()
        assert len(held_out) < len(train)  # also where one group has most of the rows


def test_one_group_cannot_be_divided():
    source = DeviceRows(np.zeros((200, 1)), np.zeros(200), group=np.ones(200, int))
    assert ByEvidence(validation_fraction=0.0).divide(source, (0,)).held_out is None
    with pytest.raises(ValueError, match="of one group.*validation_fraction=0"):
        ByEvidence().divide(source, (0,))
