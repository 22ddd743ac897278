"""The walking data: from one seed the same frames, in which velocities change by what the targets say."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from experiments import walking


def test_frames_follow_from_the_seed_and_targets_are_changes_of_velocities():
    walk, again = walking.simulate(150, 3), walking.simulate(150, 3)
    for a, b in zip(walk, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert walk.X.shape == (len(walk.Y), 23) and walk.Y.shape[1] == 9 and len(walk.Y) >= 150
    later = np.flatnonzero(~walk.first)
    assert len(later) < len(walk.Y) and walk.first[0]
    moved = walk.X[later, 8:17] - walk.X[later - 1, 8:17]
    np.testing.assert_allclose(walk.Y[later - 1], moved, atol=1e-5)
    assert np.all(np.abs(walk.X[:, 17:]) <= 1)


def test_with_the_frame_before_come_its_inputs_first():
    walk = walking.simulate(60, 0)
    X, Y = walk.with_previous()
    later = np.flatnonzero(~walk.first)
    assert X.shape == (len(later), 46)
    np.testing.assert_array_equal(X[:, :23], walk.X[later - 1])
    np.testing.assert_array_equal(X[:, 23:], walk.X[later])
    np.testing.assert_array_equal(Y, walk.Y[later])
