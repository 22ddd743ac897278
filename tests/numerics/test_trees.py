"""Sums of symmetric trees."""

import numpy as np

from stochgp.numerics.trees import Trees


def test_few_rows_have_the_bits_that_they_have_among_many():
    rng = np.random.default_rng(5)
    trees = Trees(rng.integers(0, 4, (60, 3)), rng.normal(size=(60, 3)), rng.normal(size=(60, 8)))
    X = rng.normal(size=(100, 4))
    np.testing.assert_array_equal(
        np.concatenate([trees.on_host(part) for part in np.split(X, 20)]), trees.on_host(X)
    )
